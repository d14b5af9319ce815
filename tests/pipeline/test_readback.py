"""Losses that are read late, each exactly once."""

from __future__ import annotations

import gc
import math
import weakref
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings, strategies as st

import gapless


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
@given(st.lists(st.sampled_from(["add", "flush", "harvest", "drain", "many"]), max_size=30))
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
    losses = gapless.DeferredLoss("cpu")
    for value in (1.0, 2.0, bad, math.nan):
        losses.add(torch.tensor(value))
    losses.drain()

    assert losses.first_nonfinite is not None
    assert losses.first_nonfinite[0] == 2
    assert str(bad) == str(losses.first_nonfinite[1])


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
    assert losses.stats.sync_count == 0


def test_later_changes_of_a_loss_do_not_matter():
    """A loss is copied when it is added."""
    losses = gapless.DeferredLoss("cpu")
    loss = torch.tensor(1.0)
    losses.add(loss)
    loss.fill_(9.0)

    assert losses.mean() == 1.0
