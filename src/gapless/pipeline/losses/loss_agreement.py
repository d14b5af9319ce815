"""Check that the ranks of a user's own loop add the same losses, before they wait for each other.

Only the loop itself knows whether its ranks take equally many steps. If they do not, a rank would gather
rows that others do not have: it would hang, or get rows of other steps. So the ranks compare what they
have added where the host waits anyway, and all of them raise the same error if one differs.

In between, rows are gathered after steps that counts alone decide on. A rank that is behind joins the
collectives that others have queued already, so that no device hangs.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

from gapless.errors import LossError, RanksDifferError
from gapless.ranks import CollectiveDecision, first_other, user_ranks


if TYPE_CHECKING:
    from collections.abc import Callable

    from gapless.pipeline.host_waits import HostWaits
    from gapless.pipeline.losses.loss_rows import LossRows
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


def ranks_of_losses(
    ranks: bool | Peers | None, *, host_waits: HostWaits, every: int | None
) -> tuple[Peers | None, LossAgreement | None]:
    """Return the ranks whose losses are gathered, and how they agree if they are a user's own.

    Args:
        ranks: True in a user's loop that has made a process group; or the ranks themselves,
            which add the same by construction.
        host_waits: the door for waits.
        every: steps after which this rank sends values.

    Raises:
        LossError: `ranks` is something else.
        UserError: there is no process group, or theirs would make the host wait for the device.

    Sync: Does not block the host; with True the first time until all ranks are here.
    """
    if ranks is None or ranks is False:
        return None, None
    if ranks is True:
        peers = user_ranks(host_waits.device.torch_device)
        if peers.world == 1:
            return None, None
        return peers, LossAgreement(peers, host_waits=host_waits, every=every)
    if not hasattr(ranks, "gather_rows"):
        raise LossError(
            f"`ranks` must be True in a loop of several ranks, else False, but is {ranks!r}; how many "
            "there are is read from the process group"
        )
    return (None if ranks.world == 1 else ranks), None


class LossAgreement:
    """Compares the losses that the ranks of a user's loop add.

    Args:
        ranks: to compare.
        host_waits: the door for the waits for them ("agreement").
        every: steps after which this rank sends values.
    """

    def __init__(self, ranks: Peers, *, host_waits: HostWaits, every: int | None) -> None:
        self._decision = CollectiveDecision(ranks, host_waits.blocking)
        self._every = every
        self._number = next(_numbers)
        # A device gathers without its host; on a CPU the host itself has to wait for the others.
        self._gathers_late = host_waits.device.is_accelerator
        self._is_connected = False
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
        self._compare(_BEGINS, 0, answer=None)

    def connect(self, rows: LossRows | None) -> None:
        """Let the devices of all ranks connect at the first step, when all of them are here.

        NCCL connects at the first collective of a group, and its host waits there for all ranks. Were
        that the first gathering, a rank with a step more would wait for others that never come.

        Sync: Does not block the host but for that.
        """
        if self._is_connected:
            return
        if self._gathers_late:
            assert rows is not None
            rows.take_part(0, 1)
        self._is_connected = True

    def sends(self, start: int, end: int) -> None:
        """See to it that all ranks send the rows of steps `start` to `end`, if there are any.

        Raises:
            RanksDifferError: ranks have added other numbers of steps, or other values.
            PeerLostError: another rank is gone, or does not come.

        Sync: Does not block the host on a GPU; on a CPU until all ranks are here ("agreement").
        """
        if not self._gathers_late:
            self._compare("sends", end, answer=None)
        elif start < end:
            self._gathered.append((start, end))

    def reads(self, num_added: int, rows: LossRows | None) -> None:
        """See to it that all ranks read as many steps.

        Args:
            num_added: steps since the last reset.
            rows: take part in gathering what other ranks have queued; None: there are none yet.

        Raises:
            RanksDifferError: as of `sends`.
            PeerLostError: as of `sends`.

        Sync: Blocks the host until all ranks are here ("agreement").
        """
        answer = rows.take_part if self._gathers_late and rows is not None else None
        self._compare("reads", num_added, answer=answer)

    def _compare(
        self, call: str, num_added: int, *, answer: Callable[[int, int], None] | None
    ) -> None:
        """Compare how many steps the ranks have added.

        Args:
            call: what this rank does, as "reads".
            num_added: steps since the last reset.
            answer: takes part in gathering the rows of steps that other ranks have queued; None:
                rows are gathered after a comparison alone.
        """
        gathered = tuple(self._gathered)
        own = _Added(self._number, call, self._names, self._every, num_added, gathered)
        of_ranks = self._decision.values(own)
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
    found = first_other(of_ranks)
    assert found is not None
    rank, other = found
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
