"""Loops that change an object between steps, however the step has come to it.

Each loop is run as written and captured on the simulated device. A change that a step reads needs
another graph, or a call as written.
"""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn

import gapless
from edited_parts import Part, total
from gapless.testing import SimulatedDevice
from graphs.audits.harness import lines_of_audits


NUM = 24


class Owner:
    """Whatever the loop puts here."""

    def __init__(self, **parts):
        vars(self).update(parts)


def numbers(n):
    return torch.full((4,), float(n + 1))


def loop(step, changes):
    """Return a loop over one step: `changes` says what happens before a call, by its number."""

    def run(wrap, device):
        captured, seen = wrap(step), []
        for n in range(NUM):
            changes.get(n, lambda: None)()
            seen.append(captured(numbers(n).to(device)).item())
        return captured, seen

    return run


def is_replaced_then_edited(first, second):
    owner = Owner(part=Part())

    return loop(
        lambda x: owner.part.of(x),
        {
            first: lambda: setattr(owner, "part", Part(0.5)),
            second: lambda: setattr(owner.part, "weight", 0.05),
        },
    )


def is_added_then_edited():
    parts = [Part()]
    return loop(
        lambda x: sum(part.of(x) for part in parts),
        {8: lambda: parts.append(Part()), 16: lambda: setattr(parts[1], "weight", 2.0)},
    )


def comes_from_a_generator(sum_of):
    parts = [Part(), Part()]

    def active():
        for part in parts:
            if part.weight > 0:
                yield part

    return loop(lambda x: x.sum() * sum_of(active), {10: lambda: setattr(parts[1], "weight", 4.0)})


def is_one_of_many():
    parts = [Part() for _ in range(2000)]
    return loop(
        lambda x: x.sum() * total(parts), {10: lambda: setattr(parts[1999], "weight", 9.0)}
    )


def is_a_function(look_up):
    def scaled(x):
        return x.sum()

    scaled.weight = 1.0

    def step(x):
        function = look_up(scaled)
        return function(x) * function.weight

    return loop(step, {10: lambda: setattr(scaled, "weight", 3.0)})


def is_a_parameter():
    model = nn.Linear(4, 4)
    for parameter in model.parameters():
        parameter.factor = 1.0

    def factor_of(parameter):
        return parameter.factor

    return loop(
        lambda x: x.sum() * sum(factor_of(one) for one in model.parameters()),
        {10: lambda: setattr(model.bias, "factor", 3.0)},
    )


def grows(container, sum_of, change):
    def run(wrap, device):
        model = nn.Module()
        model.parts = container(device)
        step, seen = wrap(lambda x: (x * sum_of(model.parts)).sum().detach()), []
        for n in range(NUM):
            if n == 10:
                change(model.parts, nn.Parameter(numbers(4).to(device)))
            seen.append(step(numbers(n).to(device)).item())
        return step, seen

    return run


def one_parameter(device):
    return [nn.Parameter(numbers(1).to(device))]


def registered(module, parameter):
    module.register_parameter("late", parameter)


def buffered(module, parameter):
    module.register_buffer("late", parameter.detach())


def plain_module(device):
    module = nn.Module()
    module.early = one_parameter(device)[0]
    module.register_buffer("first", numbers(2).to(device))
    return module


def is_cached(changes_source):
    source = Owner(weight=2.0)

    @functools.cache
    def weight():
        return source.weight

    def change():
        source.weight = 5.0
        if not changes_source:
            weight.cache_clear()

    return loop(lambda x: x.sum() * weight(), {10: change, 16: weight.cache_clear})


def prototypes_of_an_epoch(wrap, device):
    """Tensors are made once an epoch, by a function that keeps its result."""
    model = nn.Linear(4, 4).to(device)
    with torch.no_grad():
        model.weight.fill_(0.5)
        model.bias.zero_()

    @functools.cache
    def prototypes():
        return model(torch.ones(4).to(device)).detach()

    def train(x):
        with torch.no_grad():
            model.weight.mul_(0.9)
        return (x - prototypes()).sum()

    step, seen = wrap(train), []
    for _ in range(3):
        prototypes.cache_clear()
        seen += [step(numbers(n).to(device)).item() for n in range(8)]
    return step, seen


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize(
    "make",
    [
        lambda: is_replaced_then_edited(8, 16),
        is_added_then_edited,
        lambda: comes_from_a_generator(lambda active: sum(part.weight for part in active())),
        is_one_of_many,
        lambda: is_a_function(lambda function: function),
        is_a_parameter,
        lambda: grows(lambda device: nn.ParameterList(one_parameter(device)), sum, nn.ParameterList.append),
        lambda: grows(lambda device: nn.ParameterDict({"a": one_parameter(device)[0]}), lambda parts: sum(parts.values()), lambda parts, late: parts.update({"b": late})),
        lambda: grows(plain_module, lambda module: sum(module.parameters()), registered),
        lambda: grows(plain_module, lambda module: sum(module.buffers()), buffered),
        lambda: is_cached(changes_source=False),
    ],
)  # fmt: skip
def test_a_loop_that_changes_what_is_read_computes_what_it_did(make):
    """By another graph, or as written."""
    with SimulatedDevice(scheduler="asap") as device, device.allow_waits():
        _, expected = make()(lambda step: step, device.torch_device)
    with SimulatedDevice(scheduler="asap") as device, device.allow_waits():
        step, seen = make()(lambda one: gapless.capture(one, device=device), device.torch_device)

    assert seen == expected
    assert step.report.num_replays, step.report


@pytest.mark.parametrize(
    "make", [lambda: is_cached(changes_source=True), lambda: prototypes_of_an_epoch]
)
def test_audits_tell_of_what_a_cache_keeps(make):
    """No guard looks into the cache of a function."""
    capture = functools.partial(gapless.capture, audit_every=1)
    with SimulatedDevice(scheduler="asap") as device, device.allow_waits():
        _, expected = make()(lambda step: step, device.torch_device)
    with SimulatedDevice(scheduler="asap") as device, device.allow_waits():
        step, seen = make()(functools.partial(capture, device=device), device.torch_device)

    assert seen == expected
    assert lines_of_audits(str(step.report)) or step.report.refusals


def test_what_changed_most_often_is_named_as_the_reason():
    """A flag that changes once is not why graphs do not last."""
    owner = Owner(flag=0.0, epoch=0)
    with SimulatedDevice(scheduler="asap") as device, device.allow_waits():
        step = gapless.capture(lambda x: x.sum() * owner.epoch + owner.flag, device=device)
        for n in range(16):
            owner.epoch = min(n // 3, 3)
            owner.flag = float(n >= 12)
            step(numbers(n).to(device.torch_device))

    assert (
        "owner.epoch" in str(step.report).partition("no further graph")[2].partition("changed:")[0]
    )
