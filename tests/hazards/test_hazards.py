"""Loops as people write them are right on the CPU and on the simulated device."""

from __future__ import annotations

import pytest

from hazards.harness import CPU, SIMULATED, judge
from hazards.themes import CASES


# `make test` runs one of so many cases under each schedule.
_QUICK = 12

SCHEDULES = [("asap", 0), ("lazy", 0), ("random", 0), ("random", 1)]


def cases_on(kind):
    return [pytest.param(one, id=str(one)) for one in CASES if kind in one.devices]


def under_each_schedule():
    """Return each case under each schedule; `make test` runs every third case, under one in turn."""
    cases = [one for one in CASES if SIMULATED in one.devices]
    return [
        pytest.param(
            one,
            *schedule,
            id=f"{one}-{schedule[0]}-{schedule[1]}",
            marks=[] if place % _QUICK == 3 * number else [pytest.mark.slow],
        )
        for place, one in enumerate(cases)
        for number, schedule in enumerate(SCHEDULES)
    ]


@pytest.mark.quick_cases(90)
@pytest.mark.parametrize("one", cases_on(CPU))
def test_on_the_cpu(one):
    """The loop gives what the plain loop gives."""
    assert judge(one, CPU) == []


@pytest.mark.parametrize(("one", "scheduler", "seed"), under_each_schedule())
def test_on_the_simulated_device(one, scheduler, seed):
    """The loop gives what the plain loop gives, and every access is ordered."""
    assert judge(one, SIMULATED, scheduler=scheduler, seed=seed) == []
