"""Flags on which all ranks act at the same update.

The ranks exchange their flags at updates that are known beforehand, and read them at the next such
update. So nobody waits for an exchange that has just begun, and everybody reads the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from gapless.ranks.flags import RaisedFlags
from gapless.ranks.lost_peers import named_as_lost


if TYPE_CHECKING:
    from collections.abc import Sequence

    from gapless.ranks.protocol import Blocking


class GroupAgreement:
    """Implements `Agreement` over a group on the host.

    Args:
        flags: names of what can be agreed on.
        group: of gloo.
        blocking: counts the waits for other ranks.
        every: updates from one exchange to the next, 1 or more.
    """

    def __init__(
        self, flags: Sequence[str], *, group: dist.ProcessGroup, blocking: Blocking, every: int
    ) -> None:
        self._raised = RaisedFlags(flags)
        self._group = group
        self._blocking = blocking
        self._every = every
        self._round = 0
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
        this_round = updates // self._every
        if this_round == self._round:
            return {}
        self._round = this_round
        agreed = self._read()
        self._begin()
        return agreed

    def finish(self) -> dict[str, int]:
        """Return what is still to be agreed on, after the last update.

        Raises:
            PeerLostError: another rank is gone.

        Sync: Blocks the host until all ranks are here; counted as "agreement".
        """
        earlier = self._read()
        self._begin()
        last = self._read()
        return {flag: max(earlier.get(flag, 0), last.get(flag, 0)) for flag in {**earlier, **last}}

    def _begin(self) -> None:
        self._exchange = _Exchange(self._raised, self._group)

    def _read(self) -> dict[str, int]:
        exchange, self._exchange = self._exchange, None
        if exchange is None:
            return {}
        with self._blocking("agreement"):
            return exchange.read()


class _Exchange:
    """Flags that are on their way between the ranks."""

    def __init__(self, raised: RaisedFlags, group: dist.ProcessGroup) -> None:
        taken = raised.take()
        self._names = raised.names
        self._values = torch.tensor([taken.get(flag, 0) for flag in self._names], device="cpu")
        with named_as_lost("agreement"):
            self._work = dist.all_reduce(
                self._values, dist.ReduceOp.MAX, group=group, async_op=True
            )

    def read(self) -> dict[str, int]:
        with named_as_lost("agreement"):
            self._work.wait()
        values = zip(self._names, self._values.tolist(), strict=True)
        return {flag: value for flag, value in values if value}
