"""What ranks of loops in plain torch share: dealt batches, and a meeting before the clock starts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from benchmarks.peers.parts import BatchDict
from gapless.nmt.run.build import training_sampler


if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.peers.cases import Case
    from gapless.nmt.data.sampler import Microbatch
    from gapless.nmt.data.token_pairs import TokenPairs
    from gapless.ranks.launch import Launch


def dealt_batches(case: Case, place: Launch) -> list[Microbatch]:
    """Return the batches of a rank, each padded to its longest sentence."""
    return list(
        training_sampler(
            case.config, case.train, layout="padded", rank=place.rank, world=place.world
        )
    )


class DealtBatchDict(BatchDict):
    """Batches whose losses are divided so that the mean over ranks is that of the whole update.

    DDP divides the sum of gradients by the number of ranks, so each rank divides its loss by as
    many tokens fewer.
    """

    def __init__(self, pairs: TokenPairs, *, world: int) -> None:
        super().__init__(pairs)
        self._world = world

    def __getitem__(self, micro: Microbatch) -> dict[str, Any]:
        batch: Any = self._batches[micro]
        return {"src": batch.src, "tgt": batch.tgt, "ntokens": batch.norm / self._world}


def meeting() -> Callable[[], None]:
    """Return what waits on the host until all ranks are there; the default group must be."""
    group = dist.new_group(backend="gloo")

    def meet() -> None:
        # Not a barrier, which looks at the device to which the default group is bound.
        dist.all_reduce(torch.zeros(1), group=group)

    return meet


def interleaved(case: Case, place: Launch) -> list[Microbatch]:
    """Return the batches of all ranks by turns, for whoever deals them itself."""
    of_ranks = [dealt_batches(case, replace(place, rank=rank)) for rank in range(place.world)]
    return [micro for together in zip(*of_ranks, strict=True) for micro in together]
