"""What the ranks of a run agree on: how they were started, when they stop, their weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from gapless import __version__
from gapless.device.bits import Checksums
from gapless.errors import RanksDifferError, UserError
from gapless.nmt.run.stopping import AgreedClock
from gapless.pipeline.host_copy import HostCopy


if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gapless.nmt.run.stopping import StopRequest, WallClock
    from gapless.pipeline.host_waits import HostWaits
    from gapless.pipeline.losses.deferred_loss import DeferredLoss
    from gapless.ranks import Ranks


# --- how they were started ---


def check_same_start(ranks: Ranks, given: Mapping[str, Any]) -> None:
    """Check that all ranks were started with the same settings and libraries; rank 0 reads the text for all.

    Args:
        ranks: of the run.
        given: what this one was started with, by name; None counts as not given.

    Raises:
        UserError: on all ranks, with the first difference.

    Sync: With several ranks, blocks the host until all are here.
    """
    if ranks.world == 1:
        return
    difference = first_difference(ranks.agree(_described(given)))
    if difference is not None:
        raise UserError(difference)


def first_difference(ranks: Sequence[Mapping[str, str]]) -> str | None:
    """Return a line about the first thing that a rank has otherwise than rank 0; None: there is none.

    Args:
        ranks: what each has, by name, as people are to read it.
    """
    first = ranks[0]
    for number, other in enumerate(ranks):
        for name in (*first, *(name for name in other if name not in first)):
            here, there = first.get(name, "missing"), other.get(name, "missing")
            if here != there:
                return (
                    f"{name} is {here} on rank 0, but {there} on rank {number}; start all ranks with "
                    "the same settings and libraries"
                )
    return None


def _described(given: Mapping[str, Any]) -> dict[str, str]:
    settings = {
        f"`{name}`": repr(value) if isinstance(value, str) else str(value)
        for name, value in given.items()
        if value is not None
    }
    return {
        "gapless": __version__,
        "torch": str(torch.__version__),
        **settings,
    }


# --- after each update ---


_STOP, _FAIL, _SAVE, _MILLISECONDS = "stop", "fail", "save", "milliseconds"


class Decisions:
    """Decide when a run stops or fails, and when its state is saved: those of a process alone.

    Args:
        stop: that this process may be asked for.

    Attributes:
        fails: whether the run fails now, on all ranks, each of which has read the loss.
    """

    def __init__(self, stop: StopRequest) -> None:
        self._stop = stop
        self.fails = False

    def ask_to_fail(self) -> None:
        """Ask that the run fails: the losses that all ranks read on this one first say so."""
        self.fails = True

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
        return self._stop.take_save()


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
        return Decisions(stop)
    assert isinstance(clock, AgreedClock)
    return _SeveralRanks(ranks, stop=stop, clock=clock, losses=losses, host_waits=host_waits)


class _SeveralRanks(Decisions):
    def __init__(
        self,
        ranks: Ranks,
        *,
        stop: StopRequest,
        clock: AgreedClock,
        losses: DeferredLoss,
        host_waits: HostWaits,
    ) -> None:
        super().__init__(stop)
        self._ranks, self._clock, self._losses = ranks, clock, losses
        self._signal = 0
        self._is_save_due = self._is_failure_seen = False
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
        # Sent with the next update: a signal that arrives during an agreement would reach some ranks only.
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
            # A rank that has not read this loss yet would fail without knowing at which update.
            self._losses.drain()
            self.fails = True
        if _STOP in agreed and self._stop.number is None:
            self._stop.number = agreed[_STOP]


# --- before weights are saved ---


def check_same_weights(
    weights: Mapping[str, torch.Tensor], ranks: Ranks, *, host_waits: HostWaits, updates: int
) -> None:
    """Check that the weights of all ranks have the same bits, before they are saved as those of all.

    Call it on the compute stream.

    Args:
        weights: by name, on the device.
        ranks: that train them.
        host_waits: counts the wait.
        updates: done so far, for the message.

    Raises:
        RanksDifferError: on all ranks, with the first weight that differs.

    Sync: With several ranks, blocks the host until the device has done all updates so far; counted
        as "checkpoint".
    """
    if ranks.world == 1:
        return
    largest = max(weight.numel() for weight in weights.values())
    checksums = Checksums(host_waits.device.torch_device, num_elements=largest)
    own = checksums.take_all(weights.values())
    copy = HostCopy(ranks.gather_rows(own), device=host_waits.device)
    copy.wait(host_waits, reason="checkpoint")
    first, *others = copy.value.tolist()
    for rank, theirs in enumerate(others, start=1):
        for name, here, there in zip(weights, first, theirs, strict=True):
            if here != there:
                raise RanksDifferError(
                    f"after update {updates} the weight {name} of rank {rank} is not that of rank 0, "
                    "expected the same bits on all ranks; no state is saved: go on from the one "
                    "before, on processors of one kind, and look for faulty memory if it happens again"
                )
