"""Replays that take longer than calls as written, and those that do not.

How long a call takes is made up: the device is kept busy behind each, for longer where it was a replay. What
the loops compute has to be the same, whichever way a call runs. The last calls of a loop show what was
decided: all of them run in one way.
"""

from __future__ import annotations

from torch import nn
from torch.nn import functional as F

import gapless
from hazards.captured_models import batch, mlp, sgd, state
from hazards.harness import SIMULATED
from hazards.in_place_harness import in_place_case, refused
from hazards.in_place_models import made, update


# Times are compared, which only a virtual clock keeps apart from those of other processes.
DEVICES = (SIMULATED,)

# Enough for replays to be compared, and for some calls after it.
NUM = 260
_LAST = 30

SLOW = {"replayed": 3.0, "written": 2.0}
FAST = {"replayed": 2.0, "written": 3.0}


class Timed:
    """Calls of an object that take so many milliseconds of the device, by the way in which they ran."""

    def __init__(self, place, target, *, replayed, written):
        self._place, self._target = place, target
        self._device = gapless.find_device(place.device)
        self._replayed_ms, self._written_ms = replayed, written
        self.were_replays = []

    def __call__(self, call, *args, **kwargs):
        before = self._num_replays()
        out = call(*args, **kwargs)
        is_replay = self._num_replays() > before
        self.were_replays.append(is_replay)
        took_ms = self._replayed_ms if is_replay else self._written_ms
        self._device.delay(self._device.current_stream(), took_ms)
        return out

    def _num_replays(self):
        return 0 if self._place.is_plain else self._place.report(self._target).num_replays

    def ends_as(self, *, replays):
        """Assert that the last calls were replays, or that none was."""
        if not self._place.is_plain:
            assert set(self.were_replays[-_LAST:]) == {replays}, self.were_replays
            assert any(self.were_replays)


def _fit(place, model, optimizer, timed, num=NUM):
    losses = []
    for number in range(num):
        x, y = batch(place, number)
        losses.append(update(optimizer, F.cross_entropy(timed(model, x), y)))
    return losses


@in_place_case(
    "A model whose replays take longer.",
    expect=refused(r"\d\.\d+ ms with replays and \d\.\d+ ms as written"),
    devices=DEVICES,
)
def a_slow_model(place):
    model = mlp(place, dropout=0.3)
    place.capture(model)
    optimizer = sgd(model, momentum=0.9)
    timed = Timed(place, model, **SLOW)
    losses = _fit(place, model, optimizer, timed)
    timed.ends_as(replays=False)
    return losses, state(model, optimizer)


@in_place_case("A model whose replays are faster.", devices=DEVICES)
def a_fast_model(place):
    model = mlp(place, dropout=0.3)
    place.capture(model)
    optimizer = sgd(model, momentum=0.9)
    timed = Timed(place, model, **FAST)
    losses = _fit(place, model, optimizer, timed)
    timed.ends_as(replays=True)
    return losses, state(model, optimizer)


@in_place_case(
    "An optimizer whose replays take longer.",
    expect=refused(r"\d\.\d+ ms with replays and \d\.\d+ ms as written"),
    devices=DEVICES,
)
def a_slow_optimizer(place):
    model = mlp(place)
    optimizer = place.capture(sgd(model, momentum=0.9, nesterov=True))
    timed = Timed(place, optimizer, **SLOW)
    losses = []
    for number in range(NUM):
        x, y = batch(place, number)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        timed(optimizer.step)
        optimizer.zero_grad()
        losses.append(loss.item())
    timed.ends_as(replays=False)
    return losses, state(model, optimizer)


@in_place_case(
    "A slow model and an optimizer that pays, in one loop.",
    expect=refused("as written"),
    devices=DEVICES,
)
def a_slow_one_of_two(place):
    model = mlp(place)
    optimizer = sgd(model, momentum=0.9, nesterov=True)
    place.capture(model)
    place.capture(optimizer)
    of_model, of_optimizer = Timed(place, model, **SLOW), Timed(place, optimizer, **FAST)
    losses = []
    for number in range(2 * NUM):
        x, y = batch(place, number)
        loss = F.cross_entropy(of_model(model, x), y)
        loss.backward()
        of_optimizer(optimizer.step)
        optimizer.zero_grad()
        losses.append(loss.item())
    of_model.ends_as(replays=False)
    of_optimizer.ends_as(replays=True)
    return losses, state(model, optimizer)


@in_place_case(
    "Calls of two shapes in turn, and replays of the one shape are slow.",
    expect=refused("as written"),
    devices=DEVICES,
)
def one_slow_shape(place):
    model = made(place, nn.Sequential, nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    place.capture(model)
    optimizer = sgd(model)
    ways = {rows: Timed(place, model, **ms) for rows, ms in [(6, SLOW), (9, FAST)]}
    losses = []
    for number in range(2 * NUM):
        rows = (6, 9)[number % 2]
        x, y = batch(place, number, rows=rows)
        losses.append(update(optimizer, F.cross_entropy(ways[rows](model, x), y)))
    ways[6].ends_as(replays=False)
    ways[9].ends_as(replays=True)
    return losses, state(model, optimizer)
