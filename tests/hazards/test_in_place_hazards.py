"""Objects captured in place, in loops as people write them, are right on the simulated device."""

from __future__ import annotations

import pytest

from backward_thread import backward_thread
from hazards.harness import CPU, SIMULATED
from hazards.in_place_harness import judge, judge_in_turns, judge_the_loop_itself
from hazards.in_place_known import late_marks, xfail_marks
from hazards.themes import IN_PLACE_CASES


def cases_on(kind, marks=xfail_marks):
    cases = [case for case in IN_PLACE_CASES if kind in case.devices]
    return [pytest.param(case, id=str(case), marks=marks(case, kind)) for case in cases]


def in_turns(kind):
    """Return the cases that are right, but for those that ask which calls were replays."""
    return [one for one in cases_on(kind) if not one.marks and "in_place_pays" not in one.id]


@pytest.mark.slow
@pytest.mark.parametrize("case", cases_on(CPU))
def test_on_the_cpu(case):
    """The loop gives what it gives as written."""
    assert judge(case, CPU) == []


# `make hazards` runs all of them, and a GPU does (`tests/gpu`).
@pytest.mark.quick_cases(6)
@pytest.mark.parametrize("case", cases_on(SIMULATED))
def test_on_the_simulated_device(case):
    """The loop gives what it gives as written, and is captured or refused as expected."""
    assert judge(case, SIMULATED, scheduler="asap", seed=0) == []


@pytest.mark.slow
@pytest.mark.parametrize("case", cases_on(SIMULATED, late_marks)[::2])
def test_on_the_simulated_device_that_is_late(case):
    """It does so if the device runs everything as late as it may."""
    assert judged_where_the_loop_holds(case, "lazy") == []


@pytest.mark.slow
@pytest.mark.parametrize("case", cases_on(SIMULATED, late_marks)[1::2])
def test_on_the_simulated_device_at_random(case):
    """It does so if the device's streams run in any order that is allowed."""
    assert judged_where_the_loop_holds(case, "random") == []


def judged_where_the_loop_holds(case, scheduler):
    """Return what is wrong with a case; skip one that gives something else as written, too."""
    wrong = judge(case, SIMULATED, scheduler=scheduler, seed=0)
    if wrong and judge_the_loop_itself(case, SIMULATED, scheduler=scheduler, seed=0):
        pytest.skip("the loop as written is another one on this simulated device")
    return wrong


@pytest.mark.slow
@pytest.mark.parametrize("case", in_turns(SIMULATED)[::8])
def test_on_the_simulated_device_in_turns(case):
    """It gives the same whichever of its calls are replays."""
    assert judge_in_turns(case, SIMULATED, scheduler="asap", seed=0) == []


@pytest.mark.parametrize(
    "case", [one for one in cases_on(SIMULATED) if "checkpointed_late" in one.id]
)
def test_parts_that_run_again_in_autograds_thread(case):
    """As on a GPU: a forward pass within a backward pass, that may be watched there."""
    with backward_thread():
        assert judge(case, SIMULATED, scheduler="asap", seed=0) == []
