"""Play recorded steps again: as they were, without the profiler's cost, or without one of their waits.

A recording is a list of what the host did, in its order, and of the work that it queued. Played, the
host goes through its list; work starts when it is queued, when its stream is free, and when the work
that it depends on is done; a wait returns when its work is done. The steps are played several times
in a row: how much later each round ends than the one before is the time that they take in the long
run. So what removing a wait gains is the difference of two such times: the idle time that only moves
on to the next wait, or to a host that is slower than the device, is not in it.

No torch: recordings are made from a `Trace`, which tests make up.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from gapless.doctor.exposed import DeviceSpan, HostSpan, union
from gapless.doctor.trace import Call, find_recorded_events, find_waits_of_streams


if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from gapless.doctor.exposed import HostKind
    from gapless.doctor.trace import Trace, Wait, Work

# The driver takes about so many pieces of work that have not begun; then a launch waits.
_QUEUE_LENGTH = 1000

# What the profiler and our marks cost the host for each event that is recorded: usually, how far that
# may be from it, and at most; and at most where it was measured.
_EVENT_COST_US = 1.0
_EVENT_COST_SPREAD_US = 1.5
_MAX_EVENT_COST_US = 6.0
_MAX_MEASURED_COST_US = 20.0
# So much steps of two windows differ by chance.
_BY_CHANCE = 0.01
# The clocks of the host and the device differ by so much at most.
_SKEW_US = 5.0

_NUM_ROUNDS = 4
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


@dataclass(frozen=True, kw_only=True)
class Played:
    """What came of playing a recording.

    Attributes:
        step_ms: of one step in the long run.
        device: work of the last two rounds, where it was to be kept.
        host: waits, launches and named intervals of them, likewise.
        begin_us: when the device was done with the round before the last.
        end_us: when it was done with the last round.
        wait_us: that the host stood still, by wait, in the last round, likewise.
    """

    step_ms: float
    device: list[DeviceSpan]
    host: list[HostSpan]
    begin_us: float
    end_us: float
    wait_us: Mapping[int, float]


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


def play(
    recording: Recording,
    *,
    event_cost_us: float = 0.0,
    without_waits: Collection[int] = (),
    without_named: Collection[int] = (),
    num_rounds: int = _NUM_ROUNDS,
    keep_spans: bool = False,
) -> Played:
    """Play a recording several times in a row.

    Args:
        recording: the steps.
        event_cost_us: host time that is taken off for each event that was recorded.
        without_waits: waits that are left out.
        without_named: owners of named host time that is left out.
        num_rounds: at least 2.
        keep_spans: whether what the host and the device did is returned as well.
    """
    return _Player(
        recording,
        event_cost_us=event_cost_us,
        without_waits=frozenset(without_waits),
        without_named=frozenset(without_named),
        keeps=keep_spans,
    ).play(num_rounds)


class _Player:
    """The state of the host and the device while a recording is played."""

    def __init__(
        self,
        recording: Recording,
        *,
        event_cost_us: float,
        without_waits: frozenset[int],
        without_named: frozenset[int],
        keeps: bool,
    ) -> None:
        self._recording = recording
        self._cost = event_cost_us
        self._without_waits = without_waits
        self._without_named = without_named
        self._keeps = keeps
        self._now = 0.0
        self._act_start = 0.0
        self._free: dict[int, float] = {}
        self._starts: list[float] = []
        self._ends: list[float] = []
        self._device_end = 0.0
        self._host: list[HostSpan] = []
        self._device: list[DeviceSpan] = []
        self._wait_us: dict[int, float] = defaultdict(float)

    def _pause_of(self, act: Act) -> float:
        left_out = sum(
            end - start for _, owner, start, end in act.named if owner in self._without_named
        )
        return _shorter(act.pause_us - left_out, self._cost * act.num_events)

    def play(self, num_rounds: int) -> Played:
        """Go through all rounds."""
        acts = [
            (act, self._pause_of(act), _shorter(act.call_us, self._cost))
            for act in self._recording.acts
        ]
        done: list[float] = []
        for round_ in range(num_rounds):
            keep = self._keeps and round_ >= num_rounds - 2
            for act, pause, call_us in acts:
                if act.aside:
                    self._queue(act, self._act_start + act.pause_us, keep=keep)
                    continue
                if keep and act.named:
                    self._keep_named(act, pause)
                self._now += pause
                self._play_act(act, call_us, keep=keep)
            if keep and round_ == num_rounds - 2:
                self._wait_us.clear()
            done.append(self._device_end)
        step_us = (done[-1] - done[-2]) / self._recording.num_steps
        return Played(
            step_ms=step_us / 1000.0,
            device=self._device,
            host=self._host,
            begin_us=done[-2],
            end_us=done[-1],
            wait_us=self._wait_us,
        )

    def _play_act(self, act: Act, call_us: float, *, keep: bool) -> None:
        start, wait = self._now, act.wait
        kind: HostKind = "launch"
        if wait is None:
            if act.works and len(self._starts) >= _QUEUE_LENGTH:  # the driver has no room for more
                start = max(start, self._starts[-_QUEUE_LENGTH])
            self._queue(act, start, keep=keep)
            self._now = start + call_us
        else:
            self._queue(act, start, keep=keep)
            if wait not in self._without_waits:
                self._now = self._returned(act, start)
                kind = "wait"
                if keep:
                    self._wait_us[wait] += self._now - start
        self._act_start = start
        if keep and self._now > start:
            span = HostSpan(kind=kind, start_us=start, end_us=self._now, owner=wait)
            self._host.append(span)

    def _keep_named(self, act: Act, pause: float) -> None:
        """Note named host time; it keeps its place in a pause that may be shorter."""
        scale = pause / act.pause_us if act.pause_us else 0.0
        for kind, owner, start, end in act.named:
            if owner not in self._without_named:
                a, b = self._now + start * scale, self._now + end * scale
                self._host.append(HostSpan(kind=kind, start_us=a, end_us=b, owner=owner))

    def _queue(self, act: Act, called: float, *, keep: bool) -> None:
        for place in act.works:
            work = self._recording.works[place]
            start = called + work.latency_us
            free = self._free.get(work.stream, 0.0)
            if free + work.lead_us > start:
                start = free + work.lead_us
            for before in work.after:
                if before <= len(self._ends) and self._ends[-before] > start:
                    start = self._ends[-before]
            start += work.delay_us
            end = start + work.duration_us
            self._free[work.stream] = end if end > free else free
            self._starts.append(start)
            self._ends.append(end)
            if end > self._device_end:
                self._device_end = end
            if keep:
                self._device.extend(
                    DeviceSpan(
                        start_us=start + a,
                        end_us=start + b,
                        launch_us=called,
                        ready_us=called + work.latency_us,
                    )
                    for a, b in work.busy
                )

    def _returned(self, act: Act, start: float) -> float:
        done = start
        if act.until == 0:
            done = max(start, self._device_end)
        elif act.until is not None and act.until <= len(self._ends):
            done = max(start, self._ends[-act.until])
        return done + act.return_us


def _shorter(us: float, cost_us: float) -> float:
    """Take the profiler's cost off host time, but never more than most of it."""
    return max(0.1 * us, us - cost_us)


def event_cost(recording: Recording, *, step_ms: float, slower_ms: float | None = None) -> float:
    """Return what an event cost the host, in us.

    Where it is known by how much the host was slower under the profiler, that is what all events cost.
    Else the cost is chosen so that the recording played takes as long as plain steps. In a step that is
    bound by the device the cost hardly shows in that; there it is near the usual one and not read out
    of noise: what is least likely by chance, of the cost and of the difference that is left, counts most.

    Args:
        recording: the steps.
        step_ms: of a plain step.
        slower_ms: by which the host worked longer in a step for being recorded; None if not known.
    """
    if slower_ms is not None:
        return _measured_cost(recording, _host_ms(recording, 0.0) - slower_ms)

    def unlikely(cost_us: float) -> float:
        played = play(recording, num_rounds=3, event_cost_us=cost_us).step_ms
        left = (played - step_ms) / (_BY_CHANCE * step_ms)
        return left**2 + ((cost_us - _EVENT_COST_US) / _EVENT_COST_SPREAD_US) ** 2

    costs = [float(us) for us in range(int(_MAX_EVENT_COST_US) + 1)]
    best = min(costs, key=unlikely)
    low, high = max(0.0, best - 1.0), min(_MAX_EVENT_COST_US, best + 1.0)
    for _ in range(5):
        first, second = low + (high - low) / 3, high - (high - low) / 3
        if unlikely(first) <= unlikely(second):
            high = second
        else:
            low = first
    return (low + high) / 2


def _measured_cost(recording: Recording, host_ms: float) -> float:
    """Return the cost with which the host works so long in a step."""
    low, high = 0.0, _MAX_MEASURED_COST_US
    for _ in range(20):
        middle = (low + high) / 2
        if _host_ms(recording, middle) > host_ms:
            low = middle
        else:
            high = middle
    return low


def _host_ms(recording: Recording, event_cost_us: float) -> float:
    """Return how long the host works in a recorded step; its waits for the device are left out."""
    us = sum(
        _shorter(act.pause_us, event_cost_us * act.num_events)
        + (_shorter(act.call_us, event_cost_us) if act.wait is None else 0.0)
        for act in recording.acts
    )
    return us / recording.num_steps / 1000.0
