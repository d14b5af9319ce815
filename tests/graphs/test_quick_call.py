"""A call like the one before goes straight to its graph."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

import gapless
from gapless.graphs.quick_call import NOT_ALIKE
from gapless.testing.simulated.simulated_device import SimulatedDevice
from toy_steps import on


@pytest.fixture
def device():
    with SimulatedDevice(scheduler="asap") as device, device.allow_waits():
        yield device


def scaled(x, y=None, *, by=1.0, parts=()):
    """Return a sum that depends on every argument."""
    total = (x if y is None else x - y).sum() * by
    for number, part in enumerate(parts, start=1):
        total = total + part.sum() * number * len(str(type(parts)))
    return total


def calls(device):
    """Return calls that differ from the first in one thing each."""
    x, y = on(device, torch.arange(1.0, 5.0)), on(device, torch.ones(4))
    return [
        ((x,), {"by": 2.0}),
        ((x,), {"by": 2}),
        ((x,), {"by": 3.0}),
        ((x, y), {"by": 2.0}),
        ((x[:3],), {"by": 2.0}),
        ((x[::2],), {"by": 2.0}),
        ((x.double(),), {"by": 2.0}),
        ((x,), {"by": 2.0, "parts": (y,)}),
        ((x,), {"by": 2.0, "parts": [y]}),
        ((), {"x": x, "by": 2.0}),
    ]


def test_calls_of_all_kinds_in_turn_give_what_they_give_as_written(device):
    """Each often enough to be tried first, and the next is of another kind."""
    step = gapless.capture(scaled, device=device)
    for args, kwargs in calls(device) * 2:
        expected = scaled(*args, **kwargs).item()
        assert [step(*args, **kwargs).item() for _ in range(8)] == [expected] * 8

    assert step.report.num_graphs == len(calls(device))
    assert step.report.num_replays == 13 * len(calls(device))


def test_only_calls_like_the_one_before_are_quick(device):
    """Of others nothing is done."""
    step = gapless.capture(scaled, device=device)
    (args, kwargs), *others = calls(device)
    for _ in range(8):
        step(*args, **kwargs)
    quick_call = step._captured.fast_path.call
    expected = scaled(*args, **kwargs).item()

    assert quick_call(args, kwargs).item() == expected
    assert [quick_call(*other) for other in others] == [NOT_ALIKE] * len(others)


def test_a_call_without_arguments_is_quick(device):
    """As the update of target networks, or a loss at points that stay."""
    weight = on(device, torch.ones(3))
    step = gapless.capture(lambda: weight.mul_(2.0).sum(), device=device)
    found = [step().item() for _ in range(8)]
    quick_call = step._captured.fast_path.call

    assert [*found, quick_call((), {}).item()] == [3.0 * 2.0**number for number in range(1, 10)]
    assert quick_call((weight,), {}) is NOT_ALIKE
    with torch.inference_mode():
        assert quick_call((), {}) is NOT_ALIKE


def test_what_a_step_reads_is_compared_in_quick_calls(device):
    """As in all others."""
    factor = [2.0]
    step = gapless.capture(lambda x: x * factor[0], device=device)
    x, found = on(device, torch.ones(1)), []
    for number in range(12):
        factor[0] = 2.0 if number < 8 else 3.0
        found.append(step(x).item())

    assert found == [2.0] * 8 + [3.0] * 4


def test_a_batch_that_requires_gradients_is_no_quick_call(device):
    """Gradients of it are asked for after the call."""
    step = gapless.capture(lambda x: x * 2.0, device=device)
    x = on(device, torch.ones(1))
    for _ in range(8):
        step(x)
    step(x.clone().requires_grad_()).backward()

    assert "requires gradients" in step.report.refusal.text


def test_graphs_that_are_cleared_are_gone_at_once(device):
    """Nothing keeps them in a cycle, and no quick call is left."""
    step = gapless.capture(scaled, device=device)
    for args, kwargs in calls(device):
        for _ in range(8):
            step(*args, **kwargs)
    references = list(map(weakref.ref, step._captured.entries.graphs()))
    gc.collect()
    gc.disable()
    try:
        step.clear()

        assert [reference() for reference in references] == [None] * len(calls(device))
    finally:
        gc.enable()
