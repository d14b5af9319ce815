"""The comparison of `auto` with the best plan: one failure costs one workload."""

from __future__ import annotations

import json
import sys

import pytest

from benchmarks import auto_workloads


def run(monkeypatch, tmp_path, *arguments):
    options = ["--tiny", "--device", "cpu", "--steps", "2", "--rounds", "2", "--plans", "gapless"]
    monkeypatch.setattr(sys, "argv", ["x", *options, "--out", str(tmp_path), *arguments])
    code = auto_workloads.main()
    files = list(tmp_path.glob("*-auto-workloads.json"))
    return code, json.loads(files[0].read_text(encoding="utf-8"))["results"] if files else None


def test_a_workload_that_fails_stays_in_the_table(monkeypatch, tmp_path, capfd):
    """Its process ends too late; the others are not run once time is up."""
    code, results = run(
        monkeypatch, tmp_path, "--only", "host-read,data-bound",
        "--workload-limit", "0.01", "--time-limit", "0.001",
    )  # fmt: skip
    assert code == 1
    assert [found["problem"] for found in results][1] == "not run, time was up"

    code, results = run(monkeypatch, tmp_path, "--only", "launch-bound", "--workload-limit", "0.1")
    assert code == 1
    assert results == [{"workload": "launch-bound", "problem": "did not finish in 0 s"}]
    out = capfd.readouterr().out
    assert "| `gapless` | failed |" in out
    assert "launch-bound: did not finish in 0 s" in out


@pytest.mark.slow
def test_every_turn_is_told_and_every_workload_written(monkeypatch, tmp_path, capfd):
    """Round by round, plan by plan."""
    code, (found,) = run(monkeypatch, tmp_path, "--only", "data-bound")

    assert code == 0
    assert {plan: len(rounds) for plan, rounds in found["rounds_ms"].items()} == {
        "gapless": 2,
        "captured": 2,
        "auto": 2,
    }
    assert "data-bound  round 2  captured: " in capfd.readouterr().out
