"""Captured steps of loops as people write them are right on the simulated device."""

from __future__ import annotations

import itertools

import pytest

from hazards.captured_harness import CPU, SIMULATED, judge
from hazards.themes import CAPTURED_CASES


# Of all cases, one in so many is run by `make test`. `make hazards` runs each once on the simulated
# device, half of them on one that is late; a GPU runs all (`tests/gpu`).
_ONE_IN = 96

_LATE = ("lazy", "random")


def cases_on(kind, *, one_in=1):
    cases = [case for case in CAPTURED_CASES if kind in case.devices]
    return [
        pytest.param(case, id=str(case), marks=[pytest.mark.slow] if number % _ONE_IN else [])
        for number, case in enumerate(cases)
        if number % one_in == 0
    ]


def cases_of_a_late_device():
    cases = [case for case in CAPTURED_CASES if SIMULATED in case.devices]
    return [
        pytest.param(case, scheduler, id=f"{case}-{scheduler}")
        for case, scheduler in zip(cases[1::2], itertools.cycle(_LATE), strict=False)
    ]


@pytest.mark.parametrize("case", cases_on(CPU))
def test_on_the_cpu(case):
    """The loop gives what it gives as written."""
    assert judge(case, CPU) == []


@pytest.mark.parametrize("case", cases_on(SIMULATED, one_in=2))
def test_on_the_simulated_device(case):
    """The loop gives what it gives as written, and is captured or refused as expected."""
    assert judge(case, SIMULATED, scheduler="asap", seed=0) == []


@pytest.mark.slow
@pytest.mark.parametrize(("case", "scheduler"), cases_of_a_late_device())
def test_on_the_simulated_device_that_is_late(case, scheduler):
    """It does so if the device runs everything as late as it may, or in any order that is allowed."""
    assert judge(case, SIMULATED, scheduler=scheduler, seed=0) == []
