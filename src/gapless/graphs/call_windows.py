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
from typing import TYPE_CHECKING, Literal

from gapless.pipeline.streams import EventPool
from gapless.ranks import is_distributed
from gapless.records.replay_times import PairTimes, WindowTimes


if TYPE_CHECKING:
    from collections.abc import Callable

    from gapless.device.base import Device, Event
    from gapless.graphs.account import Account, What
    from gapless.graphs.entry import Entry
    from gapless.graphs.replay.call_graph import CallGraph


# Replays of a graph before they are timed: a short loop is over by then.
NUM_BEFORE = 50

# Calls of a window.
NUM_IN_WINDOW = 8


class CallWindows:
    """The windows of all graphs of one captured object, one graph after the other.

    Nothing is timed in a distributed run, whose ranks could decide differently, nor where a call as
    written has no memory beside the graphs, nor for graphs that have not been proved to give equal bits.

    Args:
        device: where calls run.
        account: of the device, which lets one graph at a time be timed: calls as written of another
            would lie between its calls.
        has_room: returns whether a call as written has memory beside the graphs.
        give_up: called with a kind of call whose replays do not pay, and with the times that show it.
    """

    def __init__(
        self,
        device: Device,
        account: Account,
        *,
        has_room: Callable[[], bool],
        give_up: Callable[[Entry, list[PairTimes]], None],
    ) -> None:
        self._device = device
        self._account = account
        self._has_room = has_room
        self._give_up = give_up
        self._graphs: weakref.WeakKeyDictionary[CallGraph, _GraphWindows] = (
            weakref.WeakKeyDictionary()
        )
        self._timed: _GraphWindows | None = None

    def add(self, graph: CallGraph, entry: Entry) -> None:
        """Let a graph be timed that gives the same bits as its calls as written, the first of its kind.

        Args:
            graph: that will be replayed.
            entry: of the kind of its calls.
        """
        if entry.times.verdict is None:
            self._graphs[graph] = _GraphWindows(self._device, graph, entry)

    def are_open(self, graph: CallGraph) -> bool:
        """Return whether calls of a graph are still to be timed, so that each has to come by here."""
        return graph in self._graphs

    def begin_call(
        self, entry: Entry, graph: CallGraph | None
    ) -> Literal["plain", "replay"] | None:
        """Note that a call begins; return how it has to run, None if that is all the same.

        Args:
            entry: of its kind.
            graph: that would be replayed, None if there is none.

        Sync: Does not block the host.
        """
        now = None if self._timed is None else self._timed.end_last()
        found = None if graph is None else self._graphs.get(graph)
        if found is None or not found.is_due():
            return None
        if not self._account.takes_turn(found):
            self._timed = None if self._timed is found else self._timed
            return None
        if self._timed is not found and not self._may_begin(found):
            return None
        self._timed = found
        found.begin_call(now)
        if found.times.verdict is None:
            return found.way
        self._finish(entry, found)
        return "plain" if found.times.verdict == "does_not_pay" else None

    def end_call(self, entry: Entry, what: What) -> None:
        """Note that the call is over, and what it was: it counts if it was as it had to be.

        Sync: Does not block the host.
        """
        if self._timed is not None:
            self._timed.end_call(entry, what)

    def _may_begin(self, found: _GraphWindows) -> bool:
        if not is_distributed() and self._has_room():
            return True
        self._forget(found)
        return False

    def _finish(self, entry: Entry, timed: _GraphWindows) -> None:
        self._timed = None
        self._forget(timed)
        if timed.times.verdict == "does_not_pay" and not is_distributed():
            self._give_up(entry, timed.pairs)

    def _forget(self, found: _GraphWindows) -> None:
        graph = found.graph()
        if graph is not None:
            self._graphs.pop(graph, None)


@dataclass(frozen=True, slots=True)
class _Moment:
    """The start of a call, on the host and on the device."""

    host_ms: float
    event: Event


@dataclass
class _Window:
    """Calls of one way.

    Attributes:
        way: how they run.
        calls: their starts, and those of the calls behind them.
    """

    way: Literal["plain", "replay"]
    calls: list[tuple[_Moment, _Moment]] = field(default_factory=list)

    @property
    def is_full(self) -> bool:
        return len(self.calls) >= NUM_IN_WINDOW


class _GraphWindows:
    """Pairs of windows of one graph.

    Attributes:
        graph: reference to it.
        number: of the kind of its calls.
        times: of its calls.
        pairs: times of windows that were read.
    """

    def __init__(self, device: Device, graph: CallGraph, entry: Entry) -> None:
        # The record of the kind holds the graph.
        self.graph = weakref.ref(graph)
        self.number, self.times = entry.number, entry.times
        self.pairs: list[PairTimes] = []
        self._device = device
        self._events = EventPool(device, timed=True)
        self._windows = self._next_windows()
        self._num_before = 0
        # The call that has begun, and the window that it counts in.
        self._start: _Moment | None = None
        self._window: _Window | None = None

    @property
    def way(self) -> Literal["plain", "replay"] | None:
        """How the next call has to run; None if its way does not matter."""
        window = self._open()
        return None if window is None else window.way

    def is_due(self) -> bool:
        """Count a call that would be a replay; return whether it may be timed."""
        self._num_before += 1
        return self._num_before > NUM_BEFORE

    def end_last(self) -> _Moment | None:
        """Note that a call of the same object begins; return when, if that was asked for."""
        start, window = self._start, self._window
        self._start = self._window = None
        if start is None or window is None:
            return None
        now = self._now()
        window.calls.append((start, now))
        return now

    def begin_call(self, now: _Moment | None) -> None:
        """Begin a call that the graph could take.

        Args:
            now: when, if that is known.
        """
        if self._open() is None:
            self._read()
        else:
            self._start = now or self._now()

    def end_call(self, entry: Entry, what: What) -> None:
        """Note what the call was that has begun."""
        window = self._open()
        is_as_asked = window is not None and what == window.way and entry.number == self.number
        self._window = window if is_as_asked else None

    def _open(self) -> _Window | None:
        return next((one for one in self._windows if not one.is_full), None)

    def _now(self) -> _Moment:
        event = self._events.record(self._device.current_stream())
        return _Moment(self._device.now_ms(), event)

    def _next_windows(self) -> list[_Window]:
        # What drifts, and what comes at regular times, does not always meet the same way.
        ways: list[Literal["plain", "replay"]] = ["replay", "plain"]
        return list(map(_Window, ways if len(self.pairs) % 2 == 0 else reversed(ways)))

    def _read(self) -> None:
        """Take in the times of both windows, if the device has come so far."""
        if not all(
            self._device.query_event(end.event)
            for window in self._windows
            for _, end in window.calls
        ):
            return
        times = {window.way: self._times_of(window).call_ms for window in self._windows}
        self.pairs.append(PairTimes(replayed_ms=times["replay"], written_ms=times["plain"]))
        self.times.compare(self.pairs)
        self._events.reset()
        self._windows = self._next_windows()

    def _times_of(self, window: _Window) -> WindowTimes:
        elapsed_ms = self._device.elapsed_ms
        return WindowTimes(
            host_ms=[end.host_ms - start.host_ms for start, end in window.calls],
            device_ms=[elapsed_ms(start.event, end.event) for start, end in window.calls],
        )
