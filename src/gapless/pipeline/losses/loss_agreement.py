"""Ranks of a user's own loop see that they add the same losses, before they wait for each other.

Nothing but the loop itself says that its ranks take as many steps. If they do not, ranks would gather
rows that others do not have: for ever, or of other steps. So they compare what they have added where
the host waits anyway, and whoever differs is told so on all ranks.

In between, rows are gathered after steps that counts alone decide on. A rank that finds itself behind
takes part in what others have queued for the device already, so that no device waits for ever.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

from gapless.errors import RanksDifferError


if TYPE_CHECKING:
    from collections.abc import Callable

    from gapless.pipeline.host_waits import HostWaits
    from gapless.ranks import Peers


_BEGINS = "adds the first step to"

# All ranks make them in one order, so that a number names the same one on each.
_numbers = count(1)


@dataclass(frozen=True)
class _Added:
    """What a rank has added since the last reset.

    Attributes:
        number: of the object, among those that this process has made.
        call: what the rank does with it.
        names: of the values; None: one loss by position.
        every: steps after which values are sent.
        num_added: steps.
        gathered: the steps, as first and end, that were sent since ranks compared.
    """

    number: int
    call: str
    names: tuple[str, ...] | None
    every: int | None
    num_added: int
    gathered: tuple[tuple[int, int], ...]


class LossAgreement:
    """Compares the losses that the ranks of a user's loop add.

    Args:
        ranks: to compare.
        host_waits: the door for the waits for them ("agreement").
        every: steps after which this rank sends values.
    """

    def __init__(self, ranks: Peers, *, host_waits: HostWaits, every: int | None) -> None:
        self._ranks = ranks
        self._host_waits = host_waits
        self._every = every
        self._number = next(_numbers)
        self._names: tuple[str, ...] | None = None
        self._gathered: list[tuple[int, int]] = []

    def begin(self, names: tuple[str, ...] | None) -> None:
        """Compare what the first step after a reset adds.

        Args:
            names: of its values; None: one loss by position.

        Raises:
            RanksDifferError: ranks add other values, or send them after other steps.
            PeerLostError: another rank is gone, or does not come.

        Sync: Blocks the host until all ranks are here ("agreement").
        """
        self._names = names
        self.compare(_BEGINS, 0, answer=None)

    def note_gathered(self, start: int, end: int) -> None:
        """Note that the rows of steps `start` to `end` are gathered without a comparison."""
        self._gathered.append((start, end))

    def compare(
        self, call: str, num_added: int, *, answer: Callable[[int, int], None] | None
    ) -> None:
        """Compare how many steps the ranks have added.

        Args:
            call: what this rank does, as "reads".
            num_added: steps since the last reset.
            answer: takes part in gathering the rows of steps that other ranks have queued; None:
                rows are gathered after a comparison alone.

        Raises:
            RanksDifferError: ranks have added other numbers of steps, or other values.
            PeerLostError: another rank is gone, or does not come.

        Sync: Blocks the host until all ranks are here ("agreement").
        """
        gathered = tuple(self._gathered)
        own = _Added(self._number, call, self._names, self._every, num_added, gathered)
        with self._host_waits.blocking("agreement"):
            of_ranks = self._ranks.agree(own)
        self._gathered = []
        if all(other == own for other in of_ranks):
            return
        if not all(isinstance(other, _Added) for other in of_ranks):
            raise RanksDifferError(
                "some ranks read or add losses while others call a captured step, expected the same on "
                "all; let all ranks read means after the same steps"
            )
        if answer is not None:
            longest = max((other.gathered for other in of_ranks), key=len)
            for start, end in longest[len(own.gathered) :]:
                answer(start, end)
        raise RanksDifferError(_difference(of_ranks))


def _difference(of_ranks: list[_Added]) -> str:
    first = of_ranks[0]
    rank, other = next((n, one) for n, one in enumerate(of_ranks) if one != first)
    if other.number != first.number:
        return (
            f"rank 0 {first.call} DeferredLoss {first.number}, and rank {rank} {other.call} DeferredLoss "
            f"{other.number}, counted as they were made; make and read them in the same order on all ranks"
        )
    if other.every != first.every:
        return (
            f"`every` of the losses is {first.every} on rank 0 and {other.every} on rank {rank}, "
            "expected the same on all; a rank that is not told values gives `every` without `on_values`"
        )
    if other.call != first.call and _BEGINS in (first.call, other.call):
        return _other_calls(first, other, rank)
    if other.names != first.names:
        return (
            f"rank 0 adds {_listed(first.names)}, and rank {rank} adds {_listed(other.names)}, expected "
            "the same on all; add the same values in the same order on all ranks"
        )
    if other.num_added == first.num_added and other.call != first.call:
        return _other_calls(first, other, rank)
    if other.num_added == first.num_added:
        return (
            f"rank 0 has sent losses {len(first.gathered)} times, and rank {rank} {len(other.gathered)} "
            "times, expected as often on all; call `flush` after the same steps"
        )
    return (
        f"rank 0 has added the losses of {first.num_added} steps, and rank {rank} those of "
        f"{other.num_added}, expected as many on all; let all ranks take as many steps, and read "
        "means after the same"
    )


def _other_calls(first: _Added, other: _Added, rank: int) -> str:
    return (
        f"rank 0 {first.call} the losses, and rank {rank} {other.call} the losses, expected the same on all; "
        "let all ranks call `add`, `mean`, `drain`, `reset` and `flush` equally often"
    )


def _listed(names: tuple[str, ...] | None) -> str:
    return "a loss by position" if names is None else ", ".join(f"`{name}`" for name in names)
