"""Torch programs give the CPU's bits on the simulated device under every schedule."""

from __future__ import annotations

import pytest
import torch

from programs import functions, operators, training
from programs.registry import PROGRAMS, SCHEDULES, bits, run_on_cpu, run_on_device


assert {check.__module__ for check in PROGRAMS.values()} == {
    module.__name__ for module in (functions, operators, training)
}

# How many random numbers these take depends on values.
SERIALISED = {"random_numbers": {"rrelu_with_noise", "poisson", "binomial"}}


def as_bits(tensors):
    return [bits(tensor) for tensor in tensors]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_gives_the_cpus_bits(name):
    """Values, dtypes, shapes and the random generator equal the CPU's, without races."""
    check(name, SCHEDULES)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("number", range(0, len(PROGRAMS), 3))
def test_a_third_of_the_programs_give_them_under_one_schedule(number):
    """Each under the next one."""
    check(list(PROGRAMS)[number], [SCHEDULES[number // 3 % len(SCHEDULES)]])


def check(name, schedules):
    results, expected_state = run_on_cpu(PROGRAMS[name])
    expected = as_bits(results)
    for scheduler, seed in schedules:
        found, state, device = run_on_device(PROGRAMS[name], scheduler, seed)

        assert expected == as_bits(found), scheduler
        assert torch.equal(expected_state, state), scheduler
        assert device.report.races == []
        serialised = {operator.split(".")[1] for operator in device.report.serialised}
        assert SERIALISED.get(name, set()) == serialised
