"""What audits cost: processes with and without them, in turns."""

from __future__ import annotations

import json

import pytest

from benchmarks import audit_costs


def turn_of(every, seconds, num_audits, **others):
    """Return a turn of 100 steps."""
    return {
        "model": "gpt-12",
        "form": "step",
        "every": every,
        "steps": 100,
        "seconds": seconds,
        "p99.9_ms": 1.0,
        "most_ms": 1.0,
        "counts": [{"audits": num_audits}],
        "differences": [],
        **others,
    }


def test_the_cost_of_an_audit_is_that_beyond_a_step():
    """Ten audits in 100 steps of 1 ms that take 0.05 s more: 5 ms, or 5 steps, each."""
    first, second = audit_costs.lines_of([turn_of(audit_costs.OFF, 0.1, 0), turn_of(32, 0.15, 10)])

    assert "no audits" in first
    assert "+50.00%" in second
    assert "5.00 ms =   5.00 steps" in second


def test_a_difference_is_told():
    turn = turn_of(audit_costs.OFF, 0.1, 0, differences=["a loss"])
    assert audit_costs.lines_of([turn])[-1].strip() == "a loss"


@pytest.mark.slow
@pytest.mark.parametrize("form", ["step", "module"])
def test_a_model_is_audited_in_one_process_and_not_in_the_other(form, tmp_path):
    """On the simulated device; whatever was audited was equal."""
    file = tmp_path / "costs.jsonl"
    arguments = ["--device", "simulated", "--only", "resnet-18", "--form", form, "--steps", "40"]
    arguments += ["--rounds", "1", "--every", str(audit_costs.OFF), "32", "--json", str(file)]

    assert audit_costs.main(arguments) == 0

    without, audited = (json.loads(text) for text in file.read_text().splitlines())
    assert sum(one["audits"] for one in without["counts"]) == 0
    assert audited["counts"][0]["audits"] > 0
    assert audited["differences"] == []
    assert without["counts"][0]["replays"] == 40
