"""The work of a trace in the order in which the host queued it, and which of it each wait waits for. No torch."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from gapless.doctor.replay.exposed import union
from gapless.doctor.trace.chrome_trace import RECORDING, WAITS_OF_STREAMS, calls_named


if TYPE_CHECKING:
    from collections.abc import Sequence

    from gapless.doctor.trace.chrome_trace import Call, Trace, Wait, Work

# The clocks of the host and the device differ by so much at most.
_SKEW_US = 5.0


class HostAct(NamedTuple):
    """A launch or a wait of the host.

    Attributes:
        start_us: of the call.
        end_us: of the call.
        thread: that made it; -1 where nobody saw the launch.
        wait: place of the wait in the list of waits; None if it is none.
        queues: the correlations of the work that it queues.
    """

    start_us: float
    end_us: float
    thread: int
    wait: int | None
    queues: tuple[int, ...]


def host_acts(trace: Trace, waits: Sequence[Wait]) -> list[HostAct]:
    """Return the launches and waits of a trace in their order."""
    works = _by_correlation(trace)
    covered = {wait.correlation for wait in waits} | {wait.copy for wait in waits}
    launches: dict[int, Call] = {}
    for call in trace.calls:
        if call.correlation in works and call.correlation not in covered:
            launches.setdefault(call.correlation, call)
    acts = [
        HostAct(call.start_us, call.end_us, call.thread, None, (correlation,))
        for correlation, call in launches.items()
    ]
    for correlation in works.keys() - launches.keys() - covered:
        start = works[correlation][
            0
        ].start_us  # a launch that was not recorded is the device's own
        acts.append(HostAct(start, start, -1, None, (correlation,)))
    for place, wait in enumerate(waits):
        both = dict.fromkeys((wait.copy, wait.correlation))
        queues = tuple(one for one in both if one is not None and one in works)
        acts.append(HostAct(wait.start_us, wait.end_us, wait.thread, place, queues))
    return sorted(acts, key=lambda act: act.start_us)


def _by_correlation(trace: Trace) -> dict[int, list[Work]]:
    found: dict[int, list[Work]] = defaultdict(list)
    for work in trace.works:
        found[work.correlation].append(work)
    return found


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


class WorkQueue:
    """All work in order of queueing; what one call queued, such as a graph, is one piece of it.

    Args:
        trace: what was recorded.
        acts: of the host, in their order.

    Attributes:
        called: when the host began to queue each piece.
        starts: when the device began with it.
        ends: when it was done.
        streams: that it ran on.
        places: of a piece, by its correlation.
    """

    def __init__(self, trace: Trace, acts: Sequence[HostAct]) -> None:
        works = _by_correlation(trace)
        queue = [(act.start_us, one) for act in acts for one in act.queues]
        self._pieces = [works[one] for _, one in queue]
        self.called = [start for start, _ in queue]
        self.starts = [piece[0].start_us for piece in self._pieces]
        self.ends = [max(work.end_us for work in piece) for piece in self._pieces]
        self.streams = [piece[0].stream for piece in self._pieces]
        self.places = {one: place for place, (_, one) in enumerate(queue)}
        self._free = self._when_streams_are_free()
        self._end = trace.steps[-1] if trace.steps else float("inf")
        self._waits_for = self._waits_between_streams(trace)
        idle = [
            start - called
            for start, called, free in zip(self.starts, self.called, self._free, strict=True)
            if free <= called < start
        ]
        self._latency = min(20.0, median(idle)) if idle else 5.0

    def queued(self, place: int) -> Queued:
        """Return a piece as it can be played again."""
        start, end = self.starts[place], self.ends[place]
        free, called = self._free[place], self.called[place]
        latency = max(0.0, start - called)
        # Behind the last step the profiler ends, and may hold work up.
        if free > called or start > self._end:
            latency = min(latency, self._latency)
        ready = max(called + latency, free)
        after = [place - other for other in self._waits_for[place]]
        ready = max([ready, *(self.ends[place - one] for one in after)])
        spans = ((work.start_us - start, work.end_us - start) for work in self._pieces[place])
        return Queued(
            stream=self.streams[place],
            duration_us=end - start,
            busy=tuple(union(spans)),
            latency_us=latency,
            lead_us=min(0.0, start - free) if free > float("-inf") else 0.0,
            delay_us=max(0.0, start - ready) if start <= self._end else 0.0,
            after=tuple(after),
        )

    def _when_streams_are_free(self) -> list[float]:
        """Return for each piece when its stream was free for it."""
        found = []
        free: dict[int, float] = {}
        for stream, end in zip(self.streams, self.ends, strict=True):
            found.append(free.get(stream, float("-inf")))
            free[stream] = max(found[-1], end)
        return found

    def _waits_between_streams(self, trace: Trace) -> list[list[int]]:
        """Return for each piece the work of other streams that it waits for.

        Which event a stream waits for is not always known. Then it counts as a wait for all that was
        queued before on other streams, as far as that was done in time: gains come out too small
        rather than too large.
        """
        found: list[list[int]] = [[] for _ in self.called]
        of_stream: dict[int, list[int]] = defaultdict(list)
        for place, stream in enumerate(self.streams):
            of_stream[stream].append(place)
        for call in calls_named(trace, WAITS_OF_STREAMS):
            said = trace.synchronisations.get(call.correlation)
            first = bisect_left(self.called, call.start_us)
            if said is not None and said.stream >= 0:
                places = of_stream.get(said.stream, [])
                waiting = next(iter(places[bisect_left(places, first) :]), None)
            else:
                waiting = first if first < len(self.called) else None
            if waiting is None:
                continue
            known = said.on_stream if said is not None else -1
            for stream, places in of_stream.items():
                if stream == self.streams[waiting] or known not in (-1, stream):
                    continue
                last = bisect_left(places, first) - 1
                if last >= 0 and self.ends[places[last]] <= self.starts[waiting] + _SKEW_US:
                    found[waiting].append(places[last])
        return found


class WaitTargets:
    """Which work each wait waits for, which the driver does not always tell.

    Args:
        trace: what was recorded.
        waits: of the trace.
        queue: all work.
    """

    def __init__(self, trace: Trace, waits: Sequence[Wait], queue: WorkQueue) -> None:
        self._trace = trace
        self._waits = waits
        self._queue = queue
        # By their end, to find what was done when a wait returned.
        self._by_end = sorted(range(len(queue.ends)), key=lambda place: queue.ends[place])
        self._sorted_ends = [queue.ends[place] for place in self._by_end]
        self._num_streams = len(set(queue.streams))
        self._recorded = [call.start_us for call in calls_named(trace, RECORDING)]

    def until(self, act: HostAct) -> tuple[int | None, float]:
        """Return how far back in the queue stands what a wait waits for, and the return's latency."""
        wait, ends = self._waits[act.wait or 0], self._queue.ends
        if wait.kind == "host allocation":
            return None, wait.end_us - wait.start_us
        # What is queued when it begins to wait, its own copy included.
        called = self._queue.called
        bisect = bisect_right if act.queues else bisect_left
        count = bisect(called, wait.start_us)
        target = self._target(wait, own=act.queues, count=count)
        if target is None:
            return None, wait.end_us - wait.start_us
        if target < 0:
            done = max(ends[:count], default=wait.start_us)
            return 0, max(0.0, wait.end_us - max(wait.start_us, done))
        done = min(wait.end_us, ends[target])
        return max(1, count - target), max(0.0, wait.end_us - max(wait.start_us, done))

    def _target(self, wait: Wait, *, own: Sequence[int], count: int) -> int | None:
        """Return the place of the work that a wait waits for; -1 for all; None for none."""
        if wait.kind in ("copy", "pageable") and own:
            return self._queue.places[own[0]]
        if count == 0:
            return None
        latest_end = max(self._queue.ends[:count])
        if wait.kind in ("device", "free") and latest_end <= wait.end_us + _SKEW_US:
            return -1
        if wait.kind == "event":
            last = self._last_recorded(wait)
            if last is not None:
                return last
            # Work behind all events cannot be it: one of before the trace is for none of its work.
            recorded = bisect_left(self._recorded, wait.start_us)
            if recorded:
                count = bisect_left(self._queue.called, self._recorded[recorded - 1])
        stream = self._stream_of(wait)
        if stream is not None:
            for place in range(count - 1, -1, -1):
                if self._queue.streams[place] == stream:
                    return place
        return self._done_last(wait, count=count)

    def _stream_of(self, wait: Wait) -> int | None:
        if wait.kind != "stream":
            return None
        if wait.copy is not None and wait.copy in self._queue.places:
            return self._queue.streams[self._queue.places[wait.copy]]
        said = self._trace.synchronisations.get(wait.correlation)
        return said.stream if said is not None and said.stream >= 0 else None

    def _last_recorded(self, wait: Wait) -> int | None:
        """Return the last work before the latest event that was recorded and done when a wait returned.

        Which event a wait is for the driver does not tell.
        """
        queue = self._queue
        for recorded in reversed(self._recorded[: bisect_left(self._recorded, wait.start_us)]):
            last: dict[int, int] = {}  # of each stream
            for place in range(bisect_left(queue.called, recorded) - 1, -1, -1):
                last.setdefault(queue.streams[place], place)
                if len(last) == self._num_streams:
                    break
            done = [
                place for place in last.values() if queue.ends[place] <= wait.end_us + _SKEW_US
            ]
            if done:
                return max(done, key=lambda place: queue.ends[place])
        return None

    def _done_last(self, wait: Wait, *, count: int) -> int | None:
        """Return the work queued before a wait that was done last when the wait returned."""
        for place in range(bisect_right(self._sorted_ends, wait.end_us + _SKEW_US) - 1, -1, -1):
            if self._by_end[place] < count:
                return self._by_end[place]
        return None
