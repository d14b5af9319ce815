"""Losses that are read late, each exactly once."""

from __future__ import annotations

import gc
import math
import weakref
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

import gapless
from gapless.pipeline.readback import DeferredLoss
from late_device import LateDevice


numbers = st.floats(-1e6, 1e6, width=32)
weights = st.floats(0.5, 1e4, width=32)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(numbers, weights), min_size=1, max_size=40))
def test_the_mean_is_the_correctly_rounded_weighted_mean(rows):
    """The mean is exact but for its last rounding."""
    losses = gapless.DeferredLoss("cpu")
    for loss, weight in rows:
        losses.add(torch.tensor(loss), weight=weight)

    total = sum(Fraction(loss) * Fraction(weight) for loss, weight in rows)
    expected = float(total / sum(Fraction(weight) for _, weight in rows))
    assert math.isclose(expected, losses.mean(), rel_tol=1e-12, abs_tol=1e-6)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.sampled_from(["add", "flush", "poll", "drain", "many"]), max_size=30))
def test_every_loss_is_read_once_in_order(actions):
    """Whatever the order of adding and reading, the history is that of the losses."""
    losses = gapless.DeferredLoss("cpu")
    added = 0
    for action in actions:
        count = {"add": 1, "many": 700}.get(action, 0)
        for _ in range(count):
            losses.add(torch.tensor(float(added)))
            added += 1
        if not count:
            getattr(losses, action)()
        assert losses.history == [float(n) for n in range(len(losses.history))]
    losses.drain()

    assert [float(n) for n in range(added)] == losses.history


@pytest.mark.parametrize(
    ("loss", "found"),
    [
        (None, "is None"),
        (1.5, "is a float"),
        (torch.zeros(4), r"is a tensor of shape \(4,\) and torch.float32"),
        ((torch.zeros(()), 1), "is a tuple"),
        (torch.tensor(1j), r"is a tensor of shape \(\) and torch.complex64"),
    ],
)
@pytest.mark.parametrize("plan", ["blocking", "gapless"])
def test_what_is_no_loss_is_named(plan, loss, found):
    """A step that returns something else is told what it returned, in one line."""
    with pytest.raises(gapless.LossError, match=f"one number, but {found}; let the step return"):
        gapless.run_epoch([torch.zeros(1)], lambda batch: loss, plan=plan, device="cpu")


class Parts:
    """A step in two parts whose first one returns the loss itself."""

    def __init__(self):
        self.seen = []

    def forward(self, batch):
        return batch.sum()

    def backward(self, out):
        self.seen.append(out)


@pytest.mark.parametrize("plan", ["gapless", "four-stream"])
def test_the_first_part_of_a_step_may_return_the_loss_itself(plan):
    """With both parts on one stream, and on two."""
    parts = Parts()

    result = gapless.run_epoch([torch.full((2,), 1.5)] * 3, parts, plan=plan, device="cpu")

    assert result.losses == [3.0] * 3
    assert [float(out) for out in parts.seen] == [3.0] * 3


def test_what_is_no_weight_is_named():
    """Numbers of any kind weigh, and tensors with one number; nothing else does."""
    losses = gapless.DeferredLoss("cpu")
    for weight in (2, 2.0, np.float32(2), np.array(2), Fraction(2), torch.tensor([2])):
        losses.add(torch.ones(1), weight=weight)
    for weight in ("2", None, torch.ones(2)):
        with pytest.raises(gapless.LossError, match="`weight` must be a number"):
            losses.add(torch.ones(1), weight=weight)

    assert losses.mean() == 1.0
    assert losses.weights == [2.0] * 6


def test_a_loss_is_read_even_when_the_loop_fails():
    """Leaving a `with` block through an exception reads what was added."""
    losses = gapless.DeferredLoss("cpu")
    with pytest.raises(KeyboardInterrupt), losses:
        losses.add(torch.tensor(2.0))
        raise KeyboardInterrupt

    assert losses.history == [2.0]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_non_finite_loss_is_reported_with_its_batch(bad):
    """The first one is found, with its exact number."""
    losses = gapless.DeferredLoss("cpu", warn_nonfinite=False)
    for value in (1.0, 2.0, bad, math.nan):
        losses.add(torch.tensor(value))
    losses.drain()

    assert repr(losses.first_nonfinite) == f"NonFinite(step=2, name='loss', value={bad})"


def test_a_loss_does_not_keep_its_graph_alive():
    """Memory of a step is free as soon as the step is over."""
    losses = gapless.DeferredLoss("cpu")
    weight = torch.ones(3, requires_grad=True)
    hidden = weight * 2
    alive = weakref.ref(hidden)
    losses.add(hidden.sum())
    del hidden
    gc.collect()

    assert alive() is None


def test_the_mean_of_nothing_is_nan():
    """An empty epoch has no mean, and no wait."""
    losses = gapless.DeferredLoss("cpu")

    assert math.isnan(losses.mean())
    assert losses.wait_stats.count == 0


def test_later_changes_of_a_loss_do_not_matter():
    """A loss is copied when it is added."""
    losses = gapless.DeferredLoss("cpu")
    loss = torch.tensor(1.0)
    losses.add(loss)
    loss.fill_(9.0)

    assert losses.mean() == 1.0


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.tuples(st.floats(-1e100, 1e100), st.integers(1, 9)), min_size=1, max_size=30),
    st.sets(st.integers(0, 30)),
)
def test_the_mean_does_not_depend_on_when_losses_are_read(rows, reads):
    """The sum is `math.fsum` over float64, to the last bit, in whatever portions it came."""
    losses = gapless.DeferredLoss("cpu")
    for number, (loss, weight) in enumerate(rows):
        losses.add(torch.tensor(loss, dtype=torch.float64), weight=torch.tensor(weight))
        if number in reads:
            losses.drain()

    total = math.fsum(loss * weight for loss, weight in rows)
    assert total / math.fsum(weight for _, weight in rows) == losses.mean()


@pytest.mark.parametrize("count", [1023, 1024, 1025, 5000])
def test_more_losses_than_the_ring_has_rows(count):
    """Nothing is lost or repeated when the ring goes around."""
    losses = gapless.DeferredLoss("cpu")
    for number in range(count):
        losses.add(torch.tensor(float(number)), weight=number)

    assert count == losses.num_added
    losses.drain()
    assert [float(number) for number in range(count)] == losses.history == losses.weights


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_losses_of_any_floating_dtype_keep_their_value(dtype):
    """A loss in half precision is widened, not rounded again."""
    value = torch.tensor(0.1, dtype=dtype)
    losses = gapless.DeferredLoss("cpu")
    losses.add(value.reshape(1, 1))

    assert float(value) == losses.mean()


def test_a_loss_that_is_no_number_is_refused_and_not_counted():
    """More than one element is a mistake of the caller, and leaves no row behind."""
    losses = gapless.DeferredLoss("cpu")
    with pytest.raises(gapless.LossError, match="one number"):
        losses.add(torch.ones(2))
    losses.add(torch.tensor(3.0))

    assert losses.mean() == 3.0
    assert losses.history == [3.0]


@pytest.mark.parametrize(
    ("values", "expected"),
    [([math.inf, -math.inf], math.nan), ([math.nan, 1.0], math.nan), ([math.inf, 1.0], math.inf)],
)
def test_the_mean_of_non_finite_losses_is_no_error(values, expected):
    """Infinities of both signs have no mean; the history still holds them."""
    losses = gapless.DeferredLoss("cpu", warn_nonfinite=False)
    for value in values:
        losses.add(torch.tensor(value))

    assert str(expected) == str(losses.mean())
    assert str(values) == str(losses.history)


def test_waits_for_losses_are_counted_once_and_only_when_needed():
    """A drain of losses that have been read asks for no wait."""
    losses = gapless.DeferredLoss("cpu")
    losses.add(torch.tensor(1.0))
    losses.drain(reason="log")
    losses.drain(reason="log")
    losses.mean()

    assert {name: wait.count for name, wait in losses.wait_stats.by_reason.items()} == {"log": 1}


def test_a_part_of_the_run_has_its_own_mean():
    """The mean since a batch counts that batch and those after it."""
    losses = gapless.DeferredLoss("cpu")
    for number in range(6):
        losses.add(torch.tensor(float(number)), weight=1 + (number == 5))
    losses.drain()

    assert losses.running_mean(since=4) == 14 / 3
    assert math.isnan(losses.running_mean(since=6))


def test_a_reset_begins_anew():
    """After a reset the next loss is number 0, and a non-finite one of before is forgotten."""
    losses = gapless.DeferredLoss("cpu", warn_nonfinite=False)
    losses.add(torch.tensor(float("nan")))
    losses.mean()
    losses.reset()
    losses.add(torch.tensor(2.0), weight=3.0)

    assert losses.mean() == 2.0
    assert (losses.history, losses.weights) == ([2.0], [3.0])
    assert losses.first_nonfinite is None


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 10_000),
    eagerness=st.sampled_from([0.0, 0.3, 0.9]),
    actions=st.lists(st.sampled_from(["add", "many", "flush", "poll", "drain"]), max_size=12),
)
def test_losses_are_read_once_whenever_streams_run(seed, eagerness, actions):
    """However late the copies are, the history is that of the losses, also past a full ring."""
    device = LateDevice(seed, eagerness)
    losses = DeferredLoss(device)
    added = 0
    for action in actions:
        for _ in range({"add": 1, "many": 600}.get(action, 0)):
            losses.add(torch.tensor(float(added)), weight=2.0)
            added += 1
        if action not in ("add", "many"):
            getattr(losses, action)()
    losses.drain()

    assert [float(number) for number in range(added)] == losses.history
    assert [2.0] * added == losses.weights
