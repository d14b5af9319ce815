"""A step whose gradients are differentiated is captured once no thread's records overtake the other's any more."""

from __future__ import annotations

import warnings
from itertools import count

import pytest
import torch

import gapless
from gapless.device.torch_private import next_sequence_number
from gapless.graphs.reads import gradient_order
from gapless.graphs.reads.gradient_order import RecordNumbers
from gapless.testing.simulated.simulated_device import SimulatedDevice


def runs(num, *, of_loop, of_autograd, lead):
    """Return what so many runs record, of which the loop's thread leads at first, and each so many a run."""
    return [
        RecordNumbers(
            begin=lead + of_loop * number,
            end=lead + of_loop * (number + 1),
            of_autograd=of_autograd * (number + 1),
        )
        for number in range(num)
    ]


@pytest.mark.parametrize(
    ("of_loop", "of_autograd", "lead", "settled_from"),
    [
        (46, 65, 300, 19),  # overtaken in run 16 to 18
        (46, 65, 0, 3),
        (65, 46, 300, 1),
        (65, 46, 0, 3),
        (50, 50, 300, 1),
        (50, 50, 0, None),  # side by side for ever
    ],
)
def test_it_is_settled_once_nobody_overtakes(of_loop, of_autograd, lead, settled_from):
    found = runs(40, of_loop=of_loop, of_autograd=of_autograd, lead=lead)

    settled = [now.are_settled(before) for before, now in zip([None, *found], found, strict=False)]

    expected = [settled_from is not None and number >= settled_from for number in range(40)]
    assert settled == expected


def test_what_autograd_recorded_nothing_for_is_settled():
    assert RecordNumbers(begin=3, end=9).are_settled(None)


def penalised(device, *, capture=lambda step, optimizer: step):
    """Return a step of a loop with a penalty on a gradient, which may be captured."""
    model = torch.nn.Linear(4, 1).to(device.torch_device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(x):
        x = x.detach().requires_grad_()
        (slope,) = torch.autograd.grad(model(x).sin().sum(), x, create_graph=True)
        optimizer.zero_grad()
        loss = slope.square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return capture(step, optimizer)


def take(step, device, num):
    for _ in range(num):
        step(torch.ones(2, 4).to(device.torch_device))


def captured_step(device):
    return penalised(device, capture=lambda step, _: gapless.capture(step, device=device))


def records_on_a_thread_of_its_own(monkeypatch, number):
    """Let autograd record as on a GPU: `number()` is that of its newest record."""
    monkeypatch.setattr(gradient_order, "_is_by_autograd", lambda gradient: True)
    monkeypatch.setattr(gradient_order, "sequence_number", lambda node: number())


def test_a_step_is_captured_behind_the_last_overtaking(monkeypatch):
    """On a GPU autograd's thread records nodes of its own, here 200 a run."""
    with SimulatedDevice(scheduler="asap") as device, device.allow_waits():
        usual, late = captured_step(device), captured_step(device)
        take(usual, device, 40)
        weight = torch.ones(1, requires_grad=True)
        while next_sequence_number() < 2_000:
            weight * 2
        numbers = count(next_sequence_number() - 1_000, 200)
        records_on_a_thread_of_its_own(monkeypatch, lambda: next(numbers))
        take(late, device, 40)

    assert usual.report.num_graphs == late.report.num_graphs == 1
    assert usual.report.num_eager < late.report.num_eager < 40


def test_an_order_that_does_not_settle_is_told_once(monkeypatch):
    """Here both threads are always side by side; once they are not, the step is captured after its rest."""
    with (
        SimulatedDevice(scheduler="asap") as device,
        device.allow_waits(),
        warnings.catch_warnings(record=True) as told,
    ):
        warnings.simplefilter("always")
        step = captured_step(device)
        with monkeypatch.context() as patch:
            records_on_a_thread_of_its_own(patch, next_sequence_number)
            take(step, device, 150)
            report = str(step.report)
        take(step, device, 100)

    assert "0 steps replayed, 150 ran as written" in report
    assert [one.category for one in told] == [gapless.CaptureWarning]
    for text in (report, str(told[0].message)):
        assert "a backward pass with create_graph=True" in text
        assert "gapless.capture(optimizer)" in text
    assert step.report.num_replays > 0
    assert step.report.refusals == []


def test_the_optimizer_of_such_a_step_is_captured_in_place():
    """That is what the refusal advises."""
    with SimulatedDevice(scheduler="asap") as device, device.allow_waits():
        found = []
        step = penalised(
            device,
            capture=lambda step, optimizer: (
                found.append(gapless.capture(optimizer, device=device)) or step
            ),
        )
        take(step, device, 20)

        assert gapless.capture_report(found[0]).num_replays > 0
