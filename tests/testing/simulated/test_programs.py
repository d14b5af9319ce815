"""Torch programs give the CPU's bits on the simulated device under every schedule."""

from __future__ import annotations

import functools

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


@functools.cache
def expected(name):
    results, state = run_on_cpu(PROGRAMS[name])
    return as_bits(results), state


def under_each_schedule():
    """Return each program under each schedule, of which `make test` runs one in turn."""
    return [
        pytest.param(
            name,
            *schedule,
            id=f"{name}-{schedule[0]}-{schedule[1]}",
            marks=[] if place % len(SCHEDULES) == number else [pytest.mark.slow],
        )
        for place, name in enumerate(PROGRAMS)
        for number, schedule in enumerate(SCHEDULES)
    ]


@pytest.mark.quick_cases(15)
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("name", "scheduler", "seed"), under_each_schedule())
def test_a_program_gives_the_cpus_bits(name, scheduler, seed):
    """Values, dtypes, shapes and the random generator equal the CPU's, without races."""
    results, state = expected(name)

    found, found_state, device = run_on_device(PROGRAMS[name], scheduler, seed)

    assert results == as_bits(found)
    assert torch.equal(state, found_state)
    assert device.report.races == []
    serialised = {operator.split(".")[1] for operator in device.report.serialised}
    assert SERIALISED.get(name, set()) == serialised
