"""What rank 0 does for all ranks of a run: it reads text and checkpoints, and makes the folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from gapless.errors import FirstRankError, GaplessError


if TYPE_CHECKING:
    from collections.abc import Callable

    from gapless.ranks import Ranks


_Made = TypeVar("_Made")


def made_by_first(ranks: Ranks, make: Callable[[], _Made]) -> _Made:
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
    made: tuple[_Made, ...] = ()
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
