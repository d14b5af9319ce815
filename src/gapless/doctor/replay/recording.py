"""Record steps: what the host did in them, in its order, and the work that it queued.

No torch: recordings are made from a `Trace`, which tests make up.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from gapless.doctor.replay.exposed import union
from gapless.doctor.trace.chrome_trace import Call, find_recorded_events, find_waits_of_streams


if TYPE_CHECKING:
    from collections.abc import Sequence

    from gapless.doctor.replay.exposed import HostKind
    from gapless.doctor.trace.chrome_trace import Trace, Wait, Work

# The clocks of the host and the device differ by so much at most.
_SKEW_US = 5.0

# Recordings are cut to their last steps so that playing them stays quick.
_MAX_WORKS = 15_000


@dataclass(frozen=True, kw_only=True, slots=True)
class HostInterval:
    """A stretch of host time with a name: of the loader, the garbage collector or an allocation."""

    kind: HostKind
    start_us: float
    end_us: float
    owner: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Queued:
    """Work that one call queued: a kernel, a copy, or all of a graph.

    Attributes:
        stream: that it runs on.
        duration_us: from its start to its end.
        busy: within it, from its start.
        latency_us: from the call to the earliest start.
        lead_us: by which it may start before its stream's earlier work ends: 0 or less.
        delay_us: by which it started later than all that is known would have let it.
        after: how many pieces before it, in order of queueing, those of other streams stand whose
            ends it waits for.
    """

    stream: int
    duration_us: float
    busy: tuple[tuple[float, float], ...]
    latency_us: float
    lead_us: float
    delay_us: float
    after: tuple[int, ...]


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
    *,
    skip_steps: int = 1,
) -> Recording | None:
    """Return the steps of a trace as they can be played; None where the device did nothing in them.

    Args:
        trace: with marks of steps.
        waits: of the trace.
        intervals: named host time.
        skip_steps: first ones that are left out, because the profiler warms up in them.
    """
    steps = trace.steps
    if len(steps) < 2 or not trace.works:
        return None
    first = min(skip_steps, len(steps) - 2)
    while len(steps) - first > 2 and _num_works(trace, steps[first]) > _MAX_WORKS:
        first += 1
    return _Recorder(trace, waits, intervals, first=first).recording()


def _num_works(trace: Trace, since_us: float) -> int:
    return len(trace.works) - bisect_left(trace.works, since_us, key=lambda work: work.start_us)


def _unseen_launch(work: Work) -> Call:
    """Return a call that stands for one that was not recorded; it is the device's own."""
    start = work.start_us
    return Call(name="", thread=-1, start_us=start, end_us=start, correlation=work.correlation)


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
        self._trace = trace
        self._begin, self._end = trace.steps[first], trace.steps[-1]
        self._num_steps = len(trace.steps) - 1 - first
        self._intervals = sorted(intervals, key=lambda one: one.start_us)
        self._chain = {trace.main, *trace.autograd}
        self._groups: dict[int, list[Work]] = defaultdict(list)
        for work in trace.works:
            self._groups[work.correlation].append(work)
        self._waits = waits
        covered = {wait.correlation for wait in waits} | {wait.copy for wait in waits}
        launches: dict[int, Call] = {}
        for call in trace.calls:
            if call.correlation in self._groups and call.correlation not in covered:
                launches.setdefault(call.correlation, call)
        for correlation in self._groups.keys() - launches.keys() - covered:
            launches[correlation] = _unseen_launch(self._groups[correlation][0])
        acts: list[tuple[float, Call | None, int | None]] = []
        acts += [(call.start_us, call, None) for call in launches.values()]
        acts += [(wait.start_us, None, place) for place, wait in enumerate(waits)]
        self._order = sorted(acts, key=lambda act: act[0])
        self._queue_works()
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

    def _queue_works(self) -> None:
        """Put all work in order of queueing: correlation, start of its call, thread."""
        self._queue: list[int] = []  # correlations
        self._called: list[float] = []
        for start, call, place in self._order:
            for correlation in self._correlations(call, place):
                self._queue.append(correlation)
                self._called.append(start)
        self._place = {correlation: i for i, correlation in enumerate(self._queue)}
        self._starts = [self._groups[one][0].start_us for one in self._queue]
        self._ends = [max(work.end_us for work in self._groups[one]) for one in self._queue]
        # By their end, to find what was done when a wait returned.
        self._by_end = sorted(range(len(self._queue)), key=lambda i: self._ends[i])
        self._sorted_ends = [self._ends[i] for i in self._by_end]
        self._num_streams = len({self._groups[one][0].stream for one in self._queue})
        self._recorded = [call.start_us for call in find_recorded_events(self._trace)]
        self._stream_ends()
        self._wait_for_events()
        idle = [
            start - called
            for start, called, free in zip(
                self._starts, self._called, self._stream_free, strict=True
            )
            if free <= called < start
        ]
        self._latency = min(20.0, median(idle)) if idle else 5.0

    def _correlations(self, call: Call | None, place: int | None) -> list[int]:
        if call is not None:
            return [call.correlation]
        wait = self._waits[place or 0]
        both = (wait.copy, wait.correlation)
        return [one for one in dict.fromkeys(both) if one is not None and one in self._groups]

    def _stream_ends(self) -> None:
        """Note for each piece of work when its stream was free for it."""
        self._stream_free: list[float] = []
        free: dict[int, float] = {}
        for place, correlation in enumerate(self._queue):
            stream = self._groups[correlation][0].stream
            self._stream_free.append(free.get(stream, float("-inf")))
            free[stream] = max(free.get(stream, float("-inf")), self._ends[place])

    def _wait_for_events(self) -> None:
        """Note which work waits for that of other streams.

        Which event a stream waits for is not always known. Then it is taken to wait for all that was
        queued before on other streams, as far as that was done in time: gains come out too small
        rather than too large.
        """
        self._waits_for: list[list[int]] = [[] for _ in self._queue]
        of_stream: dict[int, list[int]] = defaultdict(list)
        for place, correlation in enumerate(self._queue):
            of_stream[self._groups[correlation][0].stream].append(place)
        for call in find_waits_of_streams(self._trace):
            said = self._trace.synchronisations.get(call.correlation)
            first = bisect_left(self._called, call.start_us)
            if said is not None and said.stream >= 0:
                places = of_stream.get(said.stream, [])
                waiting = next(iter(places[bisect_left(places, first) :]), None)
            else:
                waiting = first if first < len(self._queue) else None
            if waiting is None:
                continue
            own = self._groups[self._queue[waiting]][0].stream
            known = said.on_stream if said is not None else -1
            for stream, places in of_stream.items():
                if stream == own or known not in (-1, stream):
                    continue
                last = bisect_left(places, first) - 1
                if last >= 0 and self._ends[places[last]] <= self._starts[waiting] + _SKEW_US:
                    self._waits_for[waiting].append(places[last])

    def recording(self) -> Recording | None:
        """Return the steps."""
        inside = [i for i, called in enumerate(self._called) if self._begin <= called < self._end]
        if not inside:
            return None
        first = inside[0]
        acts, reached, anchor = [], self._begin, self._begin
        for start, call, place in self._order:
            if not self._begin <= start < self._end:
                continue
            aside = self._thread(call, place) not in self._chain
            acts.append(self._act(start, call, place, reached=reached, anchor=anchor, first=first))
            if not aside:
                end = call.end_us if call is not None else self._waits[place or 0].end_us
                reached, anchor = max(reached, end), start
        acts.append(self._end_of_steps(reached))
        return Recording(
            acts=tuple(acts),
            works=tuple(self._queued(i) for i in inside),
            num_steps=self._num_steps,
            begin_us=self._begin,
            end_us=self._end,
        )

    def _thread(self, call: Call | None, place: int | None) -> int:
        return call.thread if call is not None else self._waits[place or 0].thread

    def _act(
        self,
        start: float,
        call: Call | None,
        place: int | None,
        *,
        reached: float,
        anchor: float,
        first: int,
    ) -> Act:
        aside = self._thread(call, place) not in self._chain
        works = tuple(self._place[one] - first for one in self._correlations(call, place))
        if aside:
            return Act(
                pause_us=max(0.0, start - anchor),
                named=(),
                call_us=0.0,
                works=works,
                wait=None,
                until=None,
                return_us=0.0,
                num_events=0,
                aside=True,
            )
        end = call.end_us if call is not None else self._waits[place or 0].end_us
        until, returned = (None, 0.0) if place is None else self._until(place)
        return Act(
            pause_us=max(0.0, start - reached),
            named=self._named(reached, start),
            call_us=max(0.0, end - max(start, reached)),
            works=works,
            wait=place,
            until=until,
            return_us=returned,
            num_events=self._num_events(reached, end),
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

    def _until(self, place: int) -> tuple[int | None, float]:
        """Return how far back in the queue stands what a wait waits for, and the return's latency."""
        wait = self._waits[place]
        if wait.kind == "host allocation":
            return None, wait.end_us - wait.start_us
        own = self._correlations(None, place)
        # What is queued when it begins to wait, its own copy included.
        count = (
            bisect_right(self._called, wait.start_us)
            if own
            else bisect_left(self._called, wait.start_us)
        )
        target = self._target(wait, own=own, count=count)
        if target is None:
            return None, wait.end_us - wait.start_us
        if target < 0:
            done = max(self._ends[:count], default=wait.start_us)
            return 0, max(0.0, wait.end_us - max(wait.start_us, done))
        return max(1, count - target), max(
            0.0, wait.end_us - max(wait.start_us, min(wait.end_us, self._ends[target]))
        )

    def _target(self, wait: Wait, *, own: list[int], count: int) -> int | None:
        """Return the place of the work that a wait waits for; -1 for all; None for none."""
        if wait.kind in ("copy", "pageable") and own:
            return self._place[own[0]]
        if count == 0:
            return None
        latest_end = max(self._ends[:count])
        if wait.kind in ("device", "free") and latest_end <= wait.end_us + _SKEW_US:
            return -1
        if wait.kind == "event":
            last = self._last_recorded(wait)
            if last is not None:
                return last
        stream = self._stream_of(wait)
        if stream is not None:
            for i in range(count - 1, -1, -1):
                if self._groups[self._queue[i]][0].stream == stream:
                    return i
        return self._done_last(wait, count=count)

    def _stream_of(self, wait: Wait) -> int | None:
        if wait.kind != "stream":
            return None
        if wait.copy in self._groups:
            return self._groups[wait.copy or 0][0].stream
        said = self._trace.synchronisations.get(wait.correlation)
        return said.stream if said is not None and said.stream >= 0 else None

    def _last_recorded(self, wait: Wait) -> int | None:
        """Return the last work before the latest event that was recorded and done when a wait returned.

        Which event a wait is for the driver does not tell; work behind all events cannot be it.
        """
        for recorded in reversed(self._recorded[: bisect_left(self._recorded, wait.start_us)]):
            last: dict[int, int] = {}  # of each stream
            for i in range(bisect_left(self._called, recorded) - 1, -1, -1):
                last.setdefault(self._groups[self._queue[i]][0].stream, i)
                if len(last) == self._num_streams:
                    break
            done = [i for i in last.values() if self._ends[i] <= wait.end_us + _SKEW_US]
            if done:
                return max(done, key=lambda i: self._ends[i])
        return None

    def _done_last(self, wait: Wait, *, count: int) -> int | None:
        """Return the work queued before a wait that was done last when the wait returned."""
        for i in range(bisect_right(self._sorted_ends, wait.end_us + _SKEW_US) - 1, -1, -1):
            if self._by_end[i] < count:
                return self._by_end[i]
        return None

    def _queued(self, place: int) -> Queued:
        group = self._groups[self._queue[place]]
        start, end = self._starts[place], self._ends[place]
        free, called = self._stream_free[place], self._called[place]
        latency = max(0.0, start - called)
        if free > called:
            latency = min(latency, self._latency)
        ready = max(called + latency, free)
        after = [place - other for other in self._waits_for[place]]
        ready = max([ready, *(self._ends[place - one] for one in after)])
        return Queued(
            stream=group[0].stream,
            duration_us=end - start,
            busy=tuple(union((work.start_us - start, work.end_us - start) for work in group)),
            latency_us=latency,
            lead_us=min(0.0, start - free) if free > float("-inf") else 0.0,
            delay_us=max(0.0, start - ready),
            after=tuple(after),
        )
