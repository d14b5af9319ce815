"""From token ids to batches: length buckets, token budgets, padding.

`BucketSampler` decides on the host which sentences go together, loader workers pad them into a
`TokenBatch`, and on the device it becomes the origin's `Batch` with its masks.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from gapless.nmt.data.packed import PackedBatch, Packing, Packings, fill, pack
from gapless.nmt.data.padded import Shape, Shapes, cut
from gapless.nmt.data.vocab import BOS, EOS, PAD


if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from gapless.nmt.data.token_pairs import Rows, TokenPairs


@dataclass(frozen=True, kw_only=True)
class TokenBatch:
    """Padded sentences as they travel to the device.

    Attributes:
        src: source ids with end, [batch, src_len], int64.
        tgt: target ids with begin and end, [batch, tgt_len + 1], int64.
        ntokens: target tokens to predict in this batch, padding excluded; a scalar tensor, since
            dividing by a Python number rounds differently on a GPU.
        norm: target tokens of the whole update that this batch belongs to, a scalar tensor.
        ends_update: whether the optimizer steps after this batch.
    """

    src: torch.Tensor
    tgt: torch.Tensor
    ntokens: torch.Tensor
    norm: torch.Tensor
    ends_update: bool


AnyBatch: TypeAlias = TokenBatch | PackedBatch


@dataclass
class Batch:
    """A batch as the model takes it, in the origin's words.

    Attributes:
        src: source ids, [batch, src_len].
        trg: target ids that the decoder reads, from the begin mark on, [batch, tgt_len].
        trg_y: target ids that it predicts, up to the end mark, [batch, tgt_len].
        src_mask: True where the source is no padding, [batch, 1, src_len].
        trg_mask: True where a target position may look, [batch, tgt_len, tgt_len]; None stands
            for "at itself and before", which is the same for padding at the end.
        ntokens: number of target tokens to predict, a scalar tensor.
    """

    src: torch.Tensor
    trg: torch.Tensor
    trg_y: torch.Tensor
    src_mask: torch.Tensor
    trg_mask: torch.Tensor | None
    ntokens: torch.Tensor

    @classmethod
    def from_tokens(cls, src: torch.Tensor, tgt: torch.Tensor, ntokens: torch.Tensor) -> Batch:
        """Make the batch of padded ids, on the device where they are.

        Sync: Does not block the host.
        """
        return cls(
            src=src,
            trg=tgt[:, :-1],
            trg_y=tgt[:, 1:],
            src_mask=(src != PAD).unsqueeze(1),
            trg_mask=None,
            ntokens=ntokens,
        )


def causal_mask(trg: torch.Tensor) -> torch.Tensor:
    """Return the full target mask: no padding, nothing after the position itself.

    Args:
        trg: target ids, [batch, tgt_len].

    Returns:
        Boolean mask, [batch, tgt_len, tgt_len], on the device of `trg`.
    """
    length = trg.shape[1]
    before = torch.ones(length, length, dtype=torch.bool, device=trg.device).tril()
    return (trg != PAD).unsqueeze(1) & before


@dataclass(frozen=True, kw_only=True)
class Microbatch:
    """Which pairs make a batch.

    Attributes:
        pairs: their numbers.
        update_tokens: target tokens of the whole update.
        ends_update: whether this is the update's last batch.
        shape: to pad to or to pack into; None for the smallest that takes these pairs.
    """

    pairs: NDArray[np.int64]
    update_tokens: int
    ends_update: bool
    shape: Shape | Packing | None = None


class PairBatches(Dataset[AnyBatch]):
    """Pad or pack the pairs of a `Microbatch`; runs in the loader's workers."""

    def __init__(self, pairs: TokenPairs) -> None:
        self._pairs = pairs

    def __getitem__(self, micro: Microbatch) -> AnyBatch:
        src, tgt = self._pairs.take(micro.pairs)
        if isinstance(micro.shape, Packing):
            return pack(
                src,
                tgt,
                micro.shape,
                update_tokens=micro.update_tokens,
                ends_update=micro.ends_update,
            )
        size = (len(micro.pairs), int(src.lengths.max()), int(tgt.lengths.max()))
        if micro.shape is not None:
            size = (micro.shape.rows, micro.shape.src_len, micro.shape.tgt_len + 1)
        num_rows, src_len, tgt_len = size
        return TokenBatch(
            # Rows that fill up the batch: a source to attend to, and nothing to predict.
            src=_pad(src, (num_rows, src_len), filler=EOS),
            tgt=_pad(tgt, (num_rows, tgt_len), filler=BOS),
            ntokens=torch.tensor(len(tgt.ids) - len(tgt.lengths)),
            norm=torch.tensor(micro.update_tokens),
            ends_update=micro.ends_update,
        )


# The pairs of a batch, and the shape that they are padded to or packed into.
_Cut: TypeAlias = "tuple[NDArray[np.int64], Shape | Packing | None]"


class BucketSampler(Sampler[Microbatch]):
    """Group pairs of similar length and shuffle the groups.

    Pairs are sorted by length with ties in random order, cut into batches, and the *batches* are
    shuffled: shuffling sentences would undo the buckets.

    Args:
        pairs: what to draw from.
        max_tokens: budget of a batch, padding included: rows times the longer side's length.
        max_sentences: most pairs in a batch.
        accumulate: batches in an update.
        shuffle: a new random order every epoch; otherwise by length, always the same.
        seed: of the order.
        shapes: few shapes to pad to or to pack into, made with the same budget; None pads each
            batch to its longest sentence.

    Attributes:
        whole_epoch: batches of this epoch, with those that are left out at either end.

    Raises:
        ValueError: neither budget is given.
    """

    def __init__(
        self,
        pairs: TokenPairs,
        *,
        max_tokens: int | None = None,
        max_sentences: int | None = None,
        accumulate: int = 1,
        shuffle: bool = True,
        seed: int = 0,
        shapes: Shapes | Packings | None = None,
    ) -> None:
        if max_tokens is None and max_sentences is None:
            raise ValueError("max_tokens or max_sentences must be given, but both are None")
        self._src_lengths = pairs.src_lengths
        self._tgt_lengths = pairs.tgt_lengths
        self._max_tokens = max_tokens or int(np.iinfo(np.int64).max)
        self._max_sentences = max_sentences or len(pairs)
        self._accumulate = accumulate
        self._shuffle = shuffle
        self._seed = seed
        self._shapes = shapes
        self.set_epoch(0)

    def set_epoch(self, epoch: int, *, skip: int = 0, max_updates: int | None = None) -> None:
        """Prepare the batches of an epoch; the same epoch always gives the same ones.

        Args:
            epoch: counted from 0.
            skip: batches to leave out at the start, which an interrupted run has done.
            max_updates: updates after which the epoch ends early.
        """
        random = np.random.default_rng((self._seed, epoch))
        batches = self._batches(random)
        if self._shuffle:
            batches = [batches[number] for number in random.permutation(len(batches))]
        end = None if max_updates is None else skip + max_updates * self._accumulate
        self._epoch = self._group(batches)[skip:end]
        self.whole_epoch = len(batches)

    def __len__(self) -> int:
        return len(self._epoch)

    def __iter__(self) -> Iterator[Microbatch]:
        return iter(self._epoch)

    def one_of_each(self) -> list[Microbatch]:
        """Return a batch for each shape; none if batches have no set shapes.

        With several batches an update there are two: one that ends an update, and one that does
        not, since other work follows them.
        """
        return [
            Microbatch(pairs=pairs, update_tokens=1, ends_update=ends_update, shape=shape)
            for pairs, shape in self._examples()
            for ends_update in ((True,) if self._accumulate == 1 else (True, False))
        ]

    def padding_share(self) -> float:
        """Return the share of this epoch's positions that hold no token, 0 to 1."""
        real = positions = 0
        for batch in self._epoch:
            src, tgt = self._src_lengths[batch.pairs], self._tgt_lengths[batch.pairs]
            shape = batch.shape
            real += int(src.sum() + tgt.sum())
            positions += (
                shape.num_tokens if shape else len(batch.pairs) * int(src.max() + tgt.max())
            )
        return 1.0 - real / positions if positions else 0.0

    def describe_shapes(self) -> str:
        """Return how batches are padded, for people."""
        padding = f"{self.padding_share():.1%} padding"
        if self._shapes is None:
            return f"each padded to its longest sentence, {padding}"
        sizes = [shape for shape in self._shapes.shapes if isinstance(shape, Packing)]
        if not sizes:
            return f"padded to {len(self._shapes.shapes)} shapes, {padding}"
        tokens = " or ".join(f"{shape.src_tokens:,} + {shape.tgt_tokens:,}" for shape in sizes)
        return f"packed into {tokens} tokens, {padding}"

    def _examples(self) -> list[_Cut]:
        if self._shapes is None:
            return []
        of_pair, shapes = self._shapes.of_pair, list[Shape | Packing](self._shapes.shapes)
        return [(np.flatnonzero(of_pair == n)[:1], shape) for n, shape in enumerate(shapes)]

    def _batches(self, random: np.random.Generator) -> list[_Cut]:
        match self._shapes:
            case None:
                return self._cut(self._sorted(random))
            case Packings() as packings:
                order = self._order(random)
                return list(fill(order, self._src_lengths, self._tgt_lengths, packings))
            case shapes:
                return self._to_shapes(shapes, random)

    def _order(self, random: np.random.Generator) -> NDArray[np.int64]:
        count = len(self._src_lengths)
        return random.permutation(count) if self._shuffle else np.arange(count)

    def _sorted(self, random: np.random.Generator) -> NDArray[np.int64]:
        return np.lexsort((self._order(random), self._tgt_lengths, self._src_lengths))

    def _to_shapes(self, shapes: Shapes, random: np.random.Generator) -> list[_Cut]:
        order = self._order(random)
        pairs_of = [order[shapes.of_pair[order] == n] for n in range(len(shapes.shapes))]
        return [(pairs, shapes.shapes[number]) for number, pairs in cut(shapes.shapes, pairs_of)]

    def _cut(self, order: NDArray[np.int64]) -> list[_Cut]:
        longer = np.maximum(self._src_lengths, self._tgt_lengths)[order]
        batches: list[_Cut] = []
        start = longest = 0
        for end, length in enumerate(longer):
            rows, longest = end - start + 1, max(longest, int(length))
            if rows > 1 and (rows > self._max_sentences or rows * longest > self._max_tokens):
                batches.append((order[start:end], None))
                start, longest = end, int(length)
        return [*batches, (order[start:], None)] if start < len(order) else batches

    def _group(self, batches: list[_Cut]) -> list[Microbatch]:
        grouped: list[Microbatch] = []
        for start in range(0, len(batches), self._accumulate):
            update = batches[start : start + self._accumulate]
            tokens = sum(int(self._tgt_lengths[pairs].sum()) for pairs, _ in update)
            grouped.extend(
                Microbatch(
                    pairs=pairs,
                    update_tokens=tokens,
                    ends_update=pairs is update[-1][0],
                    shape=shape,
                )
                for pairs, shape in update
            )
        return grouped


def make_loader(
    pairs: TokenPairs, sampler: BucketSampler, *, workers: int
) -> DataLoader[AnyBatch]:
    """Return a loader whose worker processes pad the sampler's batches.

    The loader draws its worker seeds from a generator of its own, so that dropout sees the same
    random numbers with any number of workers.
    """
    return DataLoader(
        PairBatches(pairs),
        batch_size=None,
        sampler=sampler,
        num_workers=workers,
        persistent_workers=workers > 0,
        prefetch_factor=8 if workers else None,
        generator=torch.Generator(),
        worker_init_fn=_ignore_signals,
    )


def _ignore_signals(worker: int) -> None:
    # Ctrl-C reaches every process of a terminal; the training process decides when to stop, and
    # still needs its workers until the update is complete.
    del worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _pad(rows: Rows, shape: tuple[int, int], *, filler: int) -> torch.Tensor:
    """Return rows of equal length; those that are not there begin with the filler."""
    padded = np.full(shape, PAD, dtype=np.int64)
    padded[len(rows.lengths) :, 0] = filler
    padded[np.repeat(np.arange(len(rows.lengths)), rows.lengths), rows.positions()] = rows.ids
    return torch.from_numpy(padded)
