"""The benchmark of a captured call: without a GPU, it times the host's own work."""

from __future__ import annotations

import json

from benchmarks.captured_call import ROWS, main


def test_rows_and_parts_of_a_case_are_timed(tmp_path, capsys):
    """Every call was a replay, or there would be no parts."""
    file = tmp_path / "found.json"
    options = ["--device", "cpu", "--rounds", "2", "--steps", "5", "--json", str(file)]

    assert main([*options, "--only", "adamw-20"]) == 0

    found = json.loads(file.read_text(encoding="utf-8"))
    case = found["cases"]["adamw-20"]
    assert list(case["rows"]) == list(ROWS)
    assert all(len(rounds) == 2 for rounds in case["rounds"].values())
    assert all(us > 0 for us in case["parts"].values())
    assert {"hardware", "versions", "commit"} <= set(found["facts"])
    assert "sum of the parts" in capsys.readouterr().out
