"""The benchmark of deferred metrics runs without a GPU, and says what it could not count."""

from __future__ import annotations

import json

from benchmarks.deferred_metrics import main


def test_every_row_has_a_time_and_kernels_are_those_of_a_gpu(tmp_path, capsys):
    """A CPU launches no kernels."""
    out = tmp_path / "found.json"

    assert main(["--device", "cpu", "--steps", "5", "--rounds", "2", "--out", str(out)]) == 0

    found = json.loads(out.read_text(encoding="utf-8"))
    assert {"hardware", "versions", "commit", "steps", "rows"} <= set(found)
    assert all(row["us"] > 0 and len(row["rounds_us"]) == 2 for row in found["rows"].values())
    assert {row["kernels"] for row in found["rows"].values()} == {None}
    assert "add, four values of four dtypes" in capsys.readouterr().out
