"""The comparison of `auto` with the best plan: one failure costs one workload."""

from __future__ import annotations

import json
import random
import sys
from statistics import fmean

import pytest
from benchmarks.auto_workloads import summarize

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


def test_the_luck_of_a_plan_is_no_loss_of_auto():
    """The best of many equal plans is compared where it was not chosen; a slower auto is seen."""
    draw = random.Random(3)
    names = [*(f"plan {number}" for number in range(9)), "auto"]

    def measured(rounds):
        return {name: [draw.uniform(0.8, 1.2) for _ in range(rounds)] for name in names}

    # A plan chosen in the rounds it is compared in would look a tenth faster than `auto`.
    ratios = [summarize("equal", measured(6))["auto_to_best"] for _ in range(300)]
    assert fmean(ratios) == pytest.approx(1.0, abs=0.03)

    times = measured(300)
    times["auto"] = [1.3 * value for value in times["auto"]]
    times["plan 4"] = [0.5 * value for value in times["plan 4"]]
    found = summarize("unequal", times)
    assert found["auto_to_best"] == pytest.approx(2.6, rel=0.05)
    assert found["best"] == "plan 4"
    one_round = {name: values[:1] for name, values in times.items()}
    assert summarize("one", one_round)["auto_to_best"] > 1.0
