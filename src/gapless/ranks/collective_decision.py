"""Collective decisions: every rank gets the values of all, or what rank 0 made, so that all decide the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from gapless.errors import FirstRankError, GaplessError


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gapless.ranks.protocol import Blocking, Peers, Ranks


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


def on_first_rank(ranks: Ranks, make: Callable[[], T]) -> T:
    """Return what rank 0 makes, on every rank; the others wait.

    Args:
        ranks: of the run.
        make: called on rank 0 alone. What it returns can be pickled, if there are others.

    Raises:
        FirstRankError: on the other ranks, when `make` raised an error of ours on rank 0.

    Sync: With several ranks, blocks the host until rank 0 is done.
    """
    if ranks.world == 1:
        return make()
    made: tuple[T, ...] = ()
    with ranks.pause("preparation"):
        if not ranks.is_first:
            made = ranks.share(made)
            if not made:
                raise FirstRankError("rank 0 could not go on, and says why")
            return made[0]
        try:
            made = (make(),)
        except GaplessError:
            ranks.share(())
            raise
        ranks.share(made)
        return made[0]
