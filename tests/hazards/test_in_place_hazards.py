"""Objects captured in place, in loops as people write them, are right on the simulated device."""

from __future__ import annotations

import pytest

from hazards.harness import CPU, SIMULATED
from hazards.in_place_harness import judge
from hazards.in_place_known import xfail_marks
from hazards.themes import IN_PLACE_CASES


SCHEDULES = [
    pytest.param("asap", 0, id="asap"),
    pytest.param("lazy", 0, id="lazy", marks=pytest.mark.slow),
    pytest.param("random", 0, id="random", marks=pytest.mark.slow),
]


# Of all cases, one in so many is run by `make test`; `make check` runs the others.
_ONE_IN = 8


def cases_on(kind):
    cases = [case for case in IN_PLACE_CASES if kind in case.devices]
    return [
        pytest.param(
            case,
            id=str(case),
            marks=[
                *([pytest.mark.slow] if number % _ONE_IN else []),
                *xfail_marks(case, kind),
            ],
        )
        for number, case in enumerate(cases)
    ]


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
