"""Modules whose replays are compared with calls as written, and what is let go of.

How long a call takes is made up: the device is kept busy behind each, for longer where it was a
replay. Whichever way a call runs, values have to be those of the loop on the host.
"""

from __future__ import annotations

import gc
from contextlib import contextmanager

import torch

import gapless
from gapless.graphs import call_windows
from gapless.records.replay_times import NUM_PAIRS
from inner_doors import memory_fraction
from simulation.in_place import Scaled
from simulation.registry import VERY_FEW, scenario
from simulation.workloads import read_back
from toy_steps import on


# These are about times and counts, and not about order.
ONE = "asap"

# Replays before a comparison, and calls of a window: fewer than usual.
FEW_BEFORE, FEW_IN_WINDOW = 6, 3

# Enough for replays to be given up, and for some calls after it: a pair of windows is read some
# calls later.
ENOUGH = 3 + FEW_BEFORE + NUM_PAIRS * (2 * FEW_IN_WINDOW + 2) + 10


@contextmanager
def compared_soon():
    """Let comparisons within the body begin and end soon."""
    usual = call_windows.NUM_BEFORE, call_windows.NUM_IN_WINDOW
    call_windows.NUM_BEFORE, call_windows.NUM_IN_WINDOW = FEW_BEFORE, FEW_IN_WINDOW
    try:
        yield
    finally:
        call_windows.NUM_BEFORE, call_windows.NUM_IN_WINDOW = usual


class Loop:
    """Trains a model whose replays take longer than its calls as written.

    Args:
        device: None for the host.
        reads_losses: after each step, which is a wait; else the device may be late.
        settings: of the capture.
    """

    def __init__(self, device, *, reads_losses=True, **settings):
        torch.manual_seed(0)
        self.reads_losses = reads_losses
        self.device, self.losses, self.were_replays = device, [], []
        self.model = Scaled()
        for tensor in [*self.model.parameters(), *self.model.buffers()]:
            tensor.data = on(device, tensor.data)
        if device is not None:
            gapless.capture(self.model, device=device, **settings)

    @property
    def report(self):
        return gapless.capture_report(self.model)

    def train(self, num, *, rows=4):
        """Train so many times, on batches that are on the device before."""
        for x in self.batches(num, rows=rows):
            self.step(x)

    def batches(self, num, *, rows=4):
        found = []
        for number in range(len(self.losses), len(self.losses) + num):
            draw = torch.Generator().manual_seed(number)
            found.append(on(self.device, torch.randn(rows, 3, generator=draw)))
        return found

    def step(self, x):
        # Each call draws what it drops.
        torch.manual_seed(len(self.losses))
        loss = self.call(x).square().sum()
        loss.backward()
        self.losses.append(loss.detach())
        if self.reads_losses:
            loss.item()
        weight = self.model.weight
        with torch.no_grad():
            weight -= 0.1 * weight.grad
        weight.grad = None

    def call(self, x):
        if self.device is None:
            return self.model(x)
        before = self.report.num_replays
        out = self.model(x)
        self.were_replays.append(self.report.num_replays > before)
        busy_ms = 3.0 if self.were_replays[-1] else 2.0
        self.device.delay(self.device.current_stream(), busy_ms)
        return out

    def values(self):
        """Return all losses, and the weights and buffers now."""
        found = [*self.losses, *self.model.parameters(), *self.model.buffers()]
        if self.device is None:
            return [one.tolist() for one in found]
        return [read_back(self.device, one.detach()).tolist() for one in found]


def expected(num):
    plain = Loop(None)
    plain.train(num)
    return plain.values()


def is_given_up(loop):
    kinds = [refusal.kind for refusal in loop.report.refusals]
    return kinds == ["does_not_pay"] and not any(loop.were_replays[-5:])


# --- replays that do not pay ---


class TimedEvents:
    """How many events that can be timed a device makes, while it is entered.

    Attributes:
        num: made so far.
    """

    def __init__(self, device):
        self._device = device
        self.num = 0

    def __enter__(self):
        create = self._device.create_event

        def create_event(*, timed=False):
            self.num += timed
            return create(timed=timed)

        self._device.create_event = create_event
        return self

    def __exit__(self, *error):
        del self._device.create_event


@scenario(only=ONE)
def a_module_whose_replays_do_not_pay(device):
    """Its report says so with both times, and all pairs of windows have the same events."""
    with device.allow_waits(), compared_soon(), TimedEvents(device) as events:
        loop = Loop(device)
        loop.train(ENOUGH)
        assert loop.values() == expected(ENOUGH)
    assert is_given_up(loop), str(loop.report)
    assert "3.000 ms with replays and 2.000 ms as written" in str(loop.report)
    # The starts of the calls of two windows, and of the call behind them.
    assert events.num == 2 * FEW_IN_WINDOW + 1


@scenario(only="random", num_seeds=VERY_FEW)
def a_module_whose_replays_are_compared_on_a_late_device(device):
    """Times are read when the device has come so far, without a wait."""
    num = 3 * ENOUGH
    with device.allow_waits():
        loop = Loop(device, reads_losses=False)
        batches = loop.batches(num)
    with compared_soon():
        for x in batches:
            loop.step(x)
    with device.allow_waits():
        assert loop.values() == expected(num)
    assert is_given_up(loop), str(loop.report)


@scenario(only=ONE)
def two_modules_whose_replays_are_compared_in_turn(device):
    """The second has its turn as soon as the first has come to an end."""
    num = 2 * ENOUGH
    with device.allow_waits(), compared_soon():
        first, second = Loop(device), Loop(device)
        for x in first.batches(num):
            first.step(x)
            second.step(x)
        assert first.values() == second.values() == expected(num)
    assert is_given_up(first), str(first.report)
    assert is_given_up(second), str(second.report)


# --- memory ---


@scenario(only=ONE)
def a_module_without_memory_beside_its_graph(device):
    """A call as written has activations of its own, so there is none to compare with."""
    fraction = (device.reserved_memory_bytes() + 20_000) / device.total_memory_bytes()
    with device.allow_waits(), compared_soon():
        with memory_fraction(fraction):
            loop = Loop(device)
        loop.train(6)
        filled = torch.zeros(30_000, dtype=torch.uint8, device=device.torch_device)
        loop.train(ENOUGH)
        assert loop.values() == expected(6 + ENOUGH)
    assert filled.numel()
    assert loop.were_replays == [False] * 3 + [True] * (3 + ENOUGH)


@scenario(only=ONE)
def a_module_with_two_limits_of_its_graphs(device):
    """Of their number, and of the memory of the process."""
    with device.allow_waits():
        few = Loop(device, max_graphs=1)
        few.train(6)
        few.train(6, rows=5)
        fraction = device.reserved_memory_bytes() / device.total_memory_bytes()
        with memory_fraction(fraction):
            small = Loop(device)
        small.train(6)
    assert few.were_replays == [False] * 3 + [True] * 3 + [False] * 6
    assert [refusal.kind for refusal in few.report.refusals] == ["graph_limit"]
    assert not any(small.were_replays)
    assert [refusal.kind for refusal in small.report.refusals] == ["memory_budget"]


@scenario(only=ONE)
def a_module_that_is_released(device):
    """Its memory is given back at once, also what is known of its calls."""
    with device.allow_waits():
        loop = Loop(device)
        loop.train(2)
        gapless.release(loop.model)
        gc.collect()
        before = device.reserved_memory_bytes()
        gapless.capture(loop.model, device=device)
        gc.disable()
        try:
            loop.train(8)
            gapless.release(loop.model)
            after = device.reserved_memory_bytes()
        finally:
            gc.enable()
    # The losses of the loop stay, a block of 512 bytes each.
    assert after <= before + 8 * 512
