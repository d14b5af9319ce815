"""The batches of an epoch: their order, their updates, which of them a rank trains on, and their loader."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from itertools import accumulate as running_sums, pairwise
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from gapless.nmt.data.batch import AnyBatch
from gapless.nmt.data.layout import BatchPlan


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gapless.nmt.data.layout import BatchShape, Layout
    from gapless.nmt.data.token_pairs import Numbers, Rows, TokenPairs


# The batches of all ranks in one update.
Update: TypeAlias = list[BatchPlan]

_NO_PAIRS = np.empty(0, dtype=np.int32)

# Pairs that are laid out together: what that takes in memory does not grow with the corpus.
_POOL = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Microbatch:
    """Which pairs form a batch, and what the batch is to its update.

    Attributes:
        pairs: their numbers; none if it only fills an update up.
        shape: size of the batch.
        update_tokens: target tokens of the whole update, on all ranks.
        ends_update: whether this is the rank's last batch of the update.
        rows: source and target tokens of the pairs; None: those of the pairs that the loader has.
    """

    pairs: Numbers
    shape: BatchShape
    update_tokens: int
    ends_update: bool
    rows: tuple[Rows, Rows] | None = None


class MicrobatchSampler(Sampler[Microbatch]):
    """Gives a rank its batches of an epoch in random order, grouped into updates.

    The layout puts pairs of similar length together, or packs any pairs; then the *batches* are
    shuffled, since shuffling sentences would undo the layout.

    Every rank cuts the same batches into the same updates, of `world * accumulate` batches, and
    takes its part of each. An update that has too few is filled up with batches of padding alone,
    so that all ranks have equally many. Which batches an update has depends on its size, not on
    the number of ranks.

    Args:
        pairs: what to draw from.
        layout: divides the pairs into batches.
        accumulate: most batches of a rank in an update.
        one_shape: all batches of an update have one shape.
        counts: pairs of each corpus, one after the other; None: there is one.
        weights: the ratio in which pairs of these are seen in an epoch, which has as many as all together;
            None: each pair once.
        shuffle: a new random order every epoch; otherwise the layout's own, always the same.
        seed: of the order.
        rank: whose batches these are, counted from 0.
        world: number of ranks.
        of_epoch: returns the pairs of an epoch and their layout, where each has its own; None: they
            are always the same.

    Attributes:
        whole_epoch: the rank's number of batches of this epoch, those left out at either end
            included.
        num_updates: of this epoch, those left out at either end included.
        num_skipped: batches left out at the start.
    """

    def __init__(
        self,
        pairs: TokenPairs,
        layout: Layout,
        *,
        accumulate: int = 1,
        one_shape: bool = False,
        counts: Sequence[int] | None = None,
        weights: Sequence[float] | None = None,
        shuffle: bool = True,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
        of_epoch: Callable[[int], tuple[TokenPairs, Layout]] | None = None,
    ) -> None:
        self._pairs = pairs
        self._layout = layout
        self._of_epoch = of_epoch
        self._drawn: int | None = None
        self._accumulate = accumulate
        self._one_shape = one_shape
        self._counts = (len(pairs),) if counts is None else tuple(counts)
        self._weights = weights
        self._shuffle = shuffle
        self._seed = seed
        self._rank = rank
        self._world = world
        self.set_epoch(0)

    def set_epoch(self, epoch: int, *, skip: int = 0, max_updates: int | None = None) -> None:
        """Prepare the batches of an epoch; the same epoch always gives the same ones.

        Args:
            epoch: counted from 0.
            skip: updates to leave out at the start, which an interrupted run has done.
            max_updates: updates after which the epoch ends early.
        """
        if epoch != self._drawn:
            # Those of the last epoch go first, as both of a large corpus take much memory.
            self._of_drawn, self._updates = list[Update](), list[Update]()
            if self._of_epoch is not None:
                self._pairs, self._layout = self._of_epoch(epoch)
            self._of_drawn = [filled(update, self._world) for update in self._cut(epoch)]
            self._drawn = epoch
        updates = self._of_drawn
        end = None if max_updates is None else skip + max_updates
        self._updates = updates[skip:end]
        self._ends = list(running_sums(len(update) // self._world for update in self._updates))
        self.num_updates = len(updates)
        self.num_skipped = sum(map(len, updates[:skip])) // self._world
        self.whole_epoch = sum(map(len, updates)) // self._world

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __iter__(self) -> Iterator[Microbatch]:
        # Made one by one: those of an epoch of a large corpus take much memory.
        for update in self._updates:
            yield from map(self._with_rows, self._own(update))

    def _with_rows(self, micro: Microbatch) -> Microbatch:
        """Return a batch with its tokens, where the loader does not have them."""
        if self._of_epoch is None:
            return micro
        return replace(micro, rows=self._pairs.take(micro.pairs))

    def ends_update(self, number: int) -> bool:
        """Return whether a batch ends an update, counted from 0 among those not left out."""
        return self._ends[self.update_of(number)] == number + 1

    def update_of(self, number: int) -> int:
        """Return to which update a batch belongs, both counted from 0 among those not left out."""
        return bisect_right(self._ends, number)

    @property
    def mixes_shapes(self) -> bool:
        """Whether an update may have batches of several fixed shapes."""
        has_one = self._one_shape or self._accumulate * self._world == 1
        return not has_one and len(self._layout.examples()) > 1

    def one_of_each(self) -> list[Microbatch]:
        """Return a batch for each kind of work that a step can see; none if shapes are not fixed.

        Each fixed shape has one batch if every batch ends an update. Otherwise it has two: one
        that ends an update and one that does not, because a step does other work after them.
        """
        return [
            self._with_rows(
                Microbatch(pairs=pairs, shape=shape, update_tokens=1, ends_update=ends_update)
            )
            for pairs, shape in self._layout.examples()
            for ends_update in ((True,) if self._accumulate == 1 else (True, False))
        ]

    def padding_share(self) -> float:
        """Return the share of this epoch's positions on all ranks that hold no token, 0 to 1."""
        plans = [plan for update in self._updates for plan in update]
        real = sum(
            int(self._pairs.src_lengths[pairs].sum() + self._pairs.tgt_lengths[pairs].sum())
            for pairs, _ in plans
        )
        positions = sum(shape.num_tokens for _, shape in plans)
        return 1.0 - real / positions if positions else 0.0

    def describe(self) -> str:
        """Return how batches are laid out, and how much of them is padding, for people."""
        return f"{self._layout.describe()}, {self.padding_share():.1%} padding"

    def _cut(self, epoch: int) -> list[Update]:
        """Return the updates of an epoch, in their order, as all ranks see them."""
        size = self._accumulate * self._world
        in_updates = cut_by_shape if self._one_shape else cut
        if not self._shuffle:
            return in_updates(self._plans(np.arange(len(self._pairs), dtype=np.int32)), size)
        random = np.random.default_rng((self._seed, epoch))
        plans = self._plans(self._shuffled(random))
        updates = in_updates([plans[number] for number in random.permutation(len(plans))], size)
        if not self._one_shape or len({update[0].shape for update in updates}) == 1:
            return updates
        # `cut_by_shape` leaves the updates of a shape side by side: unshuffled, an epoch would go through one shape after the other.
        return [updates[number] for number in random.permutation(len(updates))]

    def _shuffled(self, random: np.random.Generator) -> Numbers:
        """Return the numbers of an epoch's pairs in random order."""
        numbers: Numbers = np.arange(len(self._pairs), dtype=np.int32)
        if self._weights is not None:
            numbers = weighted(self._counts, self._weights, random)
        random.shuffle(numbers)
        return numbers

    def _plans(self, order: Numbers) -> list[BatchPlan]:
        """Return batches of pairs in this order; of a large corpus, pool by pool."""
        multiple_of = self._accumulate * self._world if self._one_shape else 1
        pools = [order[start : start + _POOL].copy() for start in range(0, len(order), _POOL)]
        del order  # Each pool goes too when its batches, which hold its numbers, are there.
        plans: list[BatchPlan] = []
        while pools:
            plans += self._layout.batches(pools.pop(0), multiple_of=multiple_of)
        return plans

    def _own(self, update: Update) -> list[Microbatch]:
        """Return this rank's batches of an update."""
        tokens = sum(int(self._pairs.tgt_lengths[pairs].sum()) for pairs, _ in update)
        own = part_of_rank(update, rank=self._rank, world=self._world)
        return [
            Microbatch(
                pairs=pairs, shape=shape, update_tokens=tokens, ends_update=number == len(own)
            )
            for number, (pairs, shape) in enumerate(own, start=1)
        ]


# --- updates ---

# Every rank cuts the same batches into the same updates and takes its part of each by itself. So ranks
# have equally many batches without asking each other, and each knows the tokens of every update.


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


def weighted(
    counts: Sequence[int], weights: Sequence[float], random: np.random.Generator
) -> Numbers:
    """Return the numbers of an epoch's pairs, as many as there are, in the ratio of weights.

    Each pair of a corpus is in it equally often, or once more, by chance.

    Args:
        counts: pairs of each corpus, one after the other.
        weights: of each.
        random: says which pairs are in it once more.
    """
    total = sum(counts)
    shares = np.cumsum([0.0, *weights]) / sum(weights)
    begins = np.cumsum([0, *counts])
    numbers = []
    for begin, count, (low, high) in zip(begins, counts, pairwise(shares), strict=False):
        wanted = round(float(high) * total) - round(float(low) * total)
        own = np.arange(begin, begin + count, dtype=np.int32)
        times, rest = divmod(wanted, count) if count else (0, 0)
        numbers += [np.tile(own, times), random.permutation(own)[:rest]]
    return np.concatenate(numbers)


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


def part_of_rank(update: Update, *, rank: int, world: int) -> Update:
    """Return a rank's batches of a filled update: neighbours, in their order.

    Args:
        update: that `filled` returned.
        rank: counted from 0.
        world: number of ranks.
    """
    size = len(update) // world
    return update[rank * size : (rank + 1) * size]


# --- the loader ---


class PairBatches(Dataset[AnyBatch]):
    """Makes the batch of a `Microbatch`; runs in the loader's workers."""

    def __init__(self, pairs: TokenPairs) -> None:
        self._pairs = pairs

    def __getitem__(self, micro: Microbatch) -> AnyBatch:
        src, tgt = self._pairs.take(micro.pairs) if micro.rows is None else micro.rows
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
