"""Everything that was noted while a script was watched: what a diagnosis is made of. No torch."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from statistics import mean
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gapless.doctor.advice.causes import Cause
    from gapless.doctor.advice.own_mends import Places
    from gapless.doctor.seen_waits import NodeKey, SeenWait, StepParts
    from gapless.doctor.trace.chrome_trace import Trace
    from gapless.records.finding import Part, Site

# What loses host time without a wait for the device.
HOST_COSTS: tuple[Cause, ...] = ("loader", "gc", "shapes", "launch")

# The other threads do not hold up the steps.
_OF_THE_STEPS = ("main", "autograd")


@dataclass(frozen=True, kw_only=True)
class WatchedRun:
    """What the windows of a run left.

    Attributes:
        has_device: whether there is an accelerator that the script uses.
        step_ms: of each step of the plain window, in order; nothing was installed in it.
        seen: waits of the sites window.
        num_seen_steps: of that window.
        host_ms: that the host works in a step of that window, its waits for the device left out; None
            where that is not known.
        step_parts: of a step; None where they are not known.
        timed: waits of the times window, in the order of their marks.
        trace: of the times window; None where there was no profiler.
        forward_lines: lines of the forward pass whose nodes of the backward pass were seen.
        recompilations: of torch.compile in the watched windows.
        num_shapes_steps: steps in which they were counted; 0 where they were not.
        num_batches: that loaders gave in the sites window.
        num_batch_shapes: different shapes among them.
        num_would_wait: lines of the training step that would surely wait on a GPU, where none is used.
        parts: of the program, by path and line.
        places: what is around its lines, by path.
        notes: what could not be seen or measured, and why.
    """

    has_device: bool
    step_ms: tuple[float, ...] = ()
    seen: tuple[SeenWait, ...] = ()
    num_seen_steps: int = 0
    host_ms: float | None = None
    step_parts: StepParts | None = None
    timed: tuple[SeenWait, ...] = ()
    trace: Trace | None = None
    forward_lines: Mapping[NodeKey, Site] = field(default_factory=dict)
    recompilations: int = 0
    num_shapes_steps: int = 0
    num_batches: int = 0
    num_batch_shapes: int = 0
    num_would_wait: int = 0
    parts: Mapping[tuple[str, int], Part] = field(default_factory=dict)
    places: Mapping[str, Places] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def host_ms(step_ms: Sequence[float], seen: Iterable[SeenWait]) -> float | None:
    """Return what the host works in a step, in ms: the mean; None where that is not known.

    The first step is left out, since what watches is put in while it runs.

    Args:
        step_ms: how long each step took.
        seen: what was seen in them. A wait of which only the beginning or the end is known may be of
            any length, so that the step's time is not known.
    """
    waited: dict[int, float] = defaultdict(float)
    for one in seen:
        if one.cause in HOST_COSTS or one.thread not in _OF_THE_STEPS:
            continue
        if one.end_ns is None:
            return None
        waited[one.step] += (one.end_ns - one.start_ns) / 1e6
    worked = [ms - waited[step] for step, ms in enumerate(step_ms)][1:]
    return mean(worked) if worked else None
