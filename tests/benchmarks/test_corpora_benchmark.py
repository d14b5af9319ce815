"""The benchmark of large corpora: it makes text, measures runs, and compares those that it kills."""

from __future__ import annotations

import json
import random

import pytest

from benchmarks import corpora
from gapless.nmt.data.sentences import Pairs


def lines(count, seed=0):
    draw = random.Random(seed)
    words = ["".join(draw.choices("abcdefgh", k=4)) for _ in range(60)]
    return [" ".join(draw.choices(words, k=draw.randint(2, 9))) for _ in range(count)]


def test_text_is_the_same_each_time_and_its_pairs_differ(tmp_path):
    """Each line is one of the text with a word of another put into each side."""
    text = Pairs(src=lines(40), tgt=lines(40, seed=1))

    first, again = (
        corpora.make_text(text, tmp_path / name, 500, sides=("en", "de")) for name in "ab"
    )

    table = (first / "train.tsv").read_text().splitlines()
    assert table == (again / "train.tsv").read_text().splitlines()
    assert table[0] == "en\tde"
    assert len(table) == 501
    assert len(set(table)) > 490
    words = {len(line.split()) for line in text.src}
    assert {len(row.split("\t")[0].split()) for row in table[1:]} <= {n + 1 for n in words}


@pytest.mark.slow  # Nine runs of the command.
def test_runs_are_measured_and_killed_ones_compared(tmp_path, monkeypatch):
    """A cold run and one from the store, beside an empty text; killed runs end as one that was not."""
    monkeypatch.setattr(corpora, "EMPTY", 300)
    table, out = tmp_path / "pairs.tsv", tmp_path / "out.json"
    pairs = zip(lines(300), lines(300, seed=1), strict=True)
    table.write_text("".join(f"{src}\t{tgt}\n" for src, tgt in pairs), encoding="utf-8")
    given = [str(table), str(tmp_path / "dir"), "--no-header", "--tgt", "de", "--kill"]
    given += ["--pairs", "9000", "--vocab-size", "330", "--only", "cold packed", "stored padded"]

    corpora.main([*given, "--out", str(out)])

    found = json.loads(out.read_text())
    runs = [(row["pairs"], row["run"]) for row in found["rows"]]
    assert runs == [(num, run) for num in (300, 9000) for run in ("cold packed", "stored padded")]
    for row in found["rows"]:
        assert 0 < row["first_update_s"] <= row["wall_s"]
        assert 0 < row["command_anonymous_mib"] < row["command_peak_mib"]
    (killed,) = found["kills"]
    assert killed["updates"] == 30
    assert [killed[name] for name in killed if "equal" in name] == [True] * 3
