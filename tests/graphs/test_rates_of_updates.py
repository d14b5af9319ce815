"""Optimizers in place whose rate changes at every step: graphs that are cut where they take it, and their audits."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch.optim import SGD, Adam, AdamW
from torch.optim.lr_scheduler import ExponentialLR

import gapless
from gapless.testing.simulated.simulated_device import SimulatedDevice
from optimizer_loops import OptimizerLoop, both, both_scaled


@pytest.fixture
def device():
    with SimulatedDevice(scheduler="lazy") as device, device.allow_waits():
        yield device
    assert device.report.races == []


adamw = partial(AdamW, lr=0.1, fused=True)
foreach_adam = partial(Adam, lr=0.1, foreach=True, amsgrad=True)
momentum = partial(SGD, lr=0.1, momentum=0.9, foreach=True)

# Each with other operations.
KINDS = {
    "AdamW, fused": adamw,
    "Adam, fused": partial(
        Adam, lr=0.1, fused=True, amsgrad=True, maximize=True, weight_decay=0.1
    ),
    "AdamW, foreach": partial(AdamW, lr=0.1, foreach=True),
    "Adam, foreach": partial(foreach_adam, weight_decay=0.1),
    "Adam, foreach, maximize": partial(foreach_adam, weight_decay=0.1, maximize=True),
    "SGD": partial(SGD, lr=0.1, foreach=True),
    "SGD, momentum": momentum,
    "SGD, all": partial(momentum, weight_decay=0.1, nesterov=True, maximize=True),
    "SGD, dampening": partial(momentum, weight_decay=0.1, dampening=0.5),
    "SGD, fused": partial(SGD, lr=0.1, momentum=0.9, weight_decay=0.1, fused=True),
    "RMSprop": partial(torch.optim.RMSprop, lr=0.1, foreach=True),
}


def assert_equal(report, *, every):
    """Audits came, and none found a difference."""
    audits = report.audits
    assert audits.differences == []
    assert report.refusals == []
    assert 1 < audits.num <= audits.num_equal + 1
    if every == 1:
        assert report.num_replays == 0


@pytest.mark.parametrize("every", [None, 1, 3])
@pytest.mark.parametrize("name", KINDS)
def test_the_bits_are_those_of_the_rate_of_each_step(device, name, every):
    """Weights, gradients, state and counts on the host; the first change costs one graph at most."""
    options = {} if every is None else {"audit_every": every}
    loop = both(device, KINDS[name], partial(OptimizerLoop.run, num=24, rate=0.9), **options)

    report = loop.report
    assert report.num_graphs <= 2
    assert report.num_replays > 8 or every is not None
    if every is not None:
        assert_equal(report, every=every)


@pytest.mark.parametrize("make", [adamw, momentum])
def test_a_rate_that_changes_late(device, make):
    """A few times one after the other, and no more then."""

    def play(loop):
        loop.run(8)
        loop.run(8, rate=0.5)
        loop.run(8)

    loop = both(device, make, play)

    assert (loop.report.num_graphs, loop.report.refusals) == (2, [])
    assert loop.report.num_replays >= 12


def test_a_decay_that_changes_and_one_that_is_zero(device):
    """Decoupled decay is read anew; where it is zero its operation is left out, which takes another graph."""

    def play(loop):
        group = loop.optimizer.param_groups[0]
        for number in range(40):
            group["weight_decay"] = 0.0 if number < 16 else 0.01 * number
            loop.run(1, rate=0.9)

    loop = both(device, partial(AdamW, lr=0.1, foreach=True, weight_decay=0.0), play)

    assert (loop.report.num_graphs, loop.report.refusals) == (2, [])
    assert loop.report.num_replays > 20


@pytest.mark.parametrize("make", [foreach_adam, momentum])
def test_numbers_that_a_graph_bakes_in(device, make):
    """A schedule of them refuses the update, by their name."""

    def play(loop):
        for _ in range(24):
            group = loop.optimizer.param_groups[0]
            if "betas" in group:
                group["betas"] = (group["betas"][0] * 0.99, 0.999)
            else:
                group["momentum"] *= 0.99
            loop.run(1)

    with pytest.warns(gapless.CaptureWarning, match="betas|momentum"):
        loop = both(device, make, play)

    assert loop.report.num_replays == 0


@pytest.mark.parametrize("make", [foreach_adam, momentum])
def test_sets_of_weights_in_turns(device, make):
    """Each has a graph."""

    def play(loop):
        first = loop.weights[0]
        for number in range(40):
            first.requires_grad_(number % 3 != 2)
            loop.count += 1
            for weight in loop.weights:
                weight.grad = torch.full_like(weight, loop.count) if weight.requires_grad else None
            loop.optimizer.step()
            loop.optimizer.param_groups[0]["lr"] *= 0.9
            loop.values.append([weight.tolist() for weight in loop.weights])

    loop = both(device, make, play)

    assert loop.report.num_replays > 20


@pytest.mark.parametrize("rate", [0.9, 1.0])
@pytest.mark.parametrize("every", [1, 3])
def test_a_gradient_scaler(device, every, rate):
    """Its tables and the gradients that the update unscales are as written; also after an overflow."""

    loop = both_scaled(device, adamw, 16, overflow=11, rate=rate, audit_every=every)

    assert_equal(loop.report, every=every)


@pytest.mark.parametrize("make", [adamw, foreach_adam])
def test_a_scheduler_is_called_once(device, make, recwarn):
    """It counts the steps that it sees."""
    loop = OptimizerLoop(device, make, audit_every=2)
    scheduler = ExponentialLR(loop.optimizer, 0.9)
    for _ in range(16):
        loop.run(1)
        scheduler.step()

    assert_equal(loop.report, every=2)
    assert [str(one.message) for one in recwarn] == []


@pytest.mark.parametrize("make", [momentum, foreach_adam])
def test_a_step_that_fails_fails_as_written(device, make):
    """In an audit too, and behind it the loop goes on."""

    def play(loop):
        loop.run(12, rate=0.9)
        weight = loop.weights[0]
        broken = loop.optimizer.state[weight]
        name = next(iter(broken.keys() - {"step"}))
        kept, broken[name] = broken[name], broken[name][:1].clone()
        with pytest.raises(RuntimeError):
            loop.run(1)
        broken[name] = kept
        loop.run(12, rate=0.9)

    loop = OptimizerLoop(device, make, audit_every=1)
    play(loop)

    assert loop.report.audits.differences == []
    assert loop.report.audits.num_equal > 4
