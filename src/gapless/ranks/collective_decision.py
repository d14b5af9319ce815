"""Collective decisions: every rank gets the values of all, so that all decide the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar


if TYPE_CHECKING:
    from collections.abc import Sequence

    from gapless.ranks.protocol import Blocking, Peers


T = TypeVar("T")


class CollectiveDecision:
    """Exchanges values between ranks while the host waits, and counts the wait as "agreement".

    All ranks call the same methods at the same points of the run; only counts may lead to a call. What
    follows from the values, an error or a choice, is then the same on all ranks. With one rank its own
    value comes back at once.

    Args:
        ranks: that decide.
        blocking: counts the waits for them, such as `HostWaits.blocking`.
    """

    def __init__(self, ranks: Peers, blocking: Blocking) -> None:
        self._ranks = ranks
        self._blocking = blocking

    def values(self, own: T) -> list[T]:
        """Return the values of all ranks, in the order of ranks.

        Args:
            own: can be pickled, and holds no tensor of a device.

        Raises:
            RanksError: another rank is gone, or does not come.

        Sync: Blocks the host until all ranks are here ("agreement"), but not on the device.
        """
        if self._ranks.world == 1:
            return [own]
        with self._blocking("agreement"):
            return self._ranks.agree(own)

    def any_rank(self, says_so: bool) -> bool:
        """Return whether one of the ranks says so.

        Raises:
            RanksError: as of `values`.

        Sync: As of `values`.
        """
        return any(self.values(says_so))


def first_other(values: Sequence[T]) -> tuple[int, T] | None:
    """Return the first rank whose value is not that of rank 0, and its value; None: all are the same."""
    return next(((rank, one) for rank, one in enumerate(values) if one != values[0]), None)
