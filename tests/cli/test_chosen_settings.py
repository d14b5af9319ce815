"""`gapless train` on somebody's text, without settings."""

from __future__ import annotations

import random

import pytest
import yaml


WORDS = {
    "the": "the",
    "cat": "die Katze",
    "dog": "der Hund",
    "sees": "sieht",
    "hears": "hoert",
    "red": "rote",
    "old": "alte",
    "house": "das Haus",
    "tree": "der Baum",
}


@pytest.fixture
def data(tmp_path):
    """Two hundred sentences of few words."""
    draw = random.Random(2)
    rows = []
    for _ in range(200):
        words = [draw.choice(list(WORDS)) for _ in range(draw.randint(3, 8))]
        rows.append(f"{' '.join(words)}\t{' '.join(WORDS[word] for word in words)}\n")
    (tmp_path / "d.tsv").write_text("".join(rows))
    return tmp_path / "d.tsv"


SIDES = ["--src", "en", "--tgt", "de", "--columns", "en,de", "--device", "cpu"]


def test_a_dry_run_says_what_would_be_done(gapless, data):
    """Settings with their reasons, time and memory; nothing is written."""
    ended = gapless("train", "--data", data, *SIDES, "--dry-run", "--dropout", "0.2")

    assert (ended.code, ended.err, ended.new_files) == (0, "", [])
    assert "data: " in ended.out
    assert "scores: BLEU with tokenizer 13a, as the target is de" in ended.out
    assert "d_model 128, heads 4" in ended.out
    assert "pairs on a CPU" in ended.out
    assert "warmup" in ended.out
    assert "dropout" not in ended.out
    assert "time: about " in ended.out
    assert "measured on 5;" in ended.out
    assert "memory: " in ended.out


def test_a_dry_run_warns_as_the_run_would(gapless, tmp_path):
    """Of a rate that only rises."""
    rows = [f"one {n}\teins {n}" for n in range(30)] + ["two\tzwei\tzwo", "one 0\teins 0"]
    (tmp_path / "d.tsv").write_text("".join(f"{row}\n" for row in rows))
    tiny = ["--d-model", "16", "--heads", "2", "--ffn", "16", "--max-steps", "4"]
    tiny += ["--encoder-layers", "1", "--decoder-layers", "1"]

    ended = gapless("train", "--data", "d.tsv", *SIDES[:6], *tiny, "--warmup", "9", "--dry-run")

    (rate,) = ended.err.splitlines()
    assert "the run makes 4 updates, but its rate rises for 9" in rate
    assert "1 the same as others" in ended.out
    assert "too few for scores to mean much" in ended.out


def test_a_dry_run_of_a_run_that_is_there(gapless, data):
    """Is refused, because its settings are chosen."""
    gapless("train", "--resume", "runs/x", "--dry-run").check_refused("--dry-run is for new runs")


@pytest.mark.slow
def test_what_was_chosen_is_kept(gapless, data, tmp_path):
    """The settings file holds it, so that neither a resume nor a copy chooses again."""
    flat = ["--encoder-layers", "1", "--decoder-layers", "1", "--ffn", "16"]
    done = gapless("train", "--data", data, *SIDES, *flat, "--run-dir", "r", "--epochs", "1")
    kept = yaml.safe_load((tmp_path / "r" / "config.yaml").read_text())
    again = gapless("train", "--config", "r/config.yaml", "--run-dir", "again")
    resumed = gapless("train", "--resume", "r", "--epochs", "2")

    assert (done.code, again.code, resumed.code) == (0, 0, 0)
    assert f"d_model {kept['d_model']}, heads" in done.out
    assert f"vocab_size {kept['vocab_size']}: all that the text can give" in done.out
    assert f"warmup {kept['warmup']}: " in done.out
    assert "epochs 1:" not in done.out
    assert "d_model 128, heads" not in again.out + resumed.out
    assert yaml.safe_load((tmp_path / "again" / "config.yaml").read_text()) == {
        **kept,
        "run_dir": "again",
    }


@pytest.mark.slow
def test_a_small_corpus_is_learned(gapless, data):
    """With no setting at all: most held-out sentences are translated as they should be."""
    done = gapless("train", "--data", data, *SIDES)
    score = next(line for line in done.out.splitlines() if line.startswith("BLEU"))

    assert done.code == 0
    assert float(score.split()[1]) > 60
    assert "the final model has the " in done.out


@pytest.mark.parametrize(
    ("flag", "says"), [(["--heads", "3"], "d_model 132"), (["--d-model", "20"], "heads ")]
)
def test_a_width_or_a_number_of_heads_alone_gets_a_partner_that_fits(gapless, data, flag, says):
    """The other one follows it, and nobody is told of a default that is not used."""
    small = ["--encoder-layers", "1", "--decoder-layers", "1", "--ffn", "16"]
    ended = gapless("train", "--data", data, *SIDES, *small, *flag, "--dry-run")

    assert (ended.code, ended.err) == (0, "")
    assert says in ended.out


def test_weights_of_another_run_without_text_to_go_on_with(gapless, tiny_run):
    """The embedded corpus has settings of its own: a dry run and a run say the same."""
    for more in ([], ["--dry-run"]):
        refused = gapless("train", "--init-from", tiny_run, *more)

        refused.check_refused(f"--init-from {tiny_run} goes on with other text", "--data")


TINY = ["--d-model", "16", "--heads", "2", "--ffn", "16", "--encoder-layers", "1"]
TINY += ["--decoder-layers", "1", "--max-steps", "2", "--beam", "1", "--average", "1"]
TINY += ["--max-length", "60", "--workers", "0"]


def test_the_settings_of_a_run_with_two_vocabularies_serve_again(gapless, data):
    """The size that was chosen is more than either side can give, and is read as it was."""
    own = ["--data", data, *SIDES, *TINY, "--no-shared-vocab", "--vocab-model", "unigram"]

    first = gapless("train", *own, "--run-dir", "a")
    again = gapless("train", "--config", "a/config.yaml", "--run-dir", "b")

    assert (first.code, again.code) == (0, 0), again.err
    vocabularies = [
        [(data.parent / run / f"vocab.{side}.spm").read_bytes() for side in ("src", "tgt")]
        for run in "ab"
    ]
    assert vocabularies[0] == vocabularies[1]


def test_where_no_size_suits_both_sides_each_has_its_nearest(gapless, tmp_path):
    """One side has more characters than the other side can give subwords."""
    signs = [chr(0x4E00 + n) for n in range(400)]
    rows = [
        f"{'ab'[n % 2]} {'c' * (n % 9 + 1)} {'d' * (n % 7 + 1)}\t{''.join(signs[n : n + 20])}\n"
        for n in range(0, 380, 4)
    ]
    (tmp_path / "d.tsv").write_text("en\tzh\n" + "".join(rows), "utf-8")

    asked = ["--data", tmp_path / "d.tsv", *TINY, "--no-shared-vocab", "--vocab-size", "400"]

    assert gapless("train", *asked, "--device", "cpu", "--dry-run").code == 0
