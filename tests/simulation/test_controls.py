"""Loops with a known bug are caught in every run; their cures, and gapless, in none."""

from __future__ import annotations

import pytest

import gapless
from gapless import testing
from simulation import controls


NUM_RUNS = 20
SIZES = {"num_batches": 6, "num_elements": 16}


def simulate_prefetcher(make):
    def check(device):
        findings = testing.check_prefetcher(make, device=device, **SIZES)
        assert not findings, findings

    return testing.simulate(check, seeds=NUM_RUNS - 2)


def simulate_reader(make):
    def check(device):
        findings = testing.check_readback(make, device=device)
        assert not findings, findings

    return testing.simulate(check, seeds=NUM_RUNS - 2)


@pytest.mark.parametrize("bug", controls.BROKEN_PREFETCHERS)
def test_the_checker_catches_a_broken_prefetcher(bug):
    """All of 20 schedules are reported as races, and some show it in the values: no false alarm."""
    result = simulate_prefetcher(controls.BROKEN_PREFETCHERS[bug])

    assert result.num_runs == NUM_RUNS
    assert sum(failure.races is not None for failure in result.failures) == NUM_RUNS
    assert any(failure.error is not None for failure in result.failures)


def test_the_checker_catches_a_loss_read_before_its_event():
    """All of 20 schedules are reported, with the line of the read."""
    result = simulate_reader(controls.EarlyRead)

    assert sum(failure.races is not None for failure in result.failures) == NUM_RUNS
    assert "host reads it in Tensor.tolist at controls.py" in result.failures[0].races


@pytest.mark.parametrize("cure", controls.CURED_PREFETCHERS)
def test_a_cured_prefetcher_is_clean(cure):
    """With the edge put back nothing is reported in 20 schedules."""
    result = simulate_prefetcher(controls.CURED_PREFETCHERS[cure])

    assert not result.failures, result


def test_a_cured_reader_is_clean():
    """A reader that waits for its copy is not reported."""
    result = simulate_reader(controls.Read)

    assert not result.failures, result


@pytest.mark.parametrize("depth", [0, 1, 2, 4])
def test_gapless_is_clean(depth):
    """gapless.prefetch has no finding in 20 schedules."""
    result = simulate_prefetcher(
        lambda loader, device: gapless.prefetch(loader, device, depth=depth)
    )

    assert not result.failures, result
    assert result.num_accesses > 2_000


def test_the_deferred_loss_is_clean():
    """DeferredLoss has no finding in 20 schedules."""
    result = simulate_reader(controls.DeferredLossReader)

    assert not result.failures, result
