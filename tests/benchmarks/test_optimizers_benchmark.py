"""The benchmark of optimizers: without a GPU, all ways run as written and have the same bits."""

from __future__ import annotations

import json

from benchmarks.optimizers import WAYS, main


def test_each_way_of_an_optimizer_is_a_row(tmp_path, capsys):
    """A line of facts, and one for each way."""
    file = tmp_path / "rows.jsonl"

    assert main(["--only", "lion", "--warm-up", "1", "--steps", "2", "--jsonl", str(file)]) == 0

    facts, *rows = map(json.loads, file.read_text(encoding="utf-8").splitlines())
    assert {"hardware", "versions", "commit"} <= set(facts["facts"])
    assert [row["way"] for row in rows] == list(WAYS)
    assert [row["same_bits"] for row in rows] == [True] * 3
    assert capsys.readouterr().out.count("\nlion ") == 3
