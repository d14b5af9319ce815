"""A run goes out to CTranslate2 and to a Marian checkpoint of Hugging Face, which translate as gapless does."""

from __future__ import annotations

import random

import pytest
import torch
from sentencepiece import SentencePieceProcessor

from translation_at_scale.corpora import sentence
from translation_at_scale.harness import SUBWORDS, WORDS, losses, trained
from translation_at_scale.spelling import export


CTRANSLATE2, MARIAN = "ctranslate2", "marian"

# What transformers recommends is not needed here.
pytestmark = pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")


@pytest.fixture(scope="module")
def lines():
    draw = random.Random(9)
    return [" ".join(sentence(draw, 1, 9)) for _ in range(60)]


@pytest.fixture(scope="module")
def post_norm_run(commands_of_session):
    """A run in the form that Marian models have."""
    return trained(commands_of_session, "post", *SUBWORDS, "--norm", "post", "--max-steps", 300)


def by_ctranslate2(folder, lines, *, of_words=False):
    """Return the greedy translations that CTranslate2 makes with an export alone."""
    ctranslate2 = pytest.importorskip("ctranslate2")
    translator = ctranslate2.Translator(str(folder), device="cpu", compute_type="float32")
    if of_words:
        encode, decode = str.split, " ".join
    else:
        src, tgt = subwords_in(folder)
        encode, decode = src.encode_as_pieces, tgt.decode
    found = translator.translate_batch(
        [encode(line) for line in lines], beam_size=1, max_decoding_length=40
    )
    return [decode(one.hypotheses[0]) for one in found]


def subwords_in(folder):
    """Return the subword models of both sides that an export brings along; of one for both, it twice."""
    models = sorted(path for path in folder.iterdir() if path.suffix in (".spm", ".model"))
    assert 1 <= len(models) <= 2, sorted(folder.iterdir())
    src = [path for path in models if "src" in path.name or "source" in path.name] or models
    tgt = [path for path in models if "tgt" in path.name or "target" in path.name] or models
    return (SentencePieceProcessor(model_file=str(found[0])) for found in (src, tgt))


def by_transformers(folder, lines):
    """Return the greedy translations that transformers makes with a checkpoint alone."""
    transformers = pytest.importorskip("transformers")
    model = transformers.MarianMTModel.from_pretrained(folder).eval()
    tokenizer = transformers.MarianTokenizer.from_pretrained(folder)
    with torch.inference_mode():
        ids = model.generate(
            **tokenizer(lines, return_tensors="pt", padding=True),
            num_beams=1,
            do_sample=False,
            max_new_tokens=41,
        )
    return tokenizer.batch_decode(ids, skip_special_tokens=True)


def greedy(gapless, run, lines):
    return gapless.translate(run, lines, "--beam", 1, "--max-length", 40)


FORMS = {
    "pre-norm, one vocabulary": [*SUBWORDS, "--norm", "pre"],
    "post-norm, two vocabularies": [
        *("--norm", "post", "--no-shared-vocab", "--share", "none", "--vocab-size", 300),
        *("--encoder-layers", 2),
    ],
    "shared target embeddings": ["--no-shared-vocab", "--share", "decoder", "--vocab-size", 300],
    "words": WORDS,
}


@pytest.mark.parametrize("form", FORMS)
def test_ctranslate2_translates_as_the_run_does(gapless, commands_of_session, lines, form):
    """Models of all forms are exported; CTranslate2 reads them and finds the same greedy translations."""
    pytest.importorskip("ctranslate2")
    run = trained(
        commands_of_session, f"form {form}".replace(" ", "-"), *FORMS[form], "--max-steps", 300
    )
    gapless(*export(run, "exported", to=CTRANSLATE2))

    found = by_ctranslate2(gapless.folder / "exported", lines, of_words=form == "words")

    assert found == greedy(gapless, run, lines)


def test_transformers_translates_as_the_run_does(gapless, post_norm_run, lines):
    """A post-norm run is exported as a Marian checkpoint, tokenizer included, with the same greedy translations."""
    pytest.importorskip("transformers")
    gapless(*export(post_norm_run, "exported", to=MARIAN))

    found = by_transformers(gapless.folder / "exported", lines)

    assert found == greedy(gapless, post_norm_run, lines)


def test_what_marian_models_cannot_be_is_refused(gapless, subword_run):
    """Marian models are post-norm: a pre-norm run is refused in one line that says how to train for it."""
    ended = gapless.fails(*export(subword_run, "exported", to=MARIAN))

    ended.check_refused("post")
    assert not (gapless.folder / "exported").exists()


def test_a_marian_export_is_a_start(gapless, post_norm_run, table, lines):
    """What went out comes in again: a run from the export translates as the first run did, and goes on training."""
    gapless(*export(post_norm_run, "exported", to=MARIAN))
    options = ["--label-smoothing", 0, "--max-steps", 1, "--lr", 1e-12]
    for name, start in (("from-run", post_norm_run), ("from-export", "exported")):
        gapless(
            *("train", "--data", table, "--src", "en", "--tgt", "de", "--run-dir", name),
            *("--init-from", start, "--workers", 0, "--deterministic", "--device", "cpu"),
            *("--average", 1, *options),
        )

    (first,), (second,) = (
        losses(gapless.folder / name)[1] for name in ("from-run", "from-export")
    )
    assert second == pytest.approx(first, rel=1e-5)
    assert greedy(gapless, "from-export", lines) == greedy(gapless, post_norm_run, lines)


@pytest.mark.parametrize("form", [CTRANSLATE2, MARIAN])
def test_an_export_writes_over_nothing(gapless, post_norm_run, form):
    """A folder with something in it is refused, and stays as it is."""
    out = gapless.folder / "exported"
    out.mkdir()
    (out / "mine.txt").write_text("mine")
    ended = gapless.fails(*export(post_norm_run, "exported", to=form))

    ended.check_refused("exported")
    assert [path.name for path in out.iterdir()] == ["mine.txt"]
