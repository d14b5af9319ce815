"""Times of calls in windows: a few replays of a graph, and as many calls as written, in turn.

A replay may take longer than the call as written: where the device is busy all the time, and copies
into and out of the graph come on top. The account's clock does not see that, since the host runs
ahead of the device. So once in the life of a graph, some replays after it is first used, calls run
either way in turn: both give the same bits. An event at the start of each tells the device's time,
and the clock the host's; both are read late, without a wait. The time of a call is here that to the
next one of the same object, and the larger of both.

What replays save goes to the account: `CallTimes.compare` says what follows from it.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from gapless.pipeline.streams import EventPool
from gapless.ranks import is_distributed
from gapless.records.replay_times import PairTimes, WindowTimes


if TYPE_CHECKING:
    from collections.abc import Callable

    from gapless.device.base import Device, Event
    from gapless.graphs.account import Account, What
    from gapless.graphs.entry import Entry
    from gapless.graphs.replay.call_graph import CallGraph

    _Way: TypeAlias = Literal["plain", "replay"]

    # The start of a call, on the host and on the device.
    _Moment: TypeAlias = tuple[float, Event]


# Replays of a graph before they are timed: a short loop is over by then.
NUM_BEFORE = 50

# Calls of a window.
NUM_IN_WINDOW = 8


@dataclass(eq=False)
class CallWindows:
    """The windows of all graphs of one captured object, one graph after the other.

    Nothing is timed in a distributed run, whose ranks could decide differently, nor where a call as
    written has no memory beside the graphs, nor for graphs that have not been proved to give equal bits.

    Attributes:
        account: of the device, which lets one graph at a time be timed: calls as written of another
            would lie between its calls.
        has_room: returns whether a call as written has memory beside the graphs.
        give_up: called with a kind of call whose replays do not pay, and with the times that show it.
    """

    device: Device
    account: Account
    has_room: Callable[[], bool]
    give_up: Callable[[Entry, list[PairTimes]], None]
    _timed: _Windows | None = None
    _graphs: weakref.WeakKeyDictionary[CallGraph, _Windows] = field(
        default_factory=weakref.WeakKeyDictionary
    )

    def add(self, graph: CallGraph, entry: Entry) -> None:
        """Let a graph be timed that gives the same bits as its calls as written, the first of its kind."""
        if entry.times.verdict is None:
            self._graphs[graph] = _Windows(self.device, entry)

    def are_open(self, graph: CallGraph) -> bool:
        """Return whether calls of a graph are still to be timed, so that each has to come by here."""
        return graph in self._graphs

    def begin_call(self, entry: Entry, graph: CallGraph | None) -> _Way | None:
        """Note that a call begins; return how it has to run, None if that is all the same."""
        now = None if self._timed is None else self._timed.end_last()
        found = None if graph is None else self._graphs.get(graph)
        if graph is None or found is None or not found.is_due():
            return None
        if not self.account.takes_turn(found):
            self._timed = None if self._timed is found else self._timed
            return None
        if self._timed is not found and (is_distributed() or not self.has_room()):
            del self._graphs[graph]
            return None
        self._timed = found
        found.begin_call(now)
        if found.times.verdict is None:
            return found.way
        self._finish(entry, graph, found)
        return "plain" if found.times.verdict == "does_not_pay" else None

    def end_call(self, entry: Entry, what: What) -> None:
        """Note that the call is over, and what it was: it counts if it was as it had to be."""
        if self._timed is not None:
            self._timed.end_call(entry, what)

    def _finish(self, entry: Entry, graph: CallGraph, timed: _Windows) -> None:
        self._timed = None
        del self._graphs[graph]
        if timed.times.verdict == "does_not_pay" and not is_distributed():
            self.give_up(entry, timed.pairs)


class _Windows:
    """Pairs of windows of one graph."""

    def __init__(self, device: Device, entry: Entry) -> None:
        # The record of the kind holds the graph.
        self._number, self.times = entry.number, entry.times
        self.pairs: list[PairTimes] = []
        self._device = device
        self._events = EventPool(device, timed=True)
        # The starts of the calls of each window, and of the calls behind them.
        self._calls = self._next_windows()
        self._num_before = 0
        # When the call has begun, and the window that it counts in.
        self._start: _Moment | None = None
        self._counts_in: _Way | None = None

    @property
    def way(self) -> _Way | None:
        """How the next call has to run, which is that of a window that is not full; None if all are."""
        return next((way for way, some in self._calls.items() if len(some) < NUM_IN_WINDOW), None)

    def is_due(self) -> bool:
        """Count a call that would be a replay; return whether it may be timed."""
        self._num_before += 1
        return self._num_before > NUM_BEFORE

    def end_last(self) -> _Moment | None:
        """Note that a call of the same object begins; return when, if that was asked for."""
        start, way = self._start, self._counts_in
        self._start = self._counts_in = None
        if start is None or way is None:
            return None
        now = self._now()
        self._calls[way].append((start, now))
        return now

    def begin_call(self, now: _Moment | None) -> None:
        """Begin a call that the graph could take."""
        if self.way is None:
            self._read()
        else:
            self._start = now or self._now()

    def end_call(self, entry: Entry, what: What) -> None:
        """Note what the call was that has begun."""
        way = self.way
        self._counts_in = way if what == way and entry.number == self._number else None

    def _now(self) -> _Moment:
        event = self._events.record(self._device.current_stream())
        return self._device.now_ms(), event

    def _next_windows(self) -> dict[_Way, list[tuple[_Moment, _Moment]]]:
        # What drifts, and what comes at regular times, does not always meet the same way.
        if len(self.pairs) % 2:
            return {"plain": [], "replay": []}
        return {"replay": [], "plain": []}

    def _read(self) -> None:
        """Take in the times of both windows, if the device has come so far."""
        ends = [end for some in self._calls.values() for _, (_, end) in some]
        if not all(self._device.query_event(end) for end in ends):
            return
        replayed, written = self._times_of("replay"), self._times_of("plain")
        self.pairs.append(PairTimes(replayed_ms=replayed, written_ms=written))
        self.times.compare(self.pairs)
        self._events.reset()
        self._calls = self._next_windows()

    def _times_of(self, way: _Way) -> float:
        """Return what a call of a window took."""
        calls, elapsed_ms = self._calls[way], self._device.elapsed_ms
        return WindowTimes(
            host_ms=[end - start for (start, _), (end, _) in calls],
            device_ms=[elapsed_ms(start, end) for (_, start), (_, end) in calls],
        ).call_ms
