"""How long the host works in a step, its waits for the device left out. No torch."""

from __future__ import annotations

from collections import defaultdict
from statistics import median
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gapless.doctor.causes import Cause
    from gapless.doctor.seen import SeenWait

# What loses host time without a wait for the device.
HOST_COSTS: tuple[Cause, ...] = ("loader", "gc", "shapes", "launch")

# The other threads do not hold up the steps.
_OF_THE_STEPS = ("main", "autograd")


def host_ms(step_ms: Sequence[float], seen: Iterable[SeenWait]) -> float | None:
    """Return what the host works in a step, in ms: the median; None where that cannot be told.

    The first step is left out, since what watches is put in while it runs.

    Args:
        step_ms: how long each step took.
        seen: what was seen in them. A wait of which only the beginning or the end is known may be of
            any length, so that nothing can be told.
    """
    waited: dict[int, float] = defaultdict(float)
    for one in seen:
        if one.cause in HOST_COSTS or one.thread not in _OF_THE_STEPS:
            continue
        if one.end_ns is None:
            return None
        waited[one.step] += (one.end_ns - one.start_ns) / 1e6
    worked = [ms - waited[step] for step, ms in enumerate(step_ms)][1:]
    return median(worked) if worked else None
