"""Record steps: what the host did in them, in its order, and the work that it queued.

No torch: recordings are made from a `Trace`, which tests make up.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gapless.doctor.replay.work_queue import WaitTargets, WorkQueue, host_acts


if TYPE_CHECKING:
    from collections.abc import Sequence

    from gapless.doctor.replay.exposed import HostKind
    from gapless.doctor.replay.work_queue import HostAct, Queued
    from gapless.doctor.trace.chrome_trace import Trace, Wait

# Recordings are cut to their last steps so that playing them stays quick, and files of their timeline small.
_MAX_WORKS = 15_000


@dataclass(frozen=True, kw_only=True, slots=True)
class HostInterval:
    """A stretch of host time with a name: of the loader, the garbage collector or an allocation."""

    kind: HostKind
    start_us: float
    end_us: float
    owner: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Act:
    """Something that the host did: queue work, wait, both, or neither at the end of the steps.

    Attributes:
        pause_us: host time since the act before it.
        named: parts of the pause, each (kind, owner, from the pause's start, to).
        call_us: that the call took, if it does not wait.
        works: places of what it queues.
        wait: place of the wait in the list of waits; None if it is none.
        until: how many pieces of work before the next one, in order of queueing, stands what it waits
            for; 1 is the last one queued. 0: all that is queued, on all streams. None: for none.
        return_us: from the end of the work to the end of the wait.
        num_events: that were recorded in the pause and the call.
        aside: on a thread that the steps do not wait for; the pause is then from the act before it.
    """

    pause_us: float
    named: tuple[tuple[HostKind, int | None, float, float], ...]
    call_us: float
    works: tuple[int, ...]
    wait: int | None
    until: int | None
    return_us: float
    num_events: int
    aside: bool = False


@dataclass(frozen=True, kw_only=True)
class Recording:
    """Some steps of a trace.

    Attributes:
        acts: of the host, in their order; the last one is the end of the last step.
        works: in order of queueing.
        num_steps: of the recording.
        begin_us: of the first step, in the trace's time.
        end_us: of the last step, likewise.
    """

    acts: tuple[Act, ...]
    works: tuple[Queued, ...]
    num_steps: int
    begin_us: float
    end_us: float


def record(
    trace: Trace,
    waits: Sequence[Wait],
    intervals: Sequence[HostInterval] = (),
) -> Recording | None:
    """Return the steps of a trace as they can be played; None where the device did nothing in them.

    Args:
        trace: with marks of steps.
        waits: of the trace.
        intervals: named host time.
    """
    steps = trace.steps
    if len(steps) < 2 or not trace.works:
        return None
    # Without the first if there are more: the profiler warms up in it.
    first = min(1, len(steps) - 2)
    while len(steps) - first > 2 and _num_works(trace, steps[first]) > _MAX_WORKS:
        first += 1
    return _Recorder(trace, waits, intervals, first=first).recording()


def _num_works(trace: Trace, since_us: float) -> int:
    return len(trace.works) - bisect_left(trace.works, since_us, key=lambda work: work.start_us)


class _Recorder:
    """Turns a trace into a recording."""

    def __init__(
        self,
        trace: Trace,
        waits: Sequence[Wait],
        intervals: Sequence[HostInterval],
        *,
        first: int,
    ) -> None:
        self._begin, self._end = trace.steps[first], trace.steps[-1]
        self._num_steps = len(trace.steps) - 1 - first
        self._intervals = sorted(intervals, key=lambda one: one.start_us)
        self._chain = {trace.main, *trace.autograd}
        self._order = host_acts(trace, waits)
        self._queue = WorkQueue(trace, self._order)
        self._targets = WaitTargets(trace, waits, self._queue)
        self._events = sorted(
            [
                *(call.start_us for call in trace.calls if call.thread in self._chain),
                *(
                    one.start_us
                    for thread, operations in trace.operations.items()
                    if thread in self._chain
                    for one in operations
                ),
            ]
        )

    def recording(self) -> Recording | None:
        """Return the steps."""
        called = self._queue.called
        inside = [i for i, at in enumerate(called) if self._begin <= at < self._end]
        if not inside:
            return None
        acts, reached, anchor = [], self._begin, self._begin
        for one in self._order:
            if not self._begin <= one.start_us < self._end:
                continue
            works = tuple(self._queue.places[work] - inside[0] for work in one.queues)
            if one.thread not in self._chain:
                acts.append(_act_aside(max(0.0, one.start_us - anchor), works))
                continue
            acts.append(self._act(one, works, reached=reached))
            reached, anchor = max(reached, one.end_us), one.start_us
        acts.append(self._end_of_steps(reached))
        return Recording(
            acts=tuple(acts),
            works=tuple(map(self._queue.queued, inside)),
            num_steps=self._num_steps,
            begin_us=self._begin,
            end_us=self._end,
        )

    def _act(self, one: HostAct, works: tuple[int, ...], *, reached: float) -> Act:
        until, returned = (None, 0.0) if one.wait is None else self._targets.until(one)
        return Act(
            pause_us=max(0.0, one.start_us - reached),
            named=self._named(reached, one.start_us),
            call_us=max(0.0, one.end_us - max(one.start_us, reached)),
            works=works,
            wait=one.wait,
            until=until,
            return_us=returned,
            num_events=self._num_events(reached, one.end_us),
        )

    def _end_of_steps(self, reached: float) -> Act:
        return Act(
            pause_us=max(0.0, self._end - reached),
            named=self._named(reached, self._end),
            call_us=0.0,
            works=(),
            wait=None,
            until=None,
            return_us=0.0,
            num_events=self._num_events(reached, self._end),
        )

    def _num_events(self, start: float, end: float) -> int:
        return bisect_left(self._events, end) - bisect_left(self._events, start)

    def _named(
        self, start: float, end: float
    ) -> tuple[tuple[HostKind, int | None, float, float], ...]:
        found, reached = [], start
        for one in self._intervals:
            a, b = max(reached, one.start_us), min(end, one.end_us)
            if a < b:
                found.append((one.kind, one.owner, a - start, b - start))
                reached = b
        return tuple(found)


def _act_aside(pause_us: float, works: tuple[int, ...]) -> Act:
    """Return a launch of a thread that the steps do not wait for."""
    return Act(
        pause_us=pause_us,
        named=(),
        call_us=0.0,
        works=works,
        wait=None,
        until=None,
        return_us=0.0,
        num_events=0,
        aside=True,
    )
