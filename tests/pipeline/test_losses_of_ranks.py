"""Losses of several ranks: gathered on the device whenever they are flushed."""

from __future__ import annotations

import pytest
import torch

from gapless.pipeline.host_waits import HostWaits
from gapless.pipeline.readback import DeferredLoss
from gapless.testing.simulated.simulated_device import SimulatedDevice


class Ranks:
    """Two ranks, of which the other has twice the values and three times the weights."""

    world = 2

    def __init__(self):
        self.num_gathered = []

    def gather_rows(self, rows):
        self.num_gathered.append(len(rows))
        return torch.stack((rows, rows * rows.new_tensor([2.0, 3.0])))


@pytest.fixture(params=["asap", "lazy"])
def device(request):
    with SimulatedDevice(scheduler=request.param) as device, device.allow_waits():
        yield device
        assert not device.report.races


def on(device, value):
    return device.device_buffer(4).view(torch.float32)[0].fill_(value)


def test_rows_are_gathered_where_they_are_flushed(device):
    """Beyond the end of the ring as well, and those of numbers that were on the host."""
    ranks = Ranks()
    losses = DeferredLoss(device, ranks=ranks)
    for number in range(1500):
        loss = on(device, number) if number % 2 else float(number)
        losses.add(loss, weight=4.0)
    losses.drain()

    assert losses.history == [number * (1 + 2 * 3) / 4 for number in range(1500)]
    assert losses.weights == [16.0] * 1500
    assert ranks.num_gathered == [512, 512, 476]


def test_rows_of_several_streams_are_gathered_together(device):
    """The gathering waits for each of them."""
    ranks = Ranks()
    losses = DeferredLoss(device, ranks=ranks)
    for number in range(6):
        with device.use_stream(device.shared_stream(f"test {number % 3}")):
            losses.add(on(device, number))
    losses.drain()

    assert losses.history == [number * (1 + 2 * 3) / 4 for number in range(6)]
    assert ranks.num_gathered == [6]


def test_what_comes_when_it_may_gathers_nothing(device):
    """A look at the newest loss, and a wait for those that are flushed, happen on one rank alone."""
    ranks = Ranks()
    losses = DeferredLoss(device, ranks=ranks)
    losses.add(on(device, 1.0))
    before = losses.latest()
    losses.flush()
    losses.add(on(device, 2.0))
    losses.wait_for_flushed()
    HostWaits(device).wait_stream(device.current_stream(), reason="test")

    assert before is None
    assert losses.latest().step == 0
    assert losses.history == [7 / 4]
    assert ranks.num_gathered == [1]
