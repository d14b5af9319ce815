"""`gapless evaluate` loses no scores, and says what it scores."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
from pathlib import Path

import pytest

from cli.conftest import ONE_EPOCH, make_pairs, write_table
from gapless.cli import evaluate_command, requirements
from gapless.cli.main import run_command
from gapless.device.numerics import numerics_restored
from gapless.nmt.run import scores


# --- where it writes ---


@pytest.fixture
def no_search(monkeypatch):
    """Let a translation that begins fail."""

    def fail(*_, **__):
        pytest.fail("translated")

    monkeypatch.setattr(scores, "evaluate", fail)


@pytest.mark.parametrize(
    ("out", "why"),
    [
        ("p.tsv", "it is no folder"),
        ("p.tsv/inner", "Not a directory"),
        ("/proc/absent", "No such file or directory"),
        ("/proc", "No such file or directory"),
    ],
)
@pytest.mark.usefixtures("no_search")
def test_a_folder_that_cannot_be_written_is_refused_at_once(gapless, tiny_run, tmp_path, out, why):
    """Before anything is translated, with its name, what is wrong, and the flag."""
    (tmp_path / "p.tsv").write_text("mine")

    refused = gapless("evaluate", tiny_run, "--out", out)

    refused.check_refused(
        f"cannot write translations to {out}: {why}; name a folder with --out DIR"
    )
    assert (tmp_path / "p.tsv").read_text() == "mine"


@pytest.mark.usefixtures("no_search")
def test_a_run_on_a_disk_that_is_read_only_is_refused_at_once(gapless, tiny_run, monkeypatch):
    """The run folder is where translations go unless --out names another one."""

    def deny(**_):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), "/share/run/tmpabc")

    monkeypatch.setattr(requirements, "TemporaryFile", deny)

    refused = gapless("evaluate", tiny_run)

    refused.check_refused(
        f"cannot write translations to {tiny_run}: Read-only file system; name a"
    )
    assert "tmpabc" not in refused.err


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_scores_outlive_a_disk_that_is_full(gapless, tiny_run, monkeypatch, options):
    """They are printed, without files that are not there, and then the error is told."""
    good = gapless("evaluate", tiny_run, "--out", "good", *options)

    def fill(path, *_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(evaluate_command, "replace_file", fill)
    full = gapless("evaluate", tiny_run, "--out", "full", *options)

    expected = (
        "gapless: error: the scores stand, but the translations could not be written to full: No "
        "space left on device; free some space or name another folder with --out DIR, and run again"
    )
    assert full.code == 2
    assert full.err.splitlines()[-1] == expected
    if options:
        paths = dict.fromkeys(("sources", "references", "hypotheses"))
        assert json.loads(full.out) == {**json.loads(good.out), **paths}
    else:
        assert full.out.splitlines() == good.out.splitlines()[:-3]


# --- what it scores ---


@pytest.mark.usefixtures("run_of_table")
def test_text_that_a_run_did_not_have_is_told(gapless):
    """The recorded path may lead to another file now; one line says so, and scores are given."""
    same = gapless("evaluate", "r")
    write_table(Path("d.tsv"), first=100)
    other = gapless("evaluate", "r")
    asked = gapless("evaluate", "r", "--data", "d.tsv")

    told = "d.tsv, the path of its text that r recorded, holds other text now: the "
    (line,) = (line for line in other.err.splitlines() if "recorded" in line)
    assert line.startswith(f"gapless: warning: {told}")
    assert line.endswith(
        "test pairs are not the 2 that the run had; name the text to score with --data"
    )
    assert other.code == 0
    assert "recorded" not in same.err + asked.err


@pytest.fixture(scope="module")
def folder_of_splits(tiny_data, tmp_path_factory):
    """A folder with text in three splits in `d`, and a run `r` of it."""
    folder = tmp_path_factory.mktemp("splits")
    shutil.copytree(tiny_data, folder / "d")
    with numerics_restored(), contextlib.chdir(folder):
        assert run_command(["train", "--data", "d", "--run-dir", "r", *ONE_EPOCH]) == 0
    return folder


@pytest.mark.parametrize(
    ("changed", "split", "told"),
    [
        ("train", "test", []),
        ("test", "test", ["test"]),
        ("test", "val", []),
        ("val", "val", ["validation"]),
        ("train", "train", ["training"]),
    ],
)
def test_only_the_text_that_changed_is_named(
    gapless, folder_of_splits, tmp_path, changed, split, told
):
    """Of the pairs that are scored; others do not matter, and are not even tokenised."""
    shutil.copytree(folder_of_splits, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "d" / f"{changed}.en"
    first, *lines = path.read_text(encoding="utf-8").splitlines()
    path.write_text("".join(f"{line}\n" for line in [first.upper(), *lines]), encoding="utf-8")

    done = gapless("evaluate", "r", "--split", split)

    assert re.findall(r"the \d+ (\w+) pairs are not the \d+ that", done.err) == told


@pytest.mark.usefixtures("run_of_table")
def test_text_that_is_all_too_long_for_a_run_is_told_and_scored(gapless):
    """It cannot be what the run was trained on."""
    rows = [(f"{en} " * 5, f"{zh}" * 5) for en, zh in make_pairs(40)]
    Path("d.tsv").write_text(
        "en\tzh\n" + "".join(f"{en}\t{zh}\n" for en, zh in rows), encoding="utf-8"
    )

    done = gapless("evaluate", "r", "--split", "train")

    assert done.code == 0, done.err
    assert "training pairs are not the 52 that the run had" in done.err


@pytest.mark.usefixtures("run_of_table")
def test_an_ensemble_with_a_run_of_shorter_sentences_has_the_text_of_its_first(gapless):
    """Sentences are cut for both, and the text that the first was trained on is no other for it."""
    shorter = ("--init-from", "r", "--run-dir", "s", *ONE_EPOCH, "--max-length", "15")
    assert gapless("train", "--data", "d.tsv", *shorter).code == 0

    done = gapless("evaluate", "r", "--ensemble", "s", "--json")

    assert json.loads(done.out)["longest_source"] == 30
    assert "recorded" not in done.err


@pytest.mark.usefixtures("run_of_table")
def test_a_recorded_path_that_is_not_here_is_told(gapless, tmp_path):
    """Nobody typed it, so the error says where it is from, and what names another one."""
    Path("d.tsv").unlink()

    gapless("evaluate", "r").check_refused(
        f"d.tsv, the path of its text that r recorded, does not exist in {tmp_path}; name another one "
        "with --data"
    )


@pytest.mark.usefixtures("run_of_table")
def test_a_resumed_run_tells_of_the_path_that_it_recorded(gapless, tmp_path):
    """It was relative to the folder where the run began."""
    Path("d.tsv").unlink()

    gapless("train", "--resume", "r", "--max-steps", "99").check_refused(
        f"d.tsv, the path of its text that r recorded, does not exist in {tmp_path}; name another one "
        "with --data"
    )


def write_test_set(pairs):
    Path("test.tsv").write_text(
        "en\tzh\n" + "".join(f"{en}\t{zh}\n" for en, zh in pairs), encoding="utf-8"
    )


@pytest.mark.parametrize("lengths", [[], [40], [40, 41], [300] * 12])
def test_sources_that_are_read_in_part_are_told(gapless, tiny_run, lengths):
    """Their number and lines, in text and in JSON; the model reads 40 tokens."""
    long = [("cat " * length, "猫") for length in lengths]
    write_test_set([*make_pairs(3), *long])
    arguments = ("evaluate", tiny_run, "--data", "test.tsv", "--out", "o")

    text = gapless(*arguments).out
    figures = json.loads(gapless(*arguments, "--json").out)

    lines = list(range(4, 4 + len(lengths)))
    assert (figures["num_long"], figures["long"]) == (len(lines), lines)
    assert figures["longest_source"] == 40
    some = ", ".join(map(str, lines[:10])) + ", ..." * (len(lines) > 10)
    told = (
        f"{len(lines)} of {3 + len(lines)} sources have more than 40 tokens, in lines {some}; the rest "
        "of them is not translated, and the whole references count"
    )
    assert (told in " ".join(text.split())) == bool(lines)
    assert ("have more than" in text) == bool(lines)


def test_a_run_tells_of_test_sources_that_are_read_in_part(gapless, tiny_data, tmp_path):
    """At its end, and in `summary.json`; of validation pairs its first lines tell."""
    shutil.copytree(tiny_data, tmp_path / "d")
    for split in ("test", "val"):
        for side, text in (("en", "cat " * 300), ("zh", "猫")):
            with (tmp_path / "d" / f"{split}.{side}").open("a", encoding="utf-8") as file:
                file.write(f"{text}\n" * 2)

    done = gapless("train", "--data", "d", "--run-dir", "r", *ONE_EPOCH)

    out = " ".join(done.out.split())
    assert "12 validation (2 too long for its loss), 14 test" in out
    assert "2 of their sources are too long, and only their beginnings were translated" in out
    assert json.loads(Path("r/summary.json").read_text())["long_sources"] == 2


def test_pairs_with_gaps_are_told(gapless, tiny_run):
    """Sides without text; they are not left out."""
    pairs = make_pairs(60, seed=8)
    gaps = [(en, "") for en, _ in pairs[:2]]
    write_test_set([*gaps, *pairs[2:]])

    done = gapless("evaluate", tiny_run, "--data", "test.tsv", "--out", "o")

    warned = [line for line in done.err.splitlines() if "test pairs" in line]
    begin = "gapless: warning: "
    assert warned[0] == (
        f"{begin}2 of 60 test pairs have no text on one side, and count in scores"
    )
    assert "of 60 pairs" in done.out
    write_test_set(pairs)
    assert (
        "test pairs" not in gapless("evaluate", tiny_run, "--data", "test.tsv", "--out", "o").err
    )


# --- what it advises ---


@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        # It would be the working folder, which nobody has named.
        (
            ["--data", ""],
            ["--data: expected a file or folder, found ''", "gapless evaluate --help"],
        ),
        (["--out", ""], ["--out: expected a file or folder, found ''", "gapless evaluate --help"]),
        (["--data", "-"], ["--data is -, expected a file or folder"]),
        (
            ["--data", "https://example.org/a.tsv"],
            ["--data is the address https://example.org/a.tsv"],
        ),
    ],
)
def test_text_that_is_no_file(gapless, tiny_run, flags, parts):
    """What is said is that of `gapless train`."""
    gapless("evaluate", tiny_run, *flags).check_refused(*parts)


def test_other_text_is_not_written_over_that_of_the_run(gapless, tiny_run):
    """Without --out, what other text became stands in a folder of its own, which the command names."""
    write_test_set(make_pairs(3, seed=8))
    own = {path: path.read_bytes() for path in tiny_run.glob("*.test.txt")}

    done = gapless("evaluate", tiny_run, "--data", "test.tsv")

    written = tiny_run / "evaluated" / "test.tsv" / "hypotheses.test.txt"
    assert str(written) in done.out
    assert len(written.read_text(encoding="utf-8").splitlines()) == 3
    assert {path: path.read_bytes() for path in tiny_run.glob("*.test.txt")} == own


def test_text_that_is_not_there_is_named(gapless, tiny_run):
    """A name that was mistyped is told from a folder without the split."""
    done = gapless("evaluate", tiny_run, "--data", "nope.tsv")

    assert done.code == 2
    assert "nope.tsv does not exist; --data takes a folder or a file" in done.err
