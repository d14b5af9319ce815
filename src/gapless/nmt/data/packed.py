"""Sentences packed one after the other, so that a batch holds next to no padding.

Batches have one shape or two: so many source tokens, so many target tokens, so many rows, each of
so many tokens at most. Where few sentences are much longer than the rest these have a shape of
their own, because the attention kernel keeps memory for rows times the longest. What a batch
leaves free at the end of either side is given to rows of padding, which see each other and are
not learnt from.

Within a shape nothing has to be sorted: every batch is a random sample.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from gapless.nmt.data.vocab import PAD


if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from gapless.nmt.data.token_pairs import Rows


# Numbers of tokens are rounded up to a multiple of this, which matrix kernels like, and lengths
# of rows to what the attention kernel works on at a time.
_GRAIN = 64

# Batches hold a random number of sentences. So many times the root of their mean more is room
# enough; each row costs the attention kernel memory, whether it is used or not.
_SPARE = 4.0

# A second shape has to save so much of the memory for rows.
_LEAST_SAVING = 0.2


@dataclass(frozen=True, kw_only=True)
class Packing:
    """The shape of batches.

    Attributes:
        src_tokens: source tokens of a batch, padding included.
        tgt_tokens: target tokens of a batch, padding included.
        sentences: most pairs in a batch.
        padding_rows: most rows of padding.
        longest: no row has more tokens.
    """

    src_tokens: int
    tgt_tokens: int
    sentences: int
    padding_rows: int
    longest: int

    @property
    def num_tokens(self) -> int:
        """Source and target positions of a batch, padding included."""
        return self.src_tokens + self.tgt_tokens

    @property
    def rows(self) -> int:
        """Rows of a batch, whether they hold a sentence, padding or nothing."""
        return self.sentences + self.padding_rows

    def takes(self, src: NDArray[np.int64], tgt: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether there is room for so many tokens, and a source token for each padding row."""
        padding_rows = -(-(self.tgt_tokens - tgt) // self.longest)
        return (tgt <= self.tgt_tokens) & (src + padding_rows <= self.src_tokens)


@dataclass(frozen=True, kw_only=True)
class PackedBatch:
    """Packed sentences as they travel to the device and into the model.

    Attributes:
        src: source ids with ends, [S], int64.
        src_positions: position of each within its sentence, [S], int64.
        src_starts: first token of each row, and S, [rows + 1], int32.
        trg: target ids that the decoder reads, from the begin marks on, [T], int64.
        trg_y: target ids that it predicts, up to the end marks, [T], int64.
        tgt_positions: position of each within its sentence, [T], int64.
        tgt_starts: first token of each row, and T, [rows + 1], int32.
        ntokens: target tokens to predict in this batch, padding excluded, a scalar tensor.
        norm: target tokens of the whole update that this batch belongs to, a scalar tensor.
        longest: no row has more tokens.
        ends_update: whether the optimizer steps after this batch.
    """

    src: torch.Tensor
    src_positions: torch.Tensor
    src_starts: torch.Tensor
    trg: torch.Tensor
    trg_y: torch.Tensor
    tgt_positions: torch.Tensor
    tgt_starts: torch.Tensor
    ntokens: torch.Tensor
    norm: torch.Tensor
    longest: int
    ends_update: bool


@dataclass(frozen=True, kw_only=True)
class Packings:
    """The shapes of a training set, and which pair goes into which.

    Attributes:
        shapes: one or two, the one for shorter sentences first.
        of_pair: number of each pair's shape, [pairs].
    """

    shapes: list[Packing]
    of_pair: NDArray[np.int64]


def choose_packings(
    src_lengths: NDArray[np.int64],
    tgt_lengths: NDArray[np.int64],
    *,
    max_tokens: int,
    max_sentences: int | None = None,
) -> Packings:
    """Return shapes whose two sides fill up at the same rate.

    Args:
        src_lengths: source tokens of each pair, at least one pair.
        tgt_lengths: target tokens to predict of each pair.
        max_tokens: tokens of a batch's longer side, rounded down to a multiple of 64; more only
            if a single pair needs more.
        max_sentences: most pairs in a batch; None: what the tokens allow.

    Raises:
        ValueError: there are no pairs.
    """
    if not len(src_lengths):
        raise ValueError("there must be at least one pair to choose shapes for, but there is none")
    sides = src_lengths, tgt_lengths
    longer = np.maximum(*sides)

    def split_at(limit: int) -> Packings:
        of_pair = (longer > limit).astype(np.int64)
        shapes = []
        for number in range(int(of_pair.max()) + 1):
            own, any_shorter = of_pair == number, of_pair <= number
            shapes.append(
                _packing(
                    [float(side[own].mean()) for side in sides],
                    [int(side[any_shorter].max()) for side in sides],
                    max_tokens=max_tokens,
                    max_sentences=min(max_sentences or len(longer), int(any_shorter.sum())),
                )
            )
        return Packings(shapes=shapes, of_pair=of_pair)

    def cost(packings: Packings) -> float:
        tokens = np.bincount(packings.of_pair, weights=src_lengths + tgt_lengths)
        return sum(
            float(count) / shape.num_tokens * shape.rows * shape.longest
            for count, shape in zip(tokens, packings.shapes, strict=True)
        )

    one = split_at(int(longer.max()))
    limits = range(_GRAIN * -(-int(longer.min()) // _GRAIN), int(longer.max()), _GRAIN)
    two = min(map(split_at, limits), key=cost, default=one)
    return two if cost(two) < (1 - _LEAST_SAVING) * cost(one) else one


def _packing(
    means: list[float], longest: list[int], *, max_tokens: int, max_sentences: int
) -> Packing:
    """Return the shape for pairs of these mean lengths that takes any of these lengths."""
    budget = max(_GRAIN, max_tokens // _GRAIN * _GRAIN)
    pairs = budget / max(means)
    longest_row = _round_up(max(longest))
    src_tokens, tgt_tokens = (
        min(budget, _round_up(min(pairs, max_sentences) * mean)) for mean in means
    )
    tgt_tokens = max(tgt_tokens, _round_up(longest[1]))
    # Rows of padding need a source token each, beside any pair.
    src_tokens = max(src_tokens, _round_up(longest[0] + tgt_tokens // longest_row + 1))
    return Packing(
        src_tokens=src_tokens,
        tgt_tokens=tgt_tokens,
        sentences=min(math.ceil(pairs + _SPARE * math.sqrt(pairs)), max_sentences),
        # Enough for a batch that is all padding.
        padding_rows=math.ceil(max(src_tokens, tgt_tokens) / longest_row) + 1,
        longest=longest_row,
    )


def fill(
    order: NDArray[np.int64],
    src_lengths: NDArray[np.int64],
    tgt_lengths: NDArray[np.int64],
    packings: Packings,
) -> Iterator[tuple[NDArray[np.int64], Packing]]:
    """Yield the pairs and the shape of each batch.

    What does not fill a batch of the first shape moves on to the second.

    Args:
        order: numbers of pairs, in random order.
        src_lengths: of all pairs.
        tgt_lengths: of all pairs.
        packings: the shapes.
    """
    left = order[:0]
    for number, shape in enumerate(packings.shapes):
        pairs = order[(packings.of_pair[order] == number) | np.isin(order, left)]
        batches = list(_fill(pairs, src_lengths, tgt_lengths, shape))
        is_last = shape is packings.shapes[-1]
        left = order[:0] if is_last or not batches else batches.pop()
        yield from ((batch, shape) for batch in batches)


def _fill(
    order: NDArray[np.int64],
    src_lengths: NDArray[np.int64],
    tgt_lengths: NDArray[np.int64],
    shape: Packing,
) -> Iterator[NDArray[np.int64]]:
    order = _balanced(order, src_lengths, tgt_lengths, shape)
    src, tgt = (np.cumsum(lengths[order]) for lengths in (src_lengths, tgt_lengths))
    start = 0
    while start < len(order):
        before_src, before_tgt = (side[start - 1] if start else 0 for side in (src, tgt))
        last = start + shape.sentences
        fits = shape.takes(src[start:last] - before_src, tgt[start:last] - before_tgt)
        # What does not fit ends the batch; the first pair is taken in any case.
        size = max(1, len(fits) if fits.all() else int(fits.argmin()))
        yield order[start : start + size]
        start += size


def _balanced(
    order: NDArray[np.int64],
    src_lengths: NDArray[np.int64],
    tgt_lengths: NDArray[np.int64],
    shape: Packing,
) -> NDArray[np.int64]:
    """Return the pairs so ordered that no batch is full on one side and half empty on the other.

    Those that are longer in the source than the shape has it take turns with those that are
    longer in the target: each comes when its own kind has leant so far as the other.
    """
    lean = (src_lengths * shape.tgt_tokens - tgt_lengths * shape.src_tokens)[order]
    leant_before = np.zeros(len(order), dtype=np.int64)
    for side in (lean > 0, lean <= 0):
        amounts = np.abs(lean[side])
        leant_before[side] = np.cumsum(amounts) - amounts
    return order[np.argsort(leant_before, kind="stable")]


def pack(
    src: Rows, tgt: Rows, packing: Packing, *, update_tokens: int, ends_update: bool
) -> PackedBatch:
    """Return the batch of these pairs.

    Args:
        src: sources with end.
        tgt: targets with begin and end.
        packing: the shape.
        update_tokens: target tokens of the whole update.
        ends_update: whether this is the update's last batch.
    """
    trg, trg_y = tgt.without_last(), tgt.without_first()
    src_rows, tgt_rows = _with_padding_rows(src.lengths, trg.lengths, packing)
    return PackedBatch(
        src=_filled(src.ids, packing.src_tokens, PAD),
        src_positions=_filled(src.positions(), packing.src_tokens, 0),
        src_starts=_starts(src_rows),
        trg=_filled(trg.ids, packing.tgt_tokens, PAD),
        trg_y=_filled(trg_y.ids, packing.tgt_tokens, PAD),
        tgt_positions=_filled(trg.positions(), packing.tgt_tokens, 0),
        tgt_starts=_starts(tgt_rows),
        ntokens=torch.tensor(len(trg.ids)),
        norm=torch.tensor(update_tokens),
        longest=packing.longest,
        ends_update=ends_update,
    )


def _with_padding_rows(
    src_lengths: NDArray[np.int64], tgt_lengths: NDArray[np.int64], packing: Packing
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the lengths of all rows of both sides: sentences, padding, and empty ones."""
    free = (packing.src_tokens - src_lengths.sum(), packing.tgt_tokens - tgt_lengths.sum())
    num_rows = math.ceil(max(free) / packing.longest)
    num_empty = packing.rows - len(src_lengths) - num_rows
    sides = []
    for lengths, left in zip((src_lengths, tgt_lengths), free, strict=True):
        rows = [left // num_rows + (row < left % num_rows) for row in range(num_rows)]
        sides.append(np.concatenate((lengths, rows, np.zeros(num_empty))).astype(np.int64))
    return sides[0], sides[1]


def _starts(lengths: NDArray[np.int64]) -> torch.Tensor:
    return torch.from_numpy(np.concatenate(([0], np.cumsum(lengths))).astype(np.int32))


def _filled(values: NDArray[np.int64], length: int, filler: int) -> torch.Tensor:
    filled = np.full(length, filler, dtype=np.int64)
    filled[: len(values)] = values
    return torch.from_numpy(filled)


def _round_up(tokens: float) -> int:
    return math.ceil(tokens / _GRAIN) * _GRAIN
