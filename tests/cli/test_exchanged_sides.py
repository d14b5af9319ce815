"""Other text for a run whose sides are written the same way: sides that are exchanged are told."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from cli.conftest import TINY


SAID = "the sides of this text seem to be exchanged"
ENGLISH = ("the", "dog", "a", "house", "sees", "big", "small", "red", "cat", "runs", "over", "old")
GERMAN = (
    "der",
    "Hund",
    "ein",
    "Haus",
    "sieht",
    "groß",
    "klein",
    "rote",
    "Katze",
    "läuft",
    "alten",
)
SIDES = ["--src", "en", "--tgt", "de"]
MORE = ["--device", "cpu", "--workers", "0", "--batch-size", "16", "--max-steps", "4"]


def rows(count, *, seed):
    chance = random.Random(seed)
    for _ in range(count):
        yield tuple(" ".join(chance.choices(words, k=3)) for words in (ENGLISH, GERMAN))


@pytest.fixture
def run(gapless, tmp_path, monkeypatch):
    """A run from English to German, with text in both orders beside it."""
    monkeypatch.chdir(tmp_path)
    texts = {"d.tsv": (200, 1, 1), "right.tsv": (40, 2, 1), "exchanged.tsv": (40, 2, -1)}
    for name, (count, seed, way) in texts.items():
        lines = ("\t".join(pair[::way]) for pair in rows(count, seed=seed))
        Path(name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    trained = gapless("train", "--data", "d.tsv", *SIDES, "--run-dir", "r", *TINY, "--epochs", "1")
    assert trained.code == 0, trained.err
    assert SAID not in trained.err
    return "r"


@pytest.mark.parametrize(
    "command",
    [
        ["evaluate", "r"],
        ["train", "--resume", "r", "--allow-changed-data", "--max-steps", "6"],
        ["train", "--init-from", "r", "--run-dir", "s", *SIDES, *MORE],
        ["train", "--init-from", "r", "--run-dir", "s", *SIDES, *MORE, "--dry-run"],
    ],
    ids=["evaluate", "resume", "init", "dry run"],
)
def test_exchanged_sides_of_other_text_are_told(gapless, run, command):
    """In one line that says what to do, and only where they are exchanged."""
    right = gapless(*command, "--data", "right.tsv")
    shutil.rmtree("s", ignore_errors=True)
    wrong = gapless(*command, "--data", "exchanged.tsv")

    assert (right.code, wrong.code) == (0, 0), right.err + wrong.err
    assert SAID not in right.out + right.err
    # A dry run prints it with all else.
    assert (wrong.out + wrong.err).count(SAID) == 1


def test_another_direction_is_meant(gapless, run):
    """Weights of one direction may begin those of the other, with its text."""
    sides = ["--src", "de", "--tgt", "en"]
    begun = ["train", "--init-from", run, *sides, *MORE, "--dry-run"]

    done = gapless(*begun, "--data", "exchanged.tsv")

    assert done.code == 0, done.err
    assert SAID not in done.out + done.err


def test_a_run_that_keeps_no_words_says_nothing(gapless, run):
    """Such is one of an earlier version, or one whose file is damaged."""
    Path("r/sides.json").write_text("[]", encoding="utf-8")

    done = gapless("evaluate", "r", "--data", "exchanged.tsv")

    assert (done.code, SAID in done.err) == (0, False)
