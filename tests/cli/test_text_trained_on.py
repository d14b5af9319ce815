"""`gapless evaluate` says when it scores text that a run was trained on."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from cli.conftest import ONE_EPOCH, SMALL, make_pairs, write_table


# Its model has the sizes of the run that it starts from.
BEGUN = ["--epochs", "1", *SMALL[SMALL.index("--max-length") :]]


@pytest.fixture
def table(tmp_path, monkeypatch):
    """Return what writes so many pairs to `d.tsv`, from this one on, and its path."""
    monkeypatch.chdir(tmp_path)
    return lambda count, *, first=0: write_table(Path("d.tsv"), count, first=first)


def _count(gapless, run, *options):
    return json.loads(gapless("evaluate", run, "--json", *options).out)["trained_on"]


def test_new_text_is_scored_without_a_word(gapless, tiny_run):
    """The test pairs of a run are none that it was trained on."""
    done = gapless("evaluate", tiny_run, "--json")

    assert json.loads(done.out)["trained_on"] == 0
    assert "trained with" not in done.err


def test_the_training_file_is_no_new_text(gapless, table):
    """All pairs but those held out and those that are too long were trained on; a line says so."""
    trained = gapless("train", "--data", table(60), "--run-dir", "r", *ONE_EPOCH)
    done = gapless("evaluate", "r", "--data", "d.tsv")

    said = " ".join(trained.out.split())
    assert "52 training pairs, 3 too long, 3 validation (1 too long for its loss), 2 test" in said
    expected = "52 of these 60 sources are in the text that r was trained with, such as lines "
    assert expected in done.err
    assert done.err.count("\n") == 1
    named = re.search(r"lines ([\d, ]+) of sources.test.txt, so the scores are not", done.err)
    first, *others = map(int, str(named and named[1]).split(", "))
    assert len(others) == 2
    scored = Path("r/evaluated/d.tsv/sources.test.txt").read_text(encoding="utf-8").splitlines()
    Path("one.tsv").write_text(f"en\tzh\n{scored[first - 1]}\tx\n", encoding="utf-8")
    assert _count(gapless, "r", "--data", "one.tsv") == 1


@pytest.mark.usefixtures("run_of_table")
def test_a_few_sources_that_any_text_has_condemn_no_scores(gapless, table):
    """Up to the share of a split that `train` is silent about they are counted, without a word."""
    done = gapless("evaluate", "r", "--json", "--data", table(145, first=55))

    assert 1 <= json.loads(done.out)["trained_on"] <= 5
    assert "trained with" not in done.err


@pytest.mark.usefixtures("run_of_table")
def test_training_text_that_is_asked_for_is_scored_without_a_word(gapless, table):
    """The split says itself what it is."""
    done = gapless("evaluate", "r", "--json", "--split", "train")
    Path("r/trained_on.bin").unlink()
    unknown = gapless("evaluate", "r", "--json", "--split", "train")

    assert json.loads(done.out)["trained_on"] == 52
    assert json.loads(unknown.out)["trained_on"] is None
    assert "trained" not in done.err + unknown.err


@pytest.mark.usefixtures("run_of_table")
def test_a_resume_that_trains_nothing_adds_nothing(gapless, table):
    """Weights that no update changed have not seen other text; those that one update changed have."""
    resume = ("train", "--resume", "r", "--allow-changed-data")
    table(60, first=100)
    done = gapless(*resume)
    before = _count(gapless, "r", "--data", "d.tsv")
    more = gapless(*resume, "--epochs", "3", "--max-steps", "5")

    assert (done.code, more.code) == (0, 0), done.err + more.err
    assert before == 0
    assert _count(gapless, "r", "--data", "d.tsv") > 50


@pytest.mark.usefixtures("run_of_table")
def test_a_split_that_moved_with_its_file_is_no_new_text(gapless, table):
    """More lines hold out other pairs; those that were trained on before are counted."""
    table(200)
    done = gapless("evaluate", "r")

    sources = Path("r/sources.test.txt").read_text(encoding="utf-8").splitlines()
    old = {en for en, _ in make_pairs(200)[:60]}
    seen = _count(gapless, "r")
    assert 0 < seen <= sum(source in old for source in sources)
    assert f"{seen} of these 9 sources are in the text that r was trained with" in done.err


@pytest.mark.usefixtures("run_of_table")
def test_text_of_before_a_resume_and_of_initial_weights_was_trained_on(gapless, table):
    """A run that goes on with other text has seen the text before, as has one that starts from it."""
    shutil.copy("d.tsv", "old.tsv")
    table(60, first=100)
    more = gapless("train", "--resume", "r", "--epochs", "2", "--allow-changed-data")
    begun = gapless(
        "train", "--data", table(60, first=140), "--init-from", "r", "--run-dir", "s", *BEGUN
    )

    assert (more.code, begun.code) == (0, 0), more.err + begun.err
    assert _count(gapless, "r", "--data", "old.tsv") == 52
    assert 12 <= _count(gapless, "r", "--data", "d.tsv") <= 20
    assert _count(gapless, "s", "--data", "old.tsv") == 52
    assert _count(gapless, "s", "--data", "d.tsv") >= 50


@pytest.mark.usefixtures("run_of_table")
def test_of_a_run_that_does_not_say_what_it_was_trained_on_nobody_can_tell(gapless, table):
    """Nobody can tell of a run without the file, nor of one that starts from it."""
    Path("r/trained_on.bin").unlink()
    begun = gapless("train", "--data", "d.tsv", "--init-from", "r", "--run-dir", "s", *BEGUN)

    assert begun.code == 0, begun.err
    for run in ("r", "s"):
        done = gapless("evaluate", run, "--json")
        assert json.loads(done.out)["trained_on"] is None


_KNOWN = re.compile(
    r"\d+ of \d+ validation sources and \d+ of \d+ test sources are in the text that r was trained "
    "with, so their scores are not of new text"
)


@pytest.fixture
def grown(gapless, table):
    """Return the path of a table of 200 rows, of which a run `r` was trained on most of 150."""
    assert gapless("train", "--data", table(150), "--run-dir", "r", *ONE_EPOCH).code == 0
    shutil.copy(table(200), "grown.tsv")
    return "grown.tsv"


def test_a_new_hold_out_of_known_text_is_told_by_a_run_that_starts_from_another(gapless, grown):
    """Once, before training, and in a dry run; not where the text is the same, and so is its hold-out."""
    begin = ("train", "--init-from", "r", *BEGUN)
    dry = gapless(*begin, "--data", grown, "--dry-run")
    begun = gapless(*begin, "--data", grown, "--run-dir", "s")
    lines = Path(grown).read_text(encoding="utf-8").splitlines(keepends=True)
    Path("d.tsv").write_text("".join(lines[:151]), encoding="utf-8")
    same = gapless(*begin, "--data", "d.tsv", "--run-dir", "t")

    assert (dry.code, begun.code, same.code) == (0, 0, 0), dry.err + begun.err + same.err
    assert len(_KNOWN.findall(begun.err)) == 1
    assert len(_KNOWN.findall(" ".join(dry.out.split()))) == 1
    assert "trained with" not in same.err


def test_a_new_hold_out_of_known_text_is_told_by_a_resume(gapless, grown):
    """The run had trained on most of what it is validated on from now on."""
    more = gapless(
        "train", "--resume", "r", "--epochs", "2", "--data", grown, "--allow-changed-data"
    )

    assert more.code == 0, more.err
    assert len(_KNOWN.findall(more.err)) == 1


@pytest.mark.usefixtures("run_of_table")
def test_a_resume_with_its_own_text_says_nothing_of_it(gapless, table):
    """Its hold-out is as new to it as it was."""
    more = gapless("train", "--resume", "r", "--epochs", "2")

    assert more.code == 0, more.err
    assert "trained with" not in more.err


@pytest.mark.usefixtures("run_of_table")
def test_a_setting_that_a_resume_changes_is_shown_as_it_is_written(gapless, table):
    """A path keeps its capitals."""
    shutil.copy("d.tsv", "New.TSV")
    more = gapless("train", "--resume", "r", "--data", "New.TSV")

    assert more.code == 0, more.err
    assert "data d.tsv -> New.TSV" in more.out
