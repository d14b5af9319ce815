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
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_row_is_trained_and_scored(tmp_path, capsys, ranks):
    """In a process of its own; the table has the score and the seconds."""
    data = write_pairs(tmp_path / "data", split="spl@@ it")
    command = ["train", data, "--rows", "gapless", "--seeds", "7", "--precision", "fp32"]
    command += ["--device", "cpu", "--out", str(tmp_path), "--runs", str(tmp_path / "runs")]
    stem = tmp_path / ("multi30k" if ranks == 1 else "multi30k-ranks")

    assert main([*command, "--ranks", str(ranks), TINY]) == 0

    found = json.loads(stem.with_suffix(".json").read_text(encoding="utf-8"))
    (row,) = found["rows"]
    (run,) = row["runs"]
    assert (run["seed"], run["steps"], run["problem"]) == ("7", 1, None)
    assert run["seconds"] > run["wall_seconds"] > run["train_seconds"] > 0.0
    assert sum(run["parts"].values()) == pytest.approx(run["seconds"])
    assert min(run["parts"].values()) >= 0.0
    table = stem.with_suffix(".md").read_text(encoding="utf-8")
    assert table in capsys.readouterr().out
    title = "gapless" if ranks == 1 else "gapless, 2 ranks with batches of 3,650 tokens"
    assert f"| {title} | " in table


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
