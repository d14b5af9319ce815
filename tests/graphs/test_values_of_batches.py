"""Values of the batch that runs as written read, and captures do not: each is a part of its kind."""

from __future__ import annotations

import pytest
import torch

import gapless
from gapless.testing.simulated.simulated_device import SimulatedDevice
from toy_steps import on


CALLS = 7


def padded(*rows, has_padding=True):
    """Return a mask of so many rows each, with padding or without."""
    masks = [torch.ones(num, 3) for num in rows]
    for mask in masks:
        mask[0, 1:] = 1 - has_padding
    return masks


def trained(device, masks):
    """Train on some calls of each mask; return which of them were replays, and the weights after each call."""
    weight = on(device, torch.zeros(3))

    def step(mask):
        if torch.cuda.is_current_stream_capturing() or not mask.all():
            weight.add_(mask.sum(0))
        else:
            weight.mul_(2.0)

    step, calls, weights = gapless.capture(step, device=device), [], []
    for mask in masks:
        calls.append("")
        for _ in range(CALLS):
            before = step.report.num_replays
            step(on(device, mask))
            weights.append(weight.tolist())
            calls[-1] += "r" if step.report.num_replays > before else "-"
    return calls, weights


@pytest.fixture
def device():
    with SimulatedDevice(scheduler="asap") as device, device.allow_waits():
        yield device


def test_a_value_that_code_is_known_to_read_belongs_to_further_kinds_from_their_first_run_on(
    device,
):
    """The first kind is captured twice, and watched once more in between; further ones as all others."""
    calls, _ = trained(device, padded(4, 5, 6))

    assert calls == ["-----rr", "---rrrr", "---rrrr"]


def test_each_value_of_a_further_kind_has_runs_and_a_graph_of_its_own(device):
    """A batch without padding takes no graph of one with padding, nor is it proved by it."""
    masks = [*padded(4, 5), *padded(5, has_padding=False), *padded(5)]
    calls, weights = trained(device, masks)
    expected, weight = [], torch.zeros(3)
    for mask in masks:
        for _ in range(CALLS):
            weight = 2 * weight if mask.all() else weight + mask.sum(0)
            expected.append(weight.tolist())

    assert weights == expected
    assert calls[-1] == "r" * CALLS
