"""Decide whether replays pay, from times of eager calls and of replays. Needs no device.

A time is that from the start of a call to the start of the next: what lies between is a part of it,
because a loop is as fast as all of it together. Replays stay unless it is shown that they are slower.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from statistics import fmean, median
from typing import TYPE_CHECKING, Literal


if TYPE_CHECKING:
    from collections.abc import Sequence


# Share of the times that count, the shortest. Longer ones are of an evaluation, a file that is written, an
# update after the last of several micro-batches.
_SHARE_OF_USUAL = 0.75

# Replays are given up only if they are slower by this share.
_LOSS_SHARE = 0.02

# One pair of windows, an eager one and one of replays, is enough if replays are quicker by this share; else
# the median of so many decides. Where a host is shared with others, single pairs show gains and losses by chance.
_CLEAR_SHARE = 0.2
NUM_PAIRS = 5


@dataclass(frozen=True, kw_only=True)
class WindowTimes:
    """Times of some eager calls, or of some replays, at least one, in milliseconds.

    Attributes:
        host_ms: from call to call, as the host went on.
        device_ms: likewise, as the device did.
    """

    host_ms: Sequence[float]
    device_ms: Sequence[float]

    @property
    def call_ms(self) -> float:
        """What a call takes, if calls go on like this.

        The larger of both: a host that runs ahead for a while leaves the device as much work as it
        can do, and a device that still has work does not show how late the host is.
        """
        return max(_usual(self.host_ms), _usual(self.device_ms))


@dataclass(frozen=True, kw_only=True)
class PairTimes:
    """What calls took in two windows, one after the other; milliseconds a call.

    Attributes:
        replayed_ms: in that of replays.
        written_ms: in that of eager calls.
    """

    replayed_ms: float
    written_ms: float

    @property
    def ratio(self) -> float:
        """What replays took, by what eager calls took."""
        return self.replayed_ms / max(self.written_ms, 1e-9)


def judged(pairs: Sequence[PairTimes]) -> Literal["pays", "does_not_pay"] | None:
    """Return what pairs of windows have shown, None if a further one is needed."""
    ratios = [pair.ratio for pair in pairs]
    if ratios[-1] < 1.0 - _CLEAR_SHARE:
        return "pays"
    if len(pairs) < NUM_PAIRS:
        return None
    return "does_not_pay" if median(ratios) > 1.0 + _LOSS_SHARE else "pays"


def loss_text(pairs: Sequence[PairTimes]) -> str:
    """Return the times of replays and of eager calls in words; at least one pair."""
    replayed_ms = median(pair.replayed_ms for pair in pairs)
    written_ms = median(pair.written_ms for pair in pairs)
    return f"{replayed_ms:.3f} ms with replays and {written_ms:.3f} ms as written"


def _usual(times_ms: Sequence[float]) -> float:
    shortest = sorted(times_ms)[: ceil(_SHARE_OF_USUAL * len(times_ms))]
    return fmean(shortest)
