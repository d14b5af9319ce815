"""Flags on which all ranks act at the same update.

The ranks exchange their flags at updates that are known beforehand, and read them at the next such
update. So nobody waits for an exchange that has just begun, and everybody reads the same.

How many updates lie between two exchanges may follow the time that an update takes. This time is
exchanged with the flags, so that all ranks know the same.
"""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from gapless.ranks.flags import RaisedFlags
from gapless.ranks.peer_errors import named_as_lost
from gapless.ranks.protocol import MOST_UPDATES_BETWEEN_AGREEMENTS


if TYPE_CHECKING:
    from collections.abc import Sequence

    from gapless.ranks.protocol import Blocking


# Between two exchanges if updates are slow: a run that is asked to stop must do so within seconds.
_MOST_SECONDS = 0.5


class GroupAgreement:
    """Implements `Agreement` over a group on the host.

    Args:
        flags: names of what can be agreed on.
        group: of gloo.
        blocking: counts the waits for other ranks.
        every: updates from one exchange to the next, 1 or more; None: as many as take half a second
            on the slowest rank, at most 10. An exchange is read at once where one update takes that.
    """

    def __init__(
        self,
        flags: Sequence[str],
        *,
        group: dist.ProcessGroup,
        blocking: Blocking,
        every: int | None,
    ) -> None:
        self._raised = RaisedFlags(flags)
        self._group = group
        self._blocking = blocking
        self._follows_time = every is None
        self._every = every or 1
        # As long as nothing is known of the time.
        self._is_slow = every is None
        # Update and time of the last exchange; no time where other work came after it.
        self._updates = 0
        self._began_at: float | None = None
        self._exchange: _Exchange | None = None

    def ask(self, flag: str, value: int = 1) -> None:
        """Raise a flag of this rank."""
        self._raised.ask(flag, value)

    def after_update(self, updates: int) -> dict[str, int]:
        """Return what was agreed on at this update; begin the next exchange where it is due.

        Raises:
            PeerLostError: another rank is gone.

        Sync: Waits for the other ranks where they lag behind; counted as "agreement".
        """
        if updates // self._every == self._updates // self._every:
            return {}
        took = self._milliseconds_of_one(updates)
        agreed = self._read()
        self._begin(took)
        if self._is_slow:
            agreed = _larger(agreed, self._read())
        self._updates, self._began_at = updates, perf_counter()
        return agreed

    def finish(self) -> dict[str, int]:
        """Return what is still to be agreed on, after the last update.

        Raises:
            PeerLostError: another rank is gone.

        Sync: Blocks the host until all ranks are here; counted as "agreement".
        """
        earlier = self._read()
        self._begin()
        # Other work may follow, such as validation: its time would count as that of an update.
        self._began_at = None
        return _larger(earlier, self._read())

    def _milliseconds_of_one(self, updates: int) -> int:
        """Return the time of an update since the last exchange on this rank; 0: it is not known."""
        if self._began_at is None:
            return 0
        seconds = (perf_counter() - self._began_at) / (updates - self._updates)
        return max(1, round(seconds * 1000))

    def _begin(self, milliseconds: int = 0) -> None:
        self._exchange = _Exchange(self._raised, milliseconds, self._group)

    def _read(self) -> dict[str, int]:
        exchange, self._exchange = self._exchange, None
        if exchange is None:
            return {}
        with self._blocking("agreement"):
            agreed, milliseconds = exchange.read()
        if self._follows_time and milliseconds:
            fitting = int(_MOST_SECONDS * 1000 / milliseconds)
            self._every = max(1, min(MOST_UPDATES_BETWEEN_AGREEMENTS, fitting))
            self._is_slow = fitting < 2
        return agreed


def _larger(one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    """Return the larger value of each flag."""
    return {flag: max(one.get(flag, 0), other.get(flag, 0)) for flag in {**one, **other}}


class _Exchange:
    """An all-reduce of the flags and of the time of an update, not yet read."""

    def __init__(self, raised: RaisedFlags, milliseconds: int, group: dist.ProcessGroup) -> None:
        flags = raised.take()
        self._names = raised.names
        values = [flags.get(flag, 0) for flag in self._names]
        self._values = torch.tensor([*values, milliseconds], device="cpu")
        with named_as_lost("agreement"):
            self._work = dist.all_reduce(
                self._values, dist.ReduceOp.MAX, group=group, async_op=True
            )

    def read(self) -> tuple[dict[str, int], int]:
        """Return the largest value of each flag that is raised, and the longest time.

        Sync: Blocks the host until all ranks are here.
        """
        with named_as_lost("agreement"):
            self._work.wait()
        *values, milliseconds = self._values.tolist()
        found = zip(self._names, values, strict=True)
        return {flag: value for flag, value in found if value}, milliseconds
