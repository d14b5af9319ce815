"""The batches of an epoch: their order, their updates, and a loader that makes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from gapless.nmt.data.batch import AnyBatch


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from gapless.nmt.data.layout import BatchPlan, BatchShape, Layout
    from gapless.nmt.data.token_pairs import TokenPairs


@dataclass(frozen=True, kw_only=True)
class Microbatch:
    """Which pairs form a batch, and what the batch is to its update.

    Attributes:
        pairs: their numbers.
        shape: size of the batch.
        update_tokens: target tokens of the whole update.
        ends_update: whether this is the update's last batch.
    """

    pairs: NDArray[np.int64]
    shape: BatchShape
    update_tokens: int
    ends_update: bool


class MicrobatchSampler(Sampler[Microbatch]):
    """Gives the batches of an epoch in random order, grouped into updates.

    The layout puts pairs of similar length together, or packs any pairs; then the *batches* are
    shuffled, since shuffling sentences would undo the layout.

    Args:
        pairs: what to draw from.
        layout: divides the pairs into batches.
        accumulate: batches in an update.
        shuffle: a new random order every epoch; otherwise the layout's own, always the same.
        seed: of the order.

    Attributes:
        whole_epoch: number of batches of this epoch, those left out at either end included.
    """

    def __init__(
        self,
        pairs: TokenPairs,
        layout: Layout,
        *,
        accumulate: int = 1,
        shuffle: bool = True,
        seed: int = 0,
    ) -> None:
        self._src_lengths = pairs.src_lengths
        self._tgt_lengths = pairs.tgt_lengths
        self._layout = layout
        self._accumulate = accumulate
        self._shuffle = shuffle
        self._seed = seed
        self.set_epoch(0)

    def set_epoch(self, epoch: int, *, skip: int = 0, max_updates: int | None = None) -> None:
        """Prepare the batches of an epoch; the same epoch always gives the same ones.

        Args:
            epoch: counted from 0.
            skip: batches to leave out at the start, which an interrupted run has done.
            max_updates: updates after which the epoch ends early.
        """
        plans = self._plans(epoch)
        end = None if max_updates is None else skip + max_updates * self._accumulate
        self._epoch = self._in_updates(plans)[skip:end]
        self.whole_epoch = len(plans)

    def __len__(self) -> int:
        return len(self._epoch)

    def __iter__(self) -> Iterator[Microbatch]:
        return iter(self._epoch)

    def one_of_each(self) -> list[Microbatch]:
        """Return a batch for each kind of work that a step can see; none if shapes are not fixed.

        Each fixed shape has one batch if every batch ends an update. Otherwise it has two: one
        that ends an update and one that does not, because a step does other work after them.
        """
        return [
            Microbatch(pairs=pairs, shape=shape, update_tokens=1, ends_update=ends_update)
            for pairs, shape in self._layout.examples()
            for ends_update in ((True,) if self._accumulate == 1 else (True, False))
        ]

    def padding_share(self) -> float:
        """Return the share of this epoch's positions that hold no token, 0 to 1."""
        real = sum(
            int(self._src_lengths[batch.pairs].sum() + self._tgt_lengths[batch.pairs].sum())
            for batch in self._epoch
        )
        positions = sum(batch.shape.num_tokens for batch in self._epoch)
        return 1.0 - real / positions if positions else 0.0

    def describe(self) -> str:
        """Return how batches are laid out, and how much of them is padding, for people."""
        return f"{self._layout.describe()}, {self.padding_share():.1%} padding"

    def _plans(self, epoch: int) -> list[BatchPlan]:
        count = len(self._src_lengths)
        if not self._shuffle:
            return self._layout.batches(np.arange(count))
        random = np.random.default_rng((self._seed, epoch))
        plans = self._layout.batches(random.permutation(count))
        return [plans[number] for number in random.permutation(len(plans))]

    def _in_updates(self, plans: list[BatchPlan]) -> list[Microbatch]:
        grouped: list[Microbatch] = []
        for start in range(0, len(plans), self._accumulate):
            update = plans[start : start + self._accumulate]
            tokens = sum(int(self._tgt_lengths[pairs].sum()) for pairs, _ in update)
            grouped.extend(
                Microbatch(
                    pairs=pairs,
                    shape=shape,
                    update_tokens=tokens,
                    ends_update=number == len(update),
                )
                for number, (pairs, shape) in enumerate(update, start=1)
            )
        return grouped


class PairBatches(Dataset[AnyBatch]):
    """Makes the batch of a `Microbatch`; runs in the loader's workers."""

    def __init__(self, pairs: TokenPairs) -> None:
        self._pairs = pairs

    def __getitem__(self, micro: Microbatch) -> AnyBatch:
        src, tgt = self._pairs.take(micro.pairs)
        return micro.shape.collate(
            src, tgt, update_tokens=micro.update_tokens, ends_update=micro.ends_update
        )


def make_loader(
    pairs: TokenPairs,
    sampler: MicrobatchSampler,
    *,
    workers: int,
    prepare_worker: Callable[[int], None] | None = None,
) -> DataLoader[AnyBatch]:
    """Return a loader whose worker processes make the sampler's batches.

    The loader draws its worker seeds from a generator of its own, so that dropout sees the same
    random numbers with any number of workers.

    Args:
        pairs: what the sampler draws from.
        sampler: of the batches.
        workers: processes; 0 makes batches in the training process.
        prepare_worker: is called in each process with its number.
    """
    return DataLoader(
        PairBatches(pairs),
        batch_size=None,
        sampler=sampler,
        num_workers=workers,
        persistent_workers=workers > 0,
        prefetch_factor=8 if workers else None,
        generator=torch.Generator(),
        worker_init_fn=prepare_worker,
    )
