"""Real trainers of frameworks train with gapless as they do without it, bit for bit."""

from __future__ import annotations

import pytest

from hazards.harness import CPU, SIMULATED
from integrations.cases import CASES
from integrations.frameworks import FRAMEWORKS, version_of
from integrations.harness import PLAIN, judge, judge_the_program_itself


pytestmark = pytest.mark.slow


def cases_on(kind, names=None):
    # One process runs all tests of a case: they share its runs as written.
    return [
        pytest.param(case, id=str(case), marks=pytest.mark.xdist_group(str(case)))
        for case in CASES
        if kind in case.devices and (names is None or str(case) in names)
    ]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_framework_is_installed(framework):
    """Without it none of its cases runs, and this is where that is said."""
    pytest.importorskip(framework)
    print(framework, version_of(framework))
    assert [case for case in CASES if case.framework == framework]


@pytest.mark.parametrize("case", cases_on(SIMULATED, PLAIN))
def test_the_program_equals_itself(case):
    """The program as written gives the same bits twice: nothing but gapless can change it."""
    assert judge_the_program_itself(case, SIMULATED) == []


@pytest.mark.parametrize("case", cases_on(SIMULATED))
def test_on_the_simulated_device(case):
    """The program gives what it gives as written, and is replayed or not as expected."""
    assert judge(case, SIMULATED, scheduler="asap", seed=0) == []


@pytest.mark.parametrize("case", cases_on(SIMULATED, PLAIN))
def test_on_the_simulated_device_that_is_late(case):
    """It does so if the device runs everything as late as it may."""
    assert judge(case, SIMULATED, scheduler="lazy", seed=0) == []


@pytest.mark.parametrize("case", cases_on(CPU, PLAIN))
def test_on_the_cpu(case):
    """It does so where there is nothing to capture."""
    assert judge(case, CPU) == []
