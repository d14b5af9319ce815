"""Which batches make an update, and which of them are a rank's.

Every rank computes this for itself, from the same batches, and comes to the same answer. So ranks
have equally many batches without asking each other, and each knows the tokens of every update.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from gapless.nmt.data.layout import BatchPlan


if TYPE_CHECKING:
    from gapless.nmt.data.layout import BatchShape


# The batches of all ranks in one update.
Update: TypeAlias = list[BatchPlan]

_NO_PAIRS = np.empty(0, dtype=np.int64)


def cut(plans: list[BatchPlan], size: int) -> list[Update]:
    """Return updates of so many batches in their order; the last takes what is left.

    Args:
        plans: batches of an epoch.
        size: batches in an update.
    """
    return [plans[start : start + size] for start in range(0, len(plans), size)]


def cut_by_shape(plans: list[BatchPlan], size: int) -> list[Update]:
    """Return updates whose batches have one shape; the last of each shape takes what is left.

    Args:
        plans: batches of an epoch; within a shape they keep their order.
        size: batches in an update.
    """
    of_shape: dict[BatchShape, list[BatchPlan]] = {}
    for plan in plans:
        of_shape.setdefault(plan.shape, []).append(plan)
    return [update for same in of_shape.values() for update in cut(same, size)]


def filled(update: Update, world: int) -> Update:
    """Return an update with as many batches for each rank.

    What is missing are batches without pairs, of the last one's shape. On one rank nothing is.

    Args:
        update: at least one batch.
        world: number of ranks.
    """
    missing = -len(update) % world
    if not missing:
        return update
    return update + [BatchPlan(_NO_PAIRS, update[-1].shape)] * missing


def part_of(update: Update, *, rank: int, world: int) -> Update:
    """Return a rank's batches of a filled update: neighbours, in their order.

    Args:
        update: that `filled` returned.
        rank: counted from 0.
        world: number of ranks.
    """
    size = len(update) // world
    return update[rank * size : (rank + 1) * size]
