"""Loops as people write them are right on the CPU and on the simulated device."""

from __future__ import annotations

import pytest

from hazards.harness import CPU, SIMULATED, judge
from hazards.themes import CASES


SCHEDULES = [("asap", 0), ("lazy", 0), ("random", 0)]


def cases_on(kind):
    return [pytest.param(one, id=str(one)) for one in CASES if kind in one.devices]


@pytest.mark.parametrize("one", cases_on(CPU))
def test_on_the_cpu(one):
    """The loop gives what the plain loop gives."""
    assert judge(one, CPU) == []


@pytest.mark.parametrize(
    "schedule",
    [*SCHEDULES, pytest.param(("random", 1), marks=pytest.mark.slow)],
    ids=lambda schedule: "-".join(map(str, schedule)),
)
@pytest.mark.parametrize("one", cases_on(SIMULATED))
def test_on_the_simulated_device(one, schedule):
    """The loop gives what the plain loop gives, and every access is ordered."""
    scheduler, seed = schedule

    assert judge(one, SIMULATED, scheduler=scheduler, seed=seed) == []
