"""Loops that ask whether two tensors are the same one, or do more with a result than read it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch

import gapless
from gapless.testing import SimulatedDevice


NUM = 24


class Place:
    """Keeps something from call to call."""


def numbers(n):
    return torch.full((4,), float(n))


def is_the_anchor(wrap, device):
    """The loop passes the anchor itself at times."""
    place = Place()
    place.anchor = torch.ones(4).to(device)

    def step(x):
        if x is place.anchor:
            return x.square().sum()
        return (x - place.anchor).square().sum()

    step, seen = wrap(step), []
    for n in range(NUM):
        x = place.anchor if n > 7 and n % 2 else numbers(n).to(device)
        seen.append(step(x).item())
    return step, seen


def is_a_key(look_up):
    """The step looks a tensor of its batch up, as by what it is."""

    def loop(wrap, device):
        anchor = torch.ones(4).to(device)
        factors, members = {anchor: 5.0}, {anchor}

        def step(x):
            return x.sum() * look_up(x, factors, members)

        step, seen = wrap(step), []
        for n in range(NUM):
            x = anchor if n > 7 and n % 2 else numbers(n).to(device)
            seen.append(step(x).item())
        return step, seen

    return loop


def is_a_weight(wrap, device):
    weight = torch.ones(4).to(device)

    def step(x, values):
        return (x * values).sum() + (10.0 if values is weight else 0.0)

    step, seen = wrap(step), []
    for n in range(NUM):
        values = weight if n > 7 and n % 2 else weight.clone()
        seen.append(step(numbers(n).to(device), values).item())
    return step, seen


def is_the_batch_before(first, every):
    """Noise is drawn once for a batch that the loop gives several times."""

    def loop(wrap, device):
        place = Place()
        place.x = place.noise = None
        torch.manual_seed(5)

        def step(x):
            if place.x is not x:
                place.x, place.noise = x, torch.rand_like(x)
            return (x + place.noise).sum()

        step, seen, x = wrap(step), [], None
        for n in range(NUM):
            if n < first or n % every == 0:
                x = numbers(n).to(device)
            seen.append(step(x).item())
        return step, seen

    return loop


def is_what_was_kept(wrap, device):
    place = Place()
    place.x = torch.zeros(4).to(device)

    def step(x):
        out = (x * 10).sum() if place.x is x else (x - place.x).sum()
        place.x = x
        return out

    step, seen, x = wrap(step), [], None
    for n in range(NUM):
        if n < 8 or n % 3 == 0:
            x = numbers(n).to(device)
        seen.append(step(x).item())
    return step, seen


def is_the_first_state(wrap, device):
    """The loop begins a sequence anew with the first state, as it knows it."""
    place = Place()
    place.first = place.state = torch.ones(4).to(device)

    def step(x):
        begins = place.state is place.first
        place.state = torch.tanh(place.state + x)
        return place.state.sum() * (2.0 if begins else 1.0)

    step, seen = wrap(step), []
    for n in range(NUM):
        if n % 6 == 5:
            place.state = place.first
        seen.append(step(numbers(n).to(device)).item())
    return step, seen


def leaf_that_is_returned(wrap, device):
    """The loop goes on from it: its gradient arrives there."""
    torch.manual_seed(5)
    head = torch.nn.Linear(4, 3).to(device)

    def step(x):
        return torch.tanh(x).detach().requires_grad_()

    step, seen = wrap(step), []
    for n in range(NUM):
        codes = step(numbers(n).to(device))
        head(codes).sum().backward()
        seen.append((codes.is_leaf, codes.grad.tolist()))
    return step, seen


def leaf_that_is_kept_and_put(wrap, device):
    place = Place()
    place.codes = torch.zeros(4).to(device)

    def step(batch):
        place.codes = (batch["x"] * 2).detach().requires_grad_()
        batch["codes"] = (batch["x"] * 3).detach().requires_grad_()
        return batch["x"].sum()

    step, seen = wrap(step), []
    for n in range(NUM):
        batch = {"x": numbers(n).to(device)}
        step(batch)
        (place.codes.square().sum() + batch["codes"].square().sum()).backward()
        seen.append((place.codes.grad.tolist(), batch["codes"].grad.tolist()))
    return step, seen


def view_of_a_buffer(change):
    """It is a new tensor in each call: what the loop does to one is not done to the next."""

    def loop(wrap, device):
        buffer = torch.ones(3, 4).to(device)

        def step(x):
            buffer.add_(x)
            return buffer[0]

        step, seen, views = wrap(step), [], []
        for n in range(NUM):
            views.append(step(numbers(n).to(device)))
            seen.append(change(views[-1]))
        return step, [*seen, [view.tolist() for view in views]]

    return loop


def reshaped(view):
    return tuple(view.unsqueeze_(0).shape)


def pair(one, other, change):
    """The loop writes into one of two results, or parts, that share memory."""

    def loop(wrap, device):
        def step(x):
            made = one(x)
            return made, other(made)

        step, seen = wrap(step), []
        for n in range(NUM):
            x = numbers(n + 1).to(device)
            first, second = step(x)
            change(second)
            seen.append(
                [torch.view_as_real(first).tolist() if first.is_complex() else first.tolist()]
            )
        return step, seen

    return loop


def complex_of(x):
    return torch.complex(x, x * 2)


def halve(tensor):
    tensor.mul_(0.5)


def bits_of_the_batch(wrap, device):
    step, seen = wrap(lambda x: x.view(torch.int32)), []
    for n in range(NUM):
        x = numbers(n + 1).to(device)
        step(x)[0] = 0
        seen.append(x.tolist())
    return step, seen


def reshaped_in_place(change):
    def loop(wrap, device):
        step, seen = wrap(lambda x: change(x).sum(0)), []
        for n in range(NUM):
            x = numbers(n).reshape(4, 1, 1).to(device)
            seen.append((step(x).tolist(), tuple(x.shape)))
        return step, seen

    return loop


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize(
    "loop",
    [
        is_the_anchor,
        is_a_key(lambda x, factors, _: factors.get(x, 2.0)),
        is_a_weight,
        is_the_batch_before(8, 3),
        is_what_was_kept,
        is_the_first_state,
        leaf_that_is_returned,
        leaf_that_is_kept_and_put,
        view_of_a_buffer(reshaped),
        pair(complex_of, torch.view_as_real, halve),
        bits_of_the_batch,
        reshaped_in_place(lambda x: x.unsqueeze_(0)),
        reshaped_in_place(lambda x: x.resize_(2, 2)),
    ],
)
def test_a_loop_sees_what_it_saw(loop):
    """By graphs, or as written."""
    with SimulatedDevice(scheduler="asap") as device, device.allow_waits():
        _, expected = loop(lambda step: step, device.torch_device)
    with SimulatedDevice(scheduler="asap") as device, device.allow_waits():
        step, seen = loop(lambda one: gapless.capture(one, device=device), device.torch_device)

    assert seen == expected
    report = step.report
    assert report.num_replays or report.refusals, report


@dataclass
class Tokens:
    """A batch with a field."""

    src: torch.Tensor


class Pair(NamedTuple):
    src: torch.Tensor
    weight: torch.Tensor


@pytest.mark.parametrize("lengths", [[3], [3, 5, 3, 5, 7]], ids=str)
@pytest.mark.parametrize(
    "batch_of",
    [
        lambda x: x,
        lambda x: {"src": x},
        lambda x: Pair(x, x + 1),
        Tokens,
        lambda x: {"both": [Tokens(x), Tokens(x * 2)]},
    ],
)
def test_batches_that_come_again_are_no_other_way_to_their_tensors(batch_of, lengths):
    """Of a list that is trained on again and again, or of one batch that is to be learned by heart."""
    mask = torch.ones(1)

    def source_of(batch):
        while not isinstance(batch, torch.Tensor):
            batch = batch.src if isinstance(batch, Tokens) else next(iter(items_of(batch)))
        return batch

    def items_of(batch):
        return batch.values() if isinstance(batch, dict) else batch

    def loss_of(batch, given):
        source = source_of(batch)
        return source.sum() * (2.0 if source is given else 1.0)

    with SimulatedDevice(scheduler="asap") as device, device.allow_waits():
        step = gapless.capture(lambda batch: loss_of(batch, mask), device=device)
        batches = [
            batch_of(torch.full((n, 4), float(at)).to(device.torch_device))
            for at, n in enumerate(lengths)
        ]
        seen = [step(batch).item() for _ in range(8) for batch in batches]

    assert seen == [4.0 * n * at for at, n in enumerate(lengths)] * 8
    assert not step.report.refusals
    assert step.report.num_replays >= len(seen) - 3 * len(set(lengths))
