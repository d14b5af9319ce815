"""Objects captured in place, in loops as people write them, are right on a GPU."""

from __future__ import annotations

import os

import pytest

from hazards.harness import GPU
from hazards.in_place_harness import judge, judge_in_turns, judge_the_loop_itself
from hazards.in_place_known import xfail_marks
from hazards.themes import IN_PLACE_CASES


# Read by cuBLAS when it is first used: results repeat themselves.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

pytestmark = pytest.mark.gpu

CASES = [
    pytest.param(case, id=str(case), marks=xfail_marks(case, GPU))
    for case in IN_PLACE_CASES
    if GPU in case.devices
]
PLAIN = [
    pytest.param(case, id=str(case))
    for case in IN_PLACE_CASES
    if GPU in case.devices and case.holds_plainly
]

IN_TURNS = [one for one in CASES if not one.marks and "in_place_pays" not in one.id]


@pytest.mark.parametrize("case", CASES)
def test_on_a_gpu(case):
    """The loop gives what it gives as written, and is captured or refused as expected."""
    assert judge(case, GPU) == []


@pytest.mark.parametrize("case", PLAIN)
def test_the_loop_equals_itself(case):
    """The loop as written gives the same bits twice: nothing but a capture can change it."""
    assert judge_the_loop_itself(case, GPU) == []


@pytest.mark.parametrize("case", IN_TURNS)
def test_in_turns(case):
    """The loop gives the same whichever of its calls are replays."""
    assert judge_in_turns(case, GPU) == []
