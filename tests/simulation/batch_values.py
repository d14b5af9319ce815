"""Steps that read a value on the host, but not while they are captured.

What they read decides what they compute. A capture cannot see that: the value of each batch is read
before its graph is chosen.
"""

from __future__ import annotations

import torch

import gapless
from simulation.registry import scenario
from simulation.workloads import read_back


# These are about what is read, and not about order.
ONE = "asap"


def is_captured():
    return torch.cuda.is_current_stream_capturing()


def batches(device, num):
    """Return batches on the device; every third one has a value that is not positive."""
    found = [torch.full((3,), 1.0 + number) for number in range(num)]
    for number in range(2, num, 3):
        found[number][1] = 0.0
    with device.allow_waits():
        return [one.to(device.torch_device) for one in found]


@scenario()
def a_value_of_the_batch_that_captures_do_not_read_selects_the_graph(device):
    """Its wait is declared, and each of its values has a graph."""

    def step(x):
        is_other = False
        if not is_captured():
            with device.allow_waits():
                is_other = not bool((x > 0).all())
        return x.sum() * (1.0 + is_other * 0.0)

    captured = gapless.capture(step, device=device)
    found = [captured(x) for x in batches(device, 24)]
    expected = [3.0 * (number + 1) for number in range(24)]
    for number in range(2, 24, 3):
        expected[number] -= number + 1
    assert read_back(device, torch.stack(found)).tolist() == expected
    assert captured.report.num_graphs == 2
    assert captured.report.num_replays > 10
    assert len(captured.report.batch_reads) == 1


@scenario(only=ONE)
def a_value_that_is_another_one_of_every_batch_ends_capturing(device):
    """Each would need a graph of its own."""

    def step(x):
        if not is_captured():
            with device.allow_waits():
                x.sum().item()
        return x.sum()

    captured = gapless.capture(step, device=device)
    for x in batches(device, 40):
        captured(x)
    assert captured.report.num_replays == 0
    assert "reads another value of nearly every batch" in str(captured.report.refusal)


@scenario(only=ONE)
def a_value_of_the_weights_that_captures_do_not_read_ends_capturing(device):
    """Only the batch is known before a replay."""
    with device.allow_waits():
        weight = torch.ones(3).to(device.torch_device)

    def step(x):
        if not is_captured():
            with device.allow_waits():
                weight.sum().item()
        return (x * weight).sum()

    captured = gapless.capture(step, device=device)
    for x in batches(device, 8):
        captured(x)
    assert captured.report.num_replays == 0
    assert "but not while a graph is captured" in str(captured.report.refusal)
