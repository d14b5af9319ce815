"""Compare replays with calls as written, in the loop that makes them, and end those that do not pay.

A replay may take longer than the call as written: where the device is busy all the time, and copies
into and out of the graph come on top. Both give the same bits, so calls may run either way. After
some replays of a graph, windows of a few calls each run in turn as replays and as written. An event
at the start of each call tells the device's time, and the clock the host's. Both are read late,
without a wait. `gapless.records.replay_times` says what follows from them.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch

from gapless.graphs.quick_call import NOT_ALIKE
from gapless.graphs.refusal import Refusal
from gapless.pipeline.streams import EventPool
from gapless.pipeline.tree.call_tree import form_of
from gapless.pipeline.tree.tensor_layout import comparison_with
from gapless.ranks import is_distributed
from gapless.records.replay_times import PairTimes, WindowTimes, judged, loss_text


if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from gapless.device.base import Device, Event
    from gapless.graphs.quick_call import QuickCall
    from gapless.graphs.replay.call_graph import CallGraph
    from gapless.pipeline.tree.flatten import Tree


_Way = Literal["replayed", "written"]

# Replays of a graph before they are compared: a short loop is over by then.
NUM_BEFORE = 50

# Calls of a window.
NUM_IN_WINDOW = 8

# A comparison whose graph is not called any more ends after so many calls of others.
_MOST_OTHERS = 1_000


class PayOff:
    """Decides how the calls of one captured object run: as replays, or as written.

    Nothing is compared in a distributed run, whose ranks could decide differently, nor while another
    object of the device is compared, nor for graphs that have not been proved to give equal bits.

    Args:
        device: where they run.
        as_written: runs a call, given its arguments.
        has_room: returns whether a call as written has memory beside the graphs.
        give_up: called with a kind of call whose replays do not pay, and with the reason.
        settle: called when a graph is not compared any more.
    """

    def __init__(
        self,
        device: Device,
        *,
        as_written: Callable[[tuple[Any, ...], dict[str, Any]], Any],
        has_room: Callable[[], bool],
        give_up: Callable[[Hashable, Refusal], None],
        settle: Callable[[], None],
    ) -> None:
        self.as_written = as_written
        self._device = device
        self._has_room = has_room
        self._give_up = give_up
        self._settle = settle
        self._turn = _TURNS.setdefault(device, _Turn())
        self._num_replays: weakref.WeakKeyDictionary[CallGraph, int] = weakref.WeakKeyDictionary()
        self._comparison: _Comparison | None = None
        # By hash: keys hold every plain value of their calls.
        self._given_up: set[int] = set()
        self._quick_calls: dict[tuple[int, bool], QuickCall | None] = {}

    def add(self, graph: CallGraph) -> None:
        """Let a graph be compared that gives the same bits as its calls as written."""
        self._num_replays[graph] = 0

    def is_given_up(self, kind: Hashable) -> bool:
        """Return whether calls of a kind run as written because replays do not pay."""
        return hash(kind) in self._given_up

    def is_as_written(self, kind: Hashable, graph: CallGraph | None) -> bool:
        """Note that a call begins, and return whether it has to run as written.

        Args:
            kind: of the call.
            graph: that would be replayed, None if there is none.

        Sync: Does not block the host.
        """
        if self._given_up and self.is_given_up(kind):
            return True
        if graph is None:
            self._end_call()
            return False
        return self._way_of(graph, kind) == "written" or self.is_given_up(kind)

    def watched(self, tree: Tree, graph: CallGraph, replay: QuickCall) -> QuickCall:
        """Return a quick call that replays a graph, or runs as written where that is compared.

        Args:
            tree: a call of its kind.
            graph: the graph.
            replay: the quick call that replays it, which is returned once all is decided.
        """
        are_alike = comparison_with(tree.leaves)
        if graph not in self._num_replays or are_alike is None:
            return replay
        form, kind, guards_hold, can_take = (
            tree.structure(),
            tree.key(),
            graph.guards.hold,
            graph.can_take,
        )

        def call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if self._way_of(graph, kind) == "replayed":
                out = replay(args, kwargs)
                if out is NOT_ALIKE:
                    self.forget_call()
                return out
            leaves: list[torch.Tensor] = []
            if (
                self.is_given_up(kind)
                or form_of(args, kwargs, leaves) != form
                or not are_alike(*leaves)
                or not (guards_hold() and can_take(leaves))
            ):
                self.forget_call()
                return NOT_ALIKE
            return self.as_written(args, kwargs)

        return call

    def quick_as_written(self, kind: Hashable, tree: Tree) -> QuickCall | None:
        """Return a function that runs calls like one as written, and returns `NOT_ALIKE` of others.

        Args:
            kind: of the one call.
            tree: the call.
        """
        key = (hash(kind), torch.is_grad_enabled())
        if key not in self._quick_calls:
            self._quick_calls[key] = self._make_quick_call(tree)
        return self._quick_calls[key]

    def _make_quick_call(self, tree: Tree) -> QuickCall | None:
        are_alike = comparison_with(tree.leaves)
        if are_alike is None:
            return None
        form, has_grad = tree.structure(), torch.is_grad_enabled()

        def call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            leaves: list[torch.Tensor] = []
            if form_of(args, kwargs, leaves) != form or not are_alike(*leaves):
                return NOT_ALIKE
            if torch.is_grad_enabled() is not has_grad:
                return NOT_ALIKE
            return self.as_written(args, kwargs)

        return call

    # --- calls that are compared ---

    def _way_of(self, graph: CallGraph, kind: Hashable) -> _Way:
        """Begin a call that a graph could take; return how it is to run."""
        if self._comparison is None:
            if not self._is_due(graph):
                return "replayed"
            self._comparison = _Comparison(self._device, weakref.ref(graph), kind)
        comparison = self._comparison
        if not self._turn.is_of(self) or comparison.is_stale(graph):
            self._stop()
            return "replayed"
        way = comparison.begin_call(graph)
        if comparison.verdict is not None:
            self._finish(comparison)
        return way

    def _is_due(self, graph: CallGraph) -> bool:
        num = self._num_replays.get(graph)
        if num is None:
            return False
        self._num_replays[graph] = num + 1
        if num < NUM_BEFORE or not self._turn.take(self):
            return False
        if not is_distributed() and self._has_room():
            return True
        self._stop()
        self._settled(graph)
        return False

    def _stop(self) -> None:
        self._comparison = None
        self._turn.leave(self)

    def _finish(self, comparison: _Comparison) -> None:
        self._stop()
        if comparison.verdict == "does_not_pay" and not is_distributed():
            self._given_up.add(hash(comparison.kind))
            self._give_up(comparison.kind, _does_not_pay(comparison.pairs))
        self._settled(comparison.graph())

    def _settled(self, graph: CallGraph | None) -> None:
        if graph is not None:
            self._num_replays.pop(graph, None)
        self._settle()

    def _end_call(self) -> None:
        if self._comparison is not None:
            self._comparison.end_call()

    def forget_call(self) -> None:
        """Leave out the call of now, which runs otherwise than it was to run."""
        if self._comparison is not None:
            self._comparison.forget_call()


@dataclass
class _Window:
    """Calls of one way.

    Attributes:
        way: how they run.
        calls: their starts and those of the calls behind them.
    """

    way: _Way
    calls: list[tuple[_Moment, _Moment]] = field(default_factory=list)

    @property
    def is_full(self) -> bool:
        return len(self.calls) >= NUM_IN_WINDOW


@dataclass(frozen=True, slots=True)
class _Moment:
    """The start of a call, on the host and on the device."""

    host_ms: float
    event: Event


class _Comparison:
    """Windows of calls of one graph.

    Args:
        device: where they run.
        graph: reference to it.
        kind: of its calls.

    Attributes:
        pairs: times of windows that were read.
        verdict: what they show, None as long as they do not.
    """

    def __init__(self, device: Device, graph: weakref.ref[CallGraph], kind: Hashable) -> None:
        self.graph = graph
        self.kind = kind
        self.pairs: list[PairTimes] = []
        self.verdict: Literal["pays", "does_not_pay"] | None = None
        self._device = device
        self._events = EventPool(device, timed=True)
        self._begun: tuple[_Window, _Moment] | None = None
        self._windows = self._next_windows()
        self._num_others = 0

    def is_stale(self, graph: CallGraph) -> bool:
        """Return, at each call, whether its graph is gone or not called any more."""
        self._num_others = 0 if self.graph() is graph else self._num_others + 1
        return self.graph() is None or self._num_others > _MOST_OTHERS

    def begin_call(self, graph: CallGraph) -> _Way:
        """Begin a call that a graph could take; return how it is to run.

        Sync: Does not block the host.
        """
        self.end_call()
        window = next((one for one in self._windows if not one.is_full), None)
        if window is None:
            self._read()
            return "replayed"
        if self.graph() is not graph:
            return "replayed"
        self._begun = (window, self._now())
        return window.way

    def end_call(self) -> None:
        """Note that another call begins."""
        if self._begun is not None:
            window, start = self._begun
            window.calls.append((start, self._now()))
            self._begun = None

    def forget_call(self) -> None:
        """Leave out a call that ran otherwise than it was to run."""
        self._begun = None

    def _now(self) -> _Moment:
        event = self._events.record(self._device.current_stream())
        return _Moment(self._device.now_ms(), event)

    def _next_windows(self) -> list[_Window]:
        # What drifts, and what comes at regular times, does not always meet the same way.
        ways: list[_Way] = ["replayed", "written"]
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
        self.pairs.append(PairTimes(replayed_ms=times["replayed"], written_ms=times["written"]))
        self.verdict = judged(self.pairs)
        self._events.reset()
        self._windows = self._next_windows()

    def _times_of(self, window: _Window) -> WindowTimes:
        elapsed_ms = self._device.elapsed_ms
        return WindowTimes(
            host_ms=[end.host_ms - start.host_ms for start, end in window.calls],
            device_ms=[elapsed_ms(start.event, end.event) for start, end in window.calls],
        )


class _Turn:
    """Whose calls are compared now on a device: one object's, since those of others lie between."""

    def __init__(self) -> None:
        self._holder: weakref.ref[PayOff] | None = None
        self._num_asked = 0

    def take(self, one: PayOff) -> bool:
        """Let an object have its turn if no other has it, or if that is not called any more."""
        holder = None if self._holder is None else self._holder()
        self._num_asked += 1
        if holder is not None and holder is not one and self._num_asked < _MOST_OTHERS:
            return False
        self._holder, self._num_asked = weakref.ref(one), 0
        return True

    def is_of(self, one: PayOff) -> bool:
        """Return, at each call of an object that had its turn, whether it still has."""
        if self._holder is None or self._holder() is not one:
            return False
        self._num_asked = 0
        return True

    def leave(self, one: PayOff) -> None:
        """End the turn of an object."""
        if self.is_of(one):
            self._holder = None


_TURNS: weakref.WeakKeyDictionary[Device, _Turn] = weakref.WeakKeyDictionary()


def _does_not_pay(pairs: list[PairTimes]) -> Refusal:
    return Refusal(
        "does_not_pay",
        f"replays do not pay: from call to call the loop takes {loss_text(pairs)}, so calls of this "
        "kind run as written",
        name="replays that do not pay",
        is_of_call=True,
    )
