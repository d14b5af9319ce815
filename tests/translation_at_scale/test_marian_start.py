"""A run starts from a Marian checkpoint of Hugging Face on disk: its weights, its vocabulary, its translations."""

from __future__ import annotations

import random
import shutil

import pytest

from translation_at_scale import marian_models
from translation_at_scale.corpora import pairs, sentence, write_folder
from translation_at_scale.harness import losses


pytest.importorskip("transformers")

# What transformers recommends is not needed here.
pytestmark = pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")

START = [
    *("--src", "en", "--tgt", "de", "--workers", 0, "--deterministic", "--device", "cpu"),
    *("--average", 1, "--dropout", 0, "--label-smoothing", 0, "--batch-tokens", 512),
]
# One update that changes next to nothing.
STILL = ["--max-steps", 1, "--lr", 1e-12]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """Checkpoints by the name of a form, made when first asked for."""
    folder = tmp_path_factory.mktemp("marian")

    def checkpoint(form):
        path = folder / form
        if not path.exists():
            marian_models.make(path, separate=form == "separate")
        return path

    return checkpoint


@pytest.fixture(scope="module")
def lines():
    draw = random.Random(12)
    return [" ".join(sentence(draw, 1, 8)) for _ in range(40)]


@pytest.mark.parametrize("form", ["shared", "separate"])
def test_a_start_is_the_model_of_transformers(gapless, splits, checkpoints, lines, form):
    """Before any update the validation loss is transformers' own, and so are the greedy translations."""
    start, validated = checkpoints(form), pairs(240)[200:220]
    gapless("train", "--data", splits, "--run-dir", "run", "--init-from", start, *START, *STILL)

    (first,) = losses(gapless.folder / "run")[1]
    assert first == pytest.approx(marian_models.loss_of(start, validated), rel=1e-4)
    assert gapless.translate(
        "run", lines, "--beam", 1, "--max-length", 30
    ) == marian_models.greedy_of(start, lines, most=30)


@pytest.mark.slow  # Trains until it has learned.
def test_a_start_is_fine_tuned(gapless, checkpoints, tmp_path):
    """On text in which two words have changed places the loss halves, and the translations follow."""
    swap = {"katze": "hund", "hund": "katze"}
    rows = [
        (source, " ".join(swap.get(word, word) for word in target.split()))
        for source, target in pairs(400, seed=5)
    ]
    data = write_folder(tmp_path / "swapped", train=rows[:360], val=rows[360:380], test=rows[380:])
    options = ["--init-from", checkpoints("shared"), *START, "--max-steps", 300]
    gapless("train", "--data", data, "--run-dir", "run", *options, "--lr", 3e-3)

    before = marian_models.loss_of(checkpoints("shared"), rows[360:380])
    assert losses(gapless.folder / "run")[1][-1] < before / 2
    assert gapless.translate("run", ["the cat sees a dog"]) == ["das hund sieht ein katze"]


@pytest.mark.parametrize("file", ["vocab.json", "source.spm", "model.safetensors"])
def test_a_checkpoint_without_a_file_is_refused(gapless, splits, checkpoints, tmp_path, file):
    """One line says which file is missing."""
    start = tmp_path / "start"
    shutil.copytree(checkpoints("shared"), start)
    (start / file).unlink()
    options = ["--data", splits, "--run-dir", "run", "--init-from", start, *START, *STILL]
    ended = gapless.fails("train", *options)

    ended.check_refused(file)


def test_sizes_of_another_model_are_refused(gapless, splits, checkpoints):
    """Sizes come with the checkpoint: an option that contradicts them is refused by name."""
    options = ["--data", splits, "--run-dir", "run", "--init-from", checkpoints("shared")]
    ended = gapless.fails("train", *options, *START, *STILL, "--d-model", 64)

    ended.check_refused("--d-model", "32")


def test_a_run_from_a_start_needs_it_no_more(gapless, splits, checkpoints, tmp_path):
    """After the checkpoint is gone the run is resumed and translates: all that it needs is in its folder."""
    start = tmp_path / "start"
    shutil.copytree(checkpoints("shared"), start)
    options = ["--data", splits, "--run-dir", "run", "--init-from", start, *START]
    gapless("train", *options, "--max-steps", 10)
    shutil.rmtree(start)
    gapless("train", "--resume", "run", "--max-steps", 20)

    assert max(losses(gapless.folder / "run")[0]) == 19
    assert len(gapless.translate("run", ["the cat"])) == 1
