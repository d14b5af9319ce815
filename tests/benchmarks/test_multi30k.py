"""The Multi30k recipe as a benchmark: what a user's commands write and say."""

from __future__ import annotations

import gzip
import json

import pytest
from benchmarks.multi30k import main


TINY = (
    "--options=--max-steps 1 --batch-tokens 256 --beam 1 --d-model 16 --ffn 32 "
    "--heads 2 --workers 0 --val-interval 1"
)


def write_pairs(folder, *, split):
    """Write a few pairs a split, as `prepare` leaves them."""
    folder.mkdir(exist_ok=True)
    for name in ("train", "val", "test"):
        for language, word in (("en", "word"), ("de", "wort")):
            text = "".join(f"{split} {word} {number} .\n" for number in range(30))
            (folder / f"{name}.{language}").write_text(text, encoding="utf-8")
    return str(folder)


@pytest.mark.slow
def test_a_row_is_trained_and_scored(tmp_path, capsys):
    """In a process of its own; the table has the score and the seconds."""
    data = write_pairs(tmp_path / "data", split="spl@@ it")
    command = ["train", data, "--rows", "gapless", "--seeds", "7", "--precision", "fp32"]
    command += ["--device", "cpu", "--out", str(tmp_path), "--runs", str(tmp_path / "runs")]

    assert main([*command, TINY]) == 0

    found = json.loads((tmp_path / "multi30k.json").read_text(encoding="utf-8"))
    (row,) = found["rows"]
    (run,) = row["runs"]
    assert (run["seed"], run["steps"], run["problem"]) == ("7", 1, None)
    assert run["seconds"] > run["wall_seconds"] > run["train_seconds"] > 0.0
    table = (tmp_path / "multi30k.md").read_text(encoding="utf-8")
    assert table in capsys.readouterr().out
    assert "| gapless | " in table


def test_a_run_that_fails_is_told_with_its_reason(tmp_path, capsys):
    """The exit code says so as well."""
    data = write_pairs(tmp_path / "data", split="spl@@ it")
    command = ["train", data, "--rows", "gapless", "--seeds", "1", "--device", "cpu"]
    command += ["--out", str(tmp_path), "--runs", str(tmp_path / "runs")]

    assert main([*command, "--options=--no-such-option"]) == 1

    assert "gapless; seed 1: exit code 2: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rows", "fast"], "unknown row 'fast'; the rows are captured, not-compiled, "),
        ([], " has no words split with '@@ '; run `prepare` first"),
    ],
)
def test_what_cannot_be_trained_is_told_in_one_line(tmp_path, capsys, arguments, message):
    """Whole words are another recipe, with three times the vocabulary."""
    data = write_pairs(tmp_path / "data", split="whole")

    assert main(["train", data, *arguments, "--out", str(tmp_path)]) == 2

    assert message in capsys.readouterr().err
    assert not list(tmp_path.glob("*.json"))


def test_words_are_split_as_the_recipe_does(tmp_path):
    """Compressed source files become files that `train` takes, and no others are left."""
    source = tmp_path / "source"
    source.mkdir()
    for name in ("train", "val", "test_2016_flickr"):
        for language in ("en", "de"):
            path = source / f"{name}.lc.norm.tok.{language}.gz"
            path.write_bytes(gzip.compress(b"ab abc abcd abcde\n" * 3))

    assert main(["prepare", str(source), str(tmp_path / "data")]) == 0

    names = sorted(path.name for path in (tmp_path / "data").iterdir())
    assert names == ["codes", "test.de", "test.en", "train.de", "train.en", "val.de", "val.en"]
    joined = (tmp_path / "data" / "test.en").read_text(encoding="utf-8").replace("@@ ", "")
    assert joined == "ab abc abcd abcde\n" * 3
