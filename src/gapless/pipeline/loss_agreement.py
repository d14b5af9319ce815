"""Ranks of a user's own loop see that they add the same losses, before they wait for each other.

Nothing but the loop itself says that its ranks take as many steps. If they do not, ranks would gather
rows that others do not have: for ever, or of other steps. So they compare what they have added where
the host waits anyway, and whoever differs is told so on all ranks.

In between, rows are gathered after steps that counts alone decide on. A rank that finds itself behind
takes part in what others have queued for the device already, so that no device waits for ever.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gapless.errors import RanksDifferError


if TYPE_CHECKING:
    from collections.abc import Callable

    from gapless.pipeline.host_waits import HostWaits
    from gapless.ranks import Peers


@dataclass(frozen=True)
class _Added:
    """What a rank has added since the last reset.

    Attributes:
        names: of the values; None: one loss by position.
        every: steps after which values are sent.
        num_added: steps.
        gathered: the steps, as first and end, that were sent since ranks compared.
    """

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
        self._names: tuple[str, ...] | None = None
        self._num_agreed = 0
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
        self._names, self._num_agreed = names, 0
        self._compare(0, answer=None)

    def note_gathered(self, start: int, end: int) -> None:
        """Note that the rows of steps `start` to `end` are gathered without a comparison."""
        self._gathered.append((start, end))

    def compare(self, num_added: int, *, answer: Callable[[int, int], None] | None) -> None:
        """Compare how many steps the ranks have added; nothing if this rank has added none since.

        Args:
            num_added: steps since the last reset.
            answer: takes part in gathering the rows of steps that other ranks have queued; None:
                rows are gathered after a comparison alone.

        Raises:
            RanksDifferError: ranks have added other numbers of steps, or other values.
            PeerLostError: another rank is gone, or does not come.

        Sync: Blocks the host until all ranks are here ("agreement").
        """
        if num_added == self._num_agreed:
            return
        self._compare(num_added, answer=answer)
        self._num_agreed = num_added

    def _compare(self, num_added: int, *, answer: Callable[[int, int], None] | None) -> None:
        own = _Added(self._names, self._every, num_added, tuple(self._gathered))
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
    if other.every != first.every:
        return (
            f"`every` of the losses is {first.every} on rank 0 and {other.every} on rank {rank}, "
            "expected the same on all; a rank that is not told values gives `every` without `on_values`"
        )
    if other.names != first.names:
        return (
            f"rank 0 adds {_listed(first.names)}, and rank {rank} adds {_listed(other.names)}, expected "
            "the same on all; add the same values on all ranks"
        )
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


def _listed(names: tuple[str, ...] | None) -> str:
    return "a loss by position" if names is None else ", ".join(f"`{name}`" for name in names)
