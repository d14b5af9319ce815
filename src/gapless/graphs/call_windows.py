"""How the calls of one captured object run: captured, or left alone where that does not pay.

A replay may take longer than the call as written: where the device is busy all the time and copies into and
out of the graph come on top, or where a call is so short that what surrounds a replay takes as long. So once in
the life of a graph, some replays after it is first used, calls run either way in turn, in windows: both give the
same bits. As written is here what it is without a capture: nothing is looked at. An event at the start of each
tells the device's time, and the clock the host's; both are read late, without a wait. The time of a call is that to
the next one of the same object, and the larger of both. What replays save goes to the account: `CallTimes.compare`.

What does not pay is left alone, and measured again after ever more calls: others may have used the device, or the
host, for a while. If it has never paid it is left alone for good; and if an object has no other calls any more, it is
let go of. Calls that run as written since there is no room for more, since they are refused, or since a backward pass
still needs what a replay would overwrite, are left alone for a while, if it takes more than `_SHARE` of their time to
look at each, beyond what replays between them save.
"""

from __future__ import annotations

from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from gapless.graphs.step_call import DEPTH
from gapless.pipeline.streams import EventPool
from gapless.ranks import is_distributed
from gapless.records.replay_times import PairTimes, WindowTimes


if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from gapless.device.base import Device, Event
    from gapless.graphs.account import Account, CallTimes
    from gapless.graphs.capture_report import CaptureReport
    from gapless.graphs.captured_step import CapturedStep
    from gapless.graphs.entry import Entry

    _Way: TypeAlias = Literal["plain", "replay"]

    # The start of a call, on the host and on the device.
    _Moment: TypeAlias = tuple[float, Event]

    # Takes the arguments of a call.
    _Run: TypeAlias = Callable[[tuple[Any, ...], dict[str, Any]], Any]


# Replays of a graph before they are timed: a short loop is over by then.
NUM_BEFORE = 50

# Calls of a window.
NUM_IN_WINDOW = 8

# Calls after which it is asked what it takes to look at those that run as written, beyond what the others save,
# and the share of their time that it may take.
_MANY = 100
_SHARE = 0.01
_MOST_LEFT = 5_000

# Calls that are left alone before those are measured again that did not pay: the first time, the second one ...
_BEFORE_NEXT = (1_000, 4_000, 16_000)

# Calls in a row that are left alone for good, after which the object is.
_MANY_LEFT = 300

# Beyond so many kinds of calls none of them is timed.
_MOST_KINDS = 64


class CallWindows:
    """The ways of the calls of one captured object.

    Nothing is timed or left alone in a distributed run, whose ranks could decide differently, nor timed where a
    call as written has no memory beside the graphs, nor for graphs that have not been proved to give equal bits.

    Args:
        account: of the device, which lets one kind of calls at a time be timed: calls as written of another
            would lie between its calls.
        has_room: returns whether a call as written has memory beside the graphs.
        captured: runs a call by a graph if there is or can be one.
        as_written: runs a call, and looks at nothing.
        step: returns what has run the last call that was captured.
        let_go: leaves the object alone for good.

    Attributes:
        is_on: whether calls have to come by here; if not, all are captured.
    """

    def __init__(
        self,
        device: Device,
        account: Account,
        report: CaptureReport,
        *,
        has_room: Callable[[], bool],
        captured: _Run,
        as_written: _Run,
        step: Callable[[], CapturedStep | None],
        let_go: Callable[[], None],
    ) -> None:
        self.is_on = True
        self._device, self._account, self._report = device, account, report
        self._has_room, self._step, self._let_go = has_room, step, let_go
        self._captured, self._as_written = captured, as_written
        self._kinds: dict[Hashable, _Kind] = {}
        self._timed: _Windows | None = None
        self._num_left = 0

    def call(self, form: Hashable, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a call in the way that its kind is due.

        Args:
            form: tells kinds of calls apart, as far as that is known at once.
            args: of the call.
            kwargs: of the call.

        Sync: Does not block the host, except as the call does.
        """
        kind = self._kinds.get(form)
        if kind is None:
            if DEPTH.depth or len(self._kinds) >= _MOST_KINDS:
                return self._captured(args, kwargs)
            kind = self._kinds[form] = _Kind()
        if kind.num_left:
            return self._leave(kind, args, kwargs)
        self._num_left = 0
        now = None if self._timed is None else self._timed.end_call()
        windows = kind.windows
        if windows is not None and self._may_time(kind, windows):
            way = windows.begin_call(now)
            if way == "plain":
                return self._run_as_written(args, kwargs)
            if way is None and windows.read():
                self._finish(kind, windows)
        report = self._report
        before = report.num_replays
        out = self._captured(args, kwargs)
        is_replay = report.num_replays > before
        if is_replay:
            self._note_replay(kind)
        elif windows is not None:
            windows.counts = False
        self._note_call(kind, is_replay=is_replay)
        return out

    def forget(self) -> None:
        """Know nothing of calls so far."""
        self.is_on, self._kinds, self._timed = True, {}, None

    def _run_as_written(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        # What comes behind it is no time of the call before it.
        self._account.begin()
        self._report.num_eager += 1
        DEPTH.depth += 1
        try:
            return self._as_written(args, kwargs)
        finally:
            DEPTH.depth -= 1

    # --- calls that are left alone ---

    def _leave(self, kind: _Kind, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if kind.num_left == inf:
            self._num_left += 1
            if self._num_left == _MANY_LEFT:
                self._let_go()
        else:
            self._num_left = 0
            kind.num_left -= 1
            if not kind.num_left and kind.times is not None:
                self._account.pass_by(kind.times, kind.num_rest)
                kind.take_up()
        return self._run_as_written(args, kwargs)

    def _note_call(self, kind: _Kind, *, is_replay: bool) -> None:
        """Leave calls alone for a while, if it takes longer to look at them than replays save."""
        entry = self._entry()
        if entry is None:
            return
        some = kind.calls
        some.add(entry.times, is_replay=is_replay)
        if some.num < _MANY:
            return
        kind.calls = _Calls()
        share = some.share()
        if share > _SHARE and entry.times.as_written_s and not is_distributed():
            num = min(round(some.num * share / _SHARE), _MOST_LEFT)
            kind.times, kind.num_rest = entry.times, num
            is_final = entry.is_refused_for_good and not some.num_replays
            kind.num_left = inf if is_final else num
            if kind.windows is not None:
                kind.windows.counts = False
                self._timed = None if self._timed is kind.windows else self._timed

    def _entry(self) -> Entry | None:
        """Return the record of the last call that was captured, None if there is none."""
        step = self._step()
        return None if step is None else step.newest_entry

    # --- times ---

    def _note_replay(self, kind: _Kind) -> None:
        if kind.is_settled or kind.windows is not None:
            return
        kind.num_replays += 1
        if kind.num_replays < NUM_BEFORE:
            return
        step, entry = self._step(), self._entry()
        if step is None or entry is None or not entry.times.may_compare or is_distributed():
            self._settle(kind)
        else:
            kind.windows = _Windows(self._device, step, entry)

    def _settle(self, kind: _Kind) -> None:
        """Let calls of a kind be captured from now on, whatever they take."""
        kind.is_settled, kind.windows = True, None
        self.is_on = not all(one.is_settled for one in self._kinds.values())

    def _may_time(self, kind: _Kind, windows: _Windows) -> bool:
        if not self._account.takes_turn(windows):
            self._timed = None if self._timed is windows else self._timed
            return False
        if self._timed is not windows and (is_distributed() or not self._has_room()):
            self._settle(kind)
            return False
        self._timed = windows
        return True

    def _finish(self, kind: _Kind, windows: _Windows) -> None:
        """End the comparison of a kind, once its windows have shown enough."""
        times = windows.entry.times
        times.compare(windows.pairs)
        if times.verdict is None:
            return
        self._timed = None
        if times.verdict == "pays":
            self._settle(kind)
            return
        rests = _BEFORE_NEXT[kind.num_given_up :]
        kind.give_up(windows, num=rests[0] if rests else inf)


class _Kind:
    """What is known of one kind of calls.

    Attributes:
        num_left: calls in front of it that are left alone.
        num_rest: how many that were.
        times: of the calls that these are like, None if there were none.
        num_given_up: how often its replays have not paid.
        num_replays: before they are timed.
        calls: the last ones, of which none was left alone.
        windows: if its calls are timed.
        is_settled: whether nothing is to be timed any more.
    """

    def __init__(self) -> None:
        self.num_left: float = 0
        self.num_rest = self.num_replays = self.num_given_up = 0
        self.times: CallTimes | None = None
        self.calls = _Calls()
        self.windows: _Windows | None = None
        self.is_settled = False
        self._take_up: Callable[[], None] | None = None

    def give_up(self, windows: _Windows, *, num: float) -> None:
        """Leave so many calls alone, as replays have not paid."""
        self.num_left, self.windows, self.num_replays = num, None, 0
        self.num_given_up += 1
        if num != inf:
            self.times, self.num_rest = windows.entry.times, int(num)
            self._take_up = partial(windows.step.take_up_replays, windows.entry)
        windows.step.give_up_replays(windows.entry, windows.pairs, is_final=num == inf)

    def take_up(self) -> None:
        """Let calls have graphs again, whose replays are measured anew."""
        if self._take_up is not None:
            self._take_up()
            self._take_up = None


class _Calls:
    """Some calls of one kind.

    Attributes:
        num: of them.
        num_replays: among them.
    """

    def __init__(self) -> None:
        self.num = self.num_replays = 0
        self._as_written_s = 0.0
        # Of the times that they belong to: what looking had taken and replays had saved before.
        self._before: dict[CallTimes, tuple[float, float]] = {}

    def add(self, times: CallTimes, *, is_replay: bool) -> None:
        """Add a call, whose own time is known at the next one."""
        self.num += 1
        self.num_replays += is_replay
        self._as_written_s += times.as_written_s or 0.0
        if times not in self._before:
            self._before[times] = times.beside_s, times.saved_s

    def share(self) -> float:
        """Return how much of their time as written it takes to look at them, less what replays save."""
        beside_s = sum(times.beside_s - before for times, (before, _) in self._before.items())
        saved_s = sum(times.saved_s - before for times, (_, before) in self._before.items())
        return (beside_s - saved_s) / self._as_written_s if self._as_written_s else 0.0


class _Windows:
    """Pairs of windows of one kind of calls.

    Args:
        step: which replays them.
        entry: its record of the kind.

    Attributes:
        counts: whether the call of now ran in the way of its window.
        pairs: that were read.
    """

    def __init__(self, device: Device, step: CapturedStep, entry: Entry) -> None:
        self.step, self.entry = step, entry
        self.counts = False
        self.pairs: list[PairTimes] = []
        self._device = device
        self._events = EventPool(device, timed=True)
        # The starts of the calls of each window, and of the calls behind them.
        self._calls = self._next_windows()
        # When the call has begun, and how it was to run.
        self._start: _Moment | None = None
        self._way: _Way | None = None

    @property
    def way(self) -> _Way | None:
        """How the next call has to run, which is that of a window that is not full; None if all are."""
        return next((way for way, some in self._calls.items() if len(some) < NUM_IN_WINDOW), None)

    def end_call(self) -> _Moment | None:
        """Note that a call of the same object begins; return when, if that was asked for."""
        start, self._start = self._start, None
        if start is None or self._way is None or not self.counts:
            return None
        now = self._now()
        self._calls[self._way].append((start, now))
        return now

    def begin_call(self, now: _Moment | None) -> _Way | None:
        """Begin a call; return how it has to run, None if that is all the same."""
        self._way, self.counts = self.way, True
        if self._way is not None:
            self._start = now or self._now()
        return self._way

    def _now(self) -> _Moment:
        event = self._events.record(self._device.current_stream())
        return self._device.now_ms(), event

    def _next_windows(self) -> dict[_Way, list[tuple[_Moment, _Moment]]]:
        # What drifts, and what comes at regular times, does not always meet the same way.
        if len(self.pairs) % 2:
            return {"plain": [], "replay": []}
        return {"replay": [], "plain": []}

    def read(self) -> bool:
        """Take in the times of both windows, if the device has come so far; return whether it has."""
        ends = [end for some in self._calls.values() for _, (_, end) in some]
        if not all(self._device.query_event(end) for end in ends):
            return False
        replayed, written = self._times_of("replay"), self._times_of("plain")
        self.pairs.append(PairTimes(replayed_ms=replayed, written_ms=written))
        self._events.reset()
        self._calls = self._next_windows()
        return True

    def _times_of(self, way: _Way) -> float:
        """Return what a call of a window took."""
        calls, elapsed_ms = self._calls[way], self._device.elapsed_ms
        return WindowTimes(
            host_ms=[end - start for (start, _), (end, _) in calls],
            device_ms=[elapsed_ms(start, end) for (_, start), (_, end) in calls],
        ).call_ms
