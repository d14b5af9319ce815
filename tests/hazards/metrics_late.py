"""Deferred metrics: values that arrive late, callbacks, and values that are not finite."""

from __future__ import annotations

import math
import warnings

import pytest

from hazards.harness import DEVICES, HOLDS, case


def warned(body):
    """Run the body; return its RuntimeWarnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        body()
    return [str(one.message) for one in caught if one.category is RuntimeWarning]


@case(
    "`latest()` is shown in the bar of each step: it is a step that was added, and its value.",
    verdict=HOLDS,
)
def latest_is_true(place):
    losses, last = place.losses(), -1
    for number in range(60):
        place.busy() if number % 7 == 0 else None
        losses.add(loss=place.scalar(2.0 * number), half=place.scalar(0.5 * number))
        newest = losses.latest()
        if newest is not None:
            assert last <= newest.step <= number
            assert newest.values == {"loss": 2.0 * newest.step, "half": 0.5 * newest.step}
            last = newest.step
    losses.drain()
    assert losses.latest().step == 59
    assert losses.latest().values == {"loss": 118.0, "half": 29.5}


@case(
    "`latest()` moves on while the loop computes: the device is idle after each step.",
    verdict=HOLDS,
)
def latest_keeps_up(place):
    losses = place.losses()
    for number in range(10):
        losses.add(place.scalar(1.0 * number))
        place.settle()
    losses.poll()
    losses.flush()
    losses.drain()
    assert losses.latest().step == 9


@case("`history` grows in order, and never holds what has not arrived.", verdict=HOLDS)
def history_grows(place):
    losses, length = place.losses(), 0
    for number in range(40):
        losses.add(place.scalar(3.0 * number))
        losses.poll()
        history = losses.history
        assert len(history) >= length
        assert list(history) == [3.0 * step for step in range(len(history))]
        length = len(history)
    losses.drain()
    assert list(losses.history) == [3.0 * step for step in range(40)]


@case("Every 5 steps a callback logs: each step once, in order, the same as read at once.")
def every_five(place):
    told = []
    losses = place.losses(every=5, on_values=lambda new: told.append((new.step, new.values)))
    for number in range(43):
        place.busy() if number % 9 == 0 else None
        losses.add(place.scalar(0.1 * number), weight=2)
    losses.drain()
    assert [step for step, _ in told] == [4, 9, 14, 19, 24, 29, 34, 39]
    return told, losses.mean()


@case(
    "The callback raises (early stopping): the error comes out of the loop, and no step is "
    "told twice.",
    verdict=HOLDS,
    holds_plainly=False,
)
def callback_raises(place):
    told = []

    def on_values(new):
        told.append(new.step)
        if new.step == 5:
            raise StopIteration(new.step)

    losses = place.losses(every=3, on_values=on_values)
    failures = 0
    for number in range(30):
        try:
            losses.add(place.scalar(1.0 * number))
        except StopIteration:
            failures += 1
    for _ in range(2):
        try:
            losses.drain()
        except StopIteration:
            failures += 1
    assert failures == 1
    assert told == list(range(2, 30, 3))
    assert losses.mean() == 14.5
    assert len(losses.history) == 30


@case("The callback reads `losses.mean()`, `latest()` and `history`.", verdict=HOLDS)
def callback_reads(place):
    told, losses = [], None

    def on_values(new):
        told.append((new.step, losses.mean(), losses.latest().step, len(losses.history)))

    losses = place.losses(every=4, on_values=on_values)
    for number in range(20):
        losses.add(place.scalar(1.0 * number))
    losses.drain()
    assert [step for step, *_ in told] == [3, 7, 11, 15, 19]
    assert all(mean >= step / 2 for step, mean, *_ in told)
    assert all(latest >= step and length > step for step, _, latest, length in told)


@case(
    "`every` without `on_values`, 0 and negative numbers are refused.",
    verdict=HOLDS,
    holds_plainly=False,
)
def wrong_every(place):
    for options in (
        {"every": 0, "on_values": print},
        {"every": -3, "on_values": print},
        {"every": 5},
        {"on_values": print},
    ):
        with pytest.raises((ValueError, TypeError)):
            place.losses(**options)


@case(
    "The loss is NaN at step 7: the step is named late, once, as a RuntimeWarning.", verdict=HOLDS
)
def nan_is_named(place):
    losses = place.losses()

    def train():
        for number in range(20):
            place.busy() if number % 6 == 0 else None
            losses.add(place.scalar(math.nan if number >= 7 else 1.0), weight=2)
        losses.mean()

    messages = warned(train)
    assert len(messages) == 1
    assert "7" in messages[0]
    found = losses.first_nonfinite
    assert (found.step, found.name) == (7, "loss")
    assert math.isnan(found.value)
    assert math.isnan(losses.mean())


@case("A value that is not finite costs no wait in the loop.", devices=DEVICES, verdict=HOLDS)
def nan_without_a_wait(place):
    losses, x = place.losses(), place.scalar(math.nan)
    place.settle()

    def train():
        with place.count_waits() as waits:
            for _ in range(60):
                losses.add(x * 1)
        assert waits.count == 0
        losses.drain()

    assert len(warned(train)) == 1
    assert losses.first_nonfinite.step == 0


@case(
    "Warnings are errors: the step is named, and no value is lost.",
    verdict=HOLDS,
    holds_plainly=False,
)
def warnings_are_errors(place):
    losses, raised = place.losses(), 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for number in range(6):
            try:
                losses.add(place.scalar(math.nan if number == 2 else 1.0))
            except RuntimeWarning:
                raised += 1
        for _ in range(2):
            try:
                losses.drain()
            except RuntimeWarning:
                raised += 1
    assert raised == 1
    assert len(losses.history) == len(losses.weights) == 6
    assert losses.first_nonfinite.step == 2
