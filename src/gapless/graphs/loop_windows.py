"""Whether a loop is faster with all that is captured in place than without any of it.

Each object may pay for itself, as far as `gapless.graphs.call_windows` can tell, and all together may not: what
lies around a replay is not the same beside other replays. So when the calls of a loop have settled, and the
account does not say that they have saved much, windows of steps run in turn with all objects captured and with
none: both give the same bits. A step is a call of one optimizer, and what counts is the time from the first step
of a window to the first of the next, whatever is in between. Several windows in a row have to show a loss. The
loop is then left alone, and measured again after ever more steps; at last the objects are let go of.
"""

from __future__ import annotations

import weakref
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol, TypeAlias

from gapless.pipeline.streams import EventPool
from gapless.ranks import is_distributed
from gapless.records.replay_times import PairTimes, judged_loop


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gapless.device.base import Device, Event
    from gapless.graphs.account import Account

    # The start of a step, on the host and on the device.
    _Moment: TypeAlias = tuple[float, Event]


# Steps before the first window, and those of a window: many loops have rhythms that this is a multiple of.
NUM_BEFORE = 300
NUM_IN_WINDOW = 64

# A loop is not compared if replays have saved this share of its time as written, by the account.
_SURELY_PAYS = 0.1

# Steps that are left alone before they are measured again: the first time, and the second one.
_BEFORE_NEXT = (4_000, 16_000)


class Member(Protocol):
    """The calls of an object."""

    has_room: Callable[[], bool]

    def go_with_loop(self, *, is_off: bool) -> None:
        """Let calls run as written, or as graphs again."""

    def leave_with_loop(self, pairs: Sequence[PairTimes], *, is_final: bool) -> None:
        """Say that calls run as written, and leave them alone if that is final."""


class LoopWindows:
    """Compares the loop of a process with and without what is captured in place.

    Attributes:
        is_off: whether all calls that can run as written do.
    """

    def __init__(self, device: Device, account: Account) -> None:
        self.is_off = False
        # The table of loops does not keep it.
        self._device: Device = weakref.proxy(device)
        self._account = account
        self._members: weakref.WeakSet[Member] = weakref.WeakSet()
        self._counts: weakref.ref[object] | None = None
        self._events = EventPool(self._device, timed=True)
        # Steps in front of the next change of windows.
        self._num_left = NUM_BEFORE
        self._moments: list[_Moment] = []
        self._pairs: list[PairTimes] = []
        self._num_losses = 0
        self._is_over = False

    def join(self, windows: Member) -> None:
        """Let an object be one of those that are compared together."""
        self._members.add(windows)

    def note_step(self, optimizer: object) -> None:
        """Note that a call of an optimizer begins.

        Sync: Does not block the host.
        """
        if self._is_over:
            return
        counts = None if self._counts is None else self._counts()
        if counts is None:
            self._counts = weakref.ref(optimizer)
        elif counts is not optimizer:
            return
        if self._moments:
            self._account.takes_turn(self)
        self._num_left -= 1
        if self._num_left > 0:
            return
        self._num_left = NUM_IN_WINDOW
        if not self._moments:
            self._begin()
        elif len(self._moments) < 3:
            self._moments.append(self._now())
            self._set_off(is_off=not self.is_off and len(self._moments) < 3)
        if len(self._moments) == 3:
            self._num_left = 1
            if self._device.query_event(self._moments[-1][1]):
                self._take_pair()

    def _begin(self) -> None:
        """Begin to compare, unless an object is compared for itself just now."""
        if (
            self._saves_enough()
            or is_distributed()
            or not all(one.has_room() for one in self._members)
        ):
            self._is_over = True
        elif self.is_off:
            self._set_off(is_off=False)
            self._num_left = NUM_BEFORE
        elif self._account.takes_turn(self):
            self._moments = [self._now()]
            # What drifts does not always meet the same way.
            self._set_off(is_off=len(self._pairs) % 2 == 1)

    def _saves_enough(self) -> bool:
        """Return whether replays pay without doubt; what was left alone is always compared."""
        account = self._account
        return not self._num_losses and -account.debt_s > _SURELY_PAYS * account.as_written_s

    def _now(self) -> _Moment:
        event = self._events.record(self._device.current_stream())
        return self._device.now_ms(), event

    def _take_pair(self) -> None:
        spans = [
            max(after[0] - before[0], self._device.elapsed_ms(before[1], after[1])) / NUM_IN_WINDOW
            for before, after in pairwise(self._moments)
        ]
        replayed_ms, written_ms = reversed(spans) if len(self._pairs) % 2 else spans
        self._pairs.append(PairTimes(replayed_ms=replayed_ms, written_ms=written_ms))
        self._events.reset()
        self._moments = []
        verdict = judged_loop(self._pairs)
        if verdict is not None:
            self._account.end_turn()
            pairs, self._pairs = self._pairs, []
            self._is_over = verdict == "pays"
            if verdict == "does_not_pay":
                self._leave_alone(pairs)

    def _leave_alone(self, pairs: list[PairTimes]) -> None:
        rests = _BEFORE_NEXT[self._num_losses :]
        self._num_losses += 1
        self._is_over = not rests
        if rests:
            self._num_left = rests[0]
            self._set_off(is_off=True)
        for member in list(self._members):
            member.leave_with_loop(pairs, is_final=not rests)

    def _set_off(self, *, is_off: bool) -> None:
        if is_off is not self.is_off:
            self.is_off = is_off
            for member in self._members:
                member.go_with_loop(is_off=is_off)


_LOOPS: weakref.WeakKeyDictionary[Device, LoopWindows] = weakref.WeakKeyDictionary()


def loop_of(device: Device, account: Account) -> LoopWindows:
    """Return what compares the loop on a device, which is that of a process: it trains on one."""
    loop = _LOOPS.get(device)
    if loop is None:
        loop = _LOOPS[device] = LoopWindows(device, account)
    return loop
