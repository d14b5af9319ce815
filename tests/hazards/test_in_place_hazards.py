"""Objects captured in place, in loops as people write them, are right on the simulated device."""

from __future__ import annotations

import pytest

import gapless
from hazards.harness import CPU, SIMULATED
from hazards.in_place_harness import judge
from hazards.themes import IN_PLACE_CASES


pytestmark = pytest.mark.skipif(
    not hasattr(gapless, "release"), reason="capture in place is not there yet"
)

SCHEDULES = [
    pytest.param("asap", 0, id="asap"),
    pytest.param("lazy", 0, id="lazy", marks=pytest.mark.slow),
    pytest.param("random", 0, id="random", marks=pytest.mark.slow),
]


def cases_on(kind):
    return [pytest.param(case, id=str(case)) for case in IN_PLACE_CASES if kind in case.devices]


@pytest.mark.slow
@pytest.mark.parametrize("case", cases_on(CPU))
def test_on_the_cpu(case):
    """The loop gives what it gives as written."""
    assert judge(case, CPU) == []


@pytest.mark.parametrize(("scheduler", "seed"), SCHEDULES)
@pytest.mark.parametrize("case", cases_on(SIMULATED))
def test_on_the_simulated_device(case, scheduler, seed):
    """The loop gives what it gives as written, and is captured or refused as expected."""
    assert judge(case, SIMULATED, scheduler=scheduler, seed=seed) == []
