"""Whole comparisons: bits, times and a recommendation."""

from __future__ import annotations

import pytest
import torch

import gapless
from gapless.compare.compare_plans import run_comparison
from gapless.errors import UserError
from gapless.plans import PLANS
from gapless.report.comparison_text import comparison_text
from gapless.report.verification_text import verdict_lines
from gapless.testing.simulated.simulated_device import SimulatedDevice
from toys import CPU, compare_settings, small_for_any_plan


QUICK = {"device": "cpu", "steps": 4, "rounds": 1, "warmup_rounds": 1, "verify_steps": 4}


@pytest.mark.slow
def test_every_plan_goes_through_the_whole_comparison():
    """All plans are compared in bits and times on a CPU, and gapless is recommended."""
    report = run_comparison(
        small_for_any_plan, compare_settings(PLANS, rounds=1, verify_steps=6), name="small"
    )

    found = report.verification.verdicts
    assert all(verdict.holds for verdict in found)
    # Three batches in two passes, because with a GPU each shape has to come again.
    assert {tuple(verdict.ours.passes) for verdict in found} == {(3, 3)}
    assert [row.plan for row in report.rows] == list(PLANS)
    assert all(row.identical for row in report.rows)
    assert report.reproducible
    assert report.holds
    assert (report.recommendation.plan, report.unit) == ("gapless", "steps")


@pytest.mark.parametrize("has_room", [True, False])
def test_the_report_says_whether_plans_took_turns(monkeypatch, has_room):
    """Plans that do not fit side by side are timed one by one, which stands below the table."""
    if not has_room:
        monkeypatch.setattr(CPU, "free_memory_bytes", lambda: 100)
        monkeypatch.setattr(CPU, "reserved_memory_bytes", iter(range(0, 10**6, 80)).__next__)

    report = run_comparison(small_for_any_plan, compare_settings(), name="small")

    text = comparison_text(report)
    assert ("3 rounds of 4 steps, plans in turns;" in text) is has_room
    assert ("3 rounds of 4 steps, each plan by itself;" in text) is not has_room
    assert ("no room for all plans at once" in text) is not has_room


def test_bits_of_replays_are_compared_where_a_device_captures():
    """Two batches in six passes give three eager steps and nine replays, and the text says so."""
    with SimulatedDevice(scheduler="asap") as device:
        asked = compare_settings(["gapless", "captured"], device=device, rounds=1, verify_steps=12)
        verification = run_comparison(small_for_any_plan, asked, name="small").verification

    itself, eager, captured = verification.verdicts
    assert itself.is_identical
    assert (eager.ours.num_replays, captured.ours.num_replays) == (0, 9)
    assert captured.ours.passes == (2,) * 6
    assert verdict_lines(captured)[0].endswith("x 12 steps, 9 of them replays)")
    assert "replays" not in verdict_lines(eager)[0]


# --- from Python ---


def test_one_call_compares_bits_and_times_and_recommends():
    """compare_plans needs a function of the device alone, and returns the whole report."""
    report = gapless.compare_plans(small_for_any_plan, ["blocking", "gapless"], **QUICK)

    assert report.holds
    assert {row.plan: row.identical for row in report.rows} == {"blocking": True, "gapless": True}
    assert (report.recommendation.plan, report.workload) == ("gapless", "small_for_any_plan")
    assert (report.settings["steps"], report.settings["training"]) == (4, None)


def test_bits_need_not_be_compared():
    """Without steps for it, nothing is known of bits, and the report holds all the same."""
    report = gapless.compare_plans(small_for_any_plan, ["gapless"], **{**QUICK, "verify_steps": 0})

    assert report.holds
    assert (report.rows[0].identical, report.verification) == (None, None)


def test_a_plan_that_computes_something_else_breaks_the_report():
    """Another plan is recommended, and `holds` is False."""
    runs = []

    def make(device):
        runs.append(None)
        workload = small_for_any_plan(device)
        # Two runs of the plain loop come first, then one of `blocking`.
        if len(runs) > 3:
            workload.model.weight.data += 1.0
        return workload

    report = gapless.compare_plans(make, ["blocking", "gapless"], **QUICK)

    assert not report.holds
    assert [row.identical for row in report.rows] == [True, False]
    assert report.recommendation.plan == "blocking"


def test_numerics_of_the_process_are_as_before():
    """Comparing bits takes deterministic algorithms, which are allowed again afterwards."""
    torch.set_float32_matmul_precision("medium")

    gapless.compare_plans(small_for_any_plan, ["gapless"], **QUICK)

    assert torch.get_float32_matmul_precision() == "medium"
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"plans": ["fast"]}, "unknown plan 'fast'"),
        ({"plans": []}, "`plans` must name at least one plan"),
        ({"steps": 0}, "`steps` must be at least 1, but is 0"),
        ({"precision": "bf16"}, "torch.autocast"),
        ({"device": "tpu"}, "unknown device 'tpu'"),
    ],
)
def test_arguments_out_of_range_are_refused(changed, message):
    """The parameter is named with what it may be, before anything runs."""
    with pytest.raises(UserError, match=message):
        gapless.compare_plans(lambda device: pytest.fail("was built"), **{**QUICK, **changed})
