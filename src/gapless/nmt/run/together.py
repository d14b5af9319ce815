"""What the ranks of a run decide together: when it stops or fails, and when its state is saved.

A single rank decides at once. Several agree after each update, by counts: a signal, or a clock, says
other things on other ranks. So the time of a run is that of rank 0 when they last agreed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from gapless.nmt.run.time_limit import AgreedClock


if TYPE_CHECKING:
    from collections.abc import Mapping

    from gapless.nmt.run.interrupt import StopRequest
    from gapless.nmt.run.time_limit import WallClock
    from gapless.pipeline.host_waits import HostWaits
    from gapless.pipeline.readback import DeferredLoss
    from gapless.ranks import Ranks


_STOP, _FAIL, _SAVE, _MILLISECONDS = "stop", "fail", "save", "milliseconds"


class Decisions(Protocol):
    """Decide when a run stops or fails, and when its state is saved."""

    def ask_to_fail(self) -> None:
        """Ask that the run fails: the losses that all ranks read on this one first say so."""

    @property
    def fails(self) -> bool:
        """Whether the run fails now, on all ranks, each of which has read the loss."""

    def after_update(self, updates: int) -> None:
        """Take note of an update that is queued on every rank.

        Args:
            updates: of the whole run.

        Sync: With several ranks, waits for those that lag behind; counted as "agreement".
        """

    def settle(self) -> None:
        """Agree on what is open, between two parts of a run.

        Sync: With several ranks, blocks the host until all are here; counted as "agreement".
        """

    def take_save(self) -> bool:
        """Return whether somebody asked for a state since the last call."""


def decisions_of(
    ranks: Ranks,
    *,
    stop: StopRequest,
    clock: WallClock | AgreedClock,
    losses: DeferredLoss,
    host_waits: HostWaits,
) -> Decisions:
    """Return the decisions of a run.

    Args:
        ranks: that train it.
        stop: that this process may be asked for.
        clock: of the run; the ranks agree on its time.
        losses: of all batches of this process; all are read before the run fails.
        host_waits: counts the waits for other ranks.
    """
    if ranks.world == 1:
        return _SingleRank(stop)
    assert isinstance(clock, AgreedClock)
    return _SeveralRanks(ranks, stop=stop, clock=clock, losses=losses, host_waits=host_waits)


class _SingleRank:
    def __init__(self, stop: StopRequest) -> None:
        self._stop = stop
        self.fails = False

    def ask_to_fail(self) -> None:
        self.fails = True

    def after_update(self, updates: int) -> None:
        del updates

    def settle(self) -> None:
        pass

    def take_save(self) -> bool:
        return self._stop.take_save()


class _SeveralRanks:
    def __init__(
        self,
        ranks: Ranks,
        *,
        stop: StopRequest,
        clock: AgreedClock,
        losses: DeferredLoss,
        host_waits: HostWaits,
    ) -> None:
        self._ranks, self._stop, self._clock, self._losses = ranks, stop, clock, losses
        self._signal = 0
        self._is_save_due = self._is_failure_seen = self.fails = False
        self._agreement = ranks.agreement(
            (_STOP, _FAIL, _SAVE, _MILLISECONDS), blocking=host_waits.blocking
        )
        stop.tell_others(self._note_signal)

    def ask_to_fail(self) -> None:
        self._is_failure_seen = True

    def after_update(self, updates: int) -> None:
        self._ranks.note_updates(updates)
        self._ask()
        self._take(self._agreement.after_update(updates))

    def settle(self) -> None:
        self._ask()
        self._take(self._agreement.finish())

    def take_save(self) -> bool:
        is_due, self._is_save_due = self._is_save_due, False
        return is_due

    def _note_signal(self, number: int) -> None:
        # Told with the next update: what an agreement takes must not change while it does.
        self._signal = number

    def _ask(self) -> None:
        if self._signal:
            self._agreement.ask(_STOP, self._signal)
        if self._is_failure_seen:
            self._agreement.ask(_FAIL)
        if self._stop.take_save():
            self._agreement.ask(_SAVE)
        if self._ranks.is_first:
            self._agreement.ask(_MILLISECONDS, max(1, int(self._clock.own_seconds() * 1000)))

    def _take(self, agreed: Mapping[str, int]) -> None:
        self._clock.agree(agreed.get(_MILLISECONDS, 0) / 1000)
        self._is_save_due |= _SAVE in agreed
        if _FAIL in agreed:
            # Some ranks may not have read the loss that another has.
            self._losses.drain()
            self.fails = True
        if _STOP in agreed and self._stop.number is None:
            self._stop.number = agreed[_STOP]
