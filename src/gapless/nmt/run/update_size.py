"""How many batches an update has, and which numbers of ranks can share it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.errors import UserError
from gapless.nmt.run.defaults import Choice


if TYPE_CHECKING:
    from gapless.nmt.data.sampler import MicrobatchSampler
    from gapless.nmt.run.resolved import Resolved


def accumulated(update: int, world: int) -> int:
    """Return how many batches each rank has in an update.

    Args:
        update: batches of all ranks together.
        world: number of ranks.

    Raises:
        UserError: the ranks cannot share them equally.
    """
    if update % world:
        batches = "1 batch" if update == 1 else f"{update} batches"
        raise UserError(
            f"an update of this run has {batches}, which {world} ranks cannot share equally; "
            f"start {_listed(worlds_of(update))} of them"
        )
    return update // world


def worlds_of(update: int) -> list[int]:
    """Return which numbers of ranks can share an update of so many batches equally."""
    return [world for world in range(1, update + 1) if update % world == 0]


def grown_update(resolved: Resolved) -> list[Choice]:
    """Return what to say of a new run whose updates are larger because there are several ranks."""
    if resolved.world == 1:
        return []
    return [
        Choice(
            settings={"update": f"{resolved.world} x {resolved.accumulate} batches"},
            reason=f"as there are {resolved.world} ranks, one would have {resolved.accumulate}; "
            "accumulate auto keeps about that",
        )
    ]


def check_shapes(resolved: Resolved, sampler: MicrobatchSampler, *, is_accelerator: bool) -> None:
    """Check that no two ranks would replay graphs of different shapes.

    NCCL asks that all ranks use the same graph.

    Raises:
        UserError: they would.
    """
    captures = resolved.plan.graphs != "never" and is_accelerator
    if resolved.world > 1 and captures and sampler.mixes_shapes:
        raise UserError(
            "an update of this run has batches of several shapes, of which several GPUs cannot "
            'capture steps; add `plan="gapless"`, or begin a run with `one_shape=True`'
        )


def _listed(numbers: list[int]) -> str:
    *others, last = map(str, numbers)
    return f"{', '.join(others)} or {last}" if others else last
