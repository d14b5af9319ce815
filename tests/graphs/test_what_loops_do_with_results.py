"""Loops that do more with a result than read it."""

from __future__ import annotations

import pytest
import torch

import gapless
from gapless.testing import SimulatedDevice


NUM = 24


class Place:
    """Keeps something from call to call."""


def numbers(n):
    return torch.full((4,), float(n))


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


def view_of_the_batch_that_requires_gradients(wrap, device):
    step, seen = wrap(lambda x: x[1:].detach().requires_grad_()), []
    for n in range(NUM):
        view = step(numbers(n).to(device))
        view.square().sum().backward()
        seen.append(view.grad.tolist())
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


def differentiated(view):
    view.requires_grad_().square().sum().backward()
    return view.grad.tolist()


def moved(view):
    view.data = view.data.clone()
    return view.tolist()


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


@pytest.mark.quick_cases(8)
@pytest.mark.parametrize(
    "loop",
    [
        leaf_that_is_returned,
        leaf_that_is_kept_and_put,
        view_of_the_batch_that_requires_gradients,
        view_of_a_buffer(reshaped),
        view_of_a_buffer(differentiated),
        view_of_a_buffer(moved),
        pair(complex_of, torch.view_as_real, halve),
        pair(complex_of, lambda z: z.conj(), halve),
        pair(torch.exp, lambda x: x.view(torch.int32), torch.Tensor.zero_),
        bits_of_the_batch,
        reshaped_in_place(lambda x: x.unsqueeze_(0)),
        reshaped_in_place(lambda x: x.squeeze_(1)),
        reshaped_in_place(lambda x: x.transpose_(0, 2)),
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
