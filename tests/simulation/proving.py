"""Graphs that are compared with their step before they are used."""

from __future__ import annotations

import torch

from gapless.graphs.proof.device_state import DeviceState
from gapless.graphs.proof.same_results import prove
from gapless.graphs.reads.touched import TouchWatch
from simulation.registry import FEW, scenario
from simulation.workloads import read_back


class _Counting:
    """A step that adds to a tensor, and counts in Python; with a graph of it.

    Args:
        device: where it runs.
        added: by the step.
        times: what the step returns is multiplied by.
    """

    def __init__(self, device):
        self.device = device
        self.added, self.times, self.count = 1.0, 1.0, 0
        self.total = device.device_buffer(32).view(torch.float32).zero_()
        self.step()
        made = []
        self.graph = device.capture(lambda _: made.append(self.step()))
        self.made = made[0]
        self.count = 0

    def step(self):
        self.count += 1
        self.total.add_(self.added)
        return (self.total * self.times).sum()

    def replay(self):
        self.graph.replay()
        self.count += 1
        return self.made

    def reset(self):
        self.count = 0

    def prove(self, **changes):
        with TouchWatch(self.device) as seen:
            self.step()
        calls = {"replay": self.replay, "as_written": self.step, "reset": self.reset, **changes}
        self.count = 0
        return prove(self.device, DeviceState(seen.written, self.device), **calls)


def _on_a_stream(device):
    return device.use_stream(device.create_stream())


def _read_late(verdict, device):
    for _ in range(1000):
        if verdict.arrived():
            return verdict
        device.delay(device.current_stream(), 0.0)
    raise AssertionError("the verdict never arrives")


@scenario()
def a_graph_is_proved(device):
    """One step's work is left, in Python too, and the verdict arrives without a wait."""
    with _on_a_stream(device):
        work = _Counting(device)
        out, verdict = work.prove()
        found = read_back(device, work.total)
        loss = read_back(device, out)
        _read_late(verdict, device)
    assert found.tolist() == [3.0] * 8
    assert loss.item() == 24.0
    assert work.count == 1
    assert (verdict.holds, verdict.repeats, verdict.text) == (True, True, "")


@scenario()
def a_graph_that_returns_another_number(device):
    """What it returns is compared too."""
    with _on_a_stream(device):
        work = _Counting(device)
        work.times = 2.0
        _, verdict = work.prove()
        _read_late(verdict, device)
    assert (verdict.holds, verdict.repeats) == (False, True)
    assert "result 1" in verdict.text


@scenario(num_seeds=FEW)
def a_step_that_fails_while_a_graph_is_proved(device):
    """The state is as before, in Python too."""
    with _on_a_stream(device):
        work = _Counting(device)

        def fails():
            work.step()
            raise KeyError("mine")

        try:
            work.prove(as_written=fails)
        except KeyError:
            found = read_back(device, work.total)
    assert found.tolist() == [2.0] * 8
    assert work.count == 0
