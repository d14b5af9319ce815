"""Sentences packed one after the other, with almost no padding.

Batches have one fixed shape or two: a number of source tokens, of target tokens and of rows, and a
limit on the tokens of a row. If a few sentences are much longer than the rest, they get a shape of
their own, because the attention kernel keeps memory for rows times the longest row. What a batch
leaves free at the end of either side becomes rows of padding. They see only themselves, and the
loss leaves them out.

Within a shape pairs are not sorted by length: every batch is a random sample.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from gapless.nmt.data.batch import PackedBatch
from gapless.nmt.data.layout import BatchPlan
from gapless.nmt.data.vocab import PAD


if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gapless.nmt.data.token_pairs import Numbers, Rows


# Token counts are rounded up to a multiple of this, with which matrix kernels run faster. So is
# the longest row: the attention kernel works on tiles of this many tokens.
_GRAIN = 64

# The number of sentences in a batch varies. A shape has room for the mean plus this many times its
# square root: every row costs the attention kernel memory, used or not.
_SPARE = 4.0

# Pairs that are counted at a time.
_MOST_AT_ONCE = 1 << 20

# Use a second shape only if it saves this share of the attention kernel's memory.
_LEAST_SAVING = 0.2


@dataclass(frozen=True, kw_only=True)
class PackedShape:
    """The size of a packed batch.

    Attributes:
        src_tokens: source tokens of a batch, padding included.
        tgt_tokens: target tokens of a batch, padding included.
        sentences: most pairs in a batch.
        padding_rows: most rows of padding.
        longest: upper limit of the tokens in a row.
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
        """Rows of a batch: sentences, padding and empty ones."""
        return self.sentences + self.padding_rows

    def takes(self, src: Numbers, tgt: Numbers) -> NDArray[np.bool_]:
        """Return whether sentences with these total lengths fit into one batch, [n].

        Each row of padding needs a source token to attend to.

        Args:
            src: source tokens, [n].
            tgt: target tokens, [n].
        """
        padding_rows = -(-(self.tgt_tokens - tgt) // self.longest)
        return (tgt <= self.tgt_tokens) & (src + padding_rows <= self.src_tokens)

    def collate(
        self, src: Rows, tgt: Rows, *, update_tokens: int, ends_update: bool
    ) -> PackedBatch:
        """Return the batch of these pairs.

        Args:
            src: sources with end.
            tgt: targets with begin and end.
            update_tokens: target tokens of the whole update.
            ends_update: whether this is the update's last batch.
        """
        trg, trg_y = tgt.without_last(), tgt.without_first()
        src_rows, tgt_rows = self._row_lengths(src.lengths, trg.lengths)
        return PackedBatch(
            src=_filled(src.ids, self.src_tokens, PAD),
            src_positions=_filled(src.positions(), self.src_tokens, 0),
            src_starts=_starts(src_rows),
            trg=_filled(trg.ids, self.tgt_tokens, PAD),
            trg_y=_filled(trg_y.ids, self.tgt_tokens, PAD),
            tgt_positions=_filled(trg.positions(), self.tgt_tokens, 0),
            tgt_starts=_starts(tgt_rows),
            ntokens=torch.tensor(len(trg.ids)),
            norm=torch.tensor(update_tokens),
            longest=self.longest,
            ends_update=ends_update,
        )

    def _row_lengths(self, src_lengths: Numbers, tgt_lengths: Numbers) -> tuple[Numbers, Numbers]:
        """Return the lengths of all rows of both sides: sentences, padding, then empty rows."""
        free = (self.src_tokens - src_lengths.sum(), self.tgt_tokens - tgt_lengths.sum())
        num_rows = math.ceil(max(free) / self.longest)
        num_empty = self.rows - len(src_lengths) - num_rows
        sides = []
        for lengths, left in zip((src_lengths, tgt_lengths), free, strict=True):
            rows = [left // num_rows + (row < left % num_rows) for row in range(num_rows)]
            sides.append(np.concatenate((lengths, rows, np.zeros(num_empty))).astype(np.int64))
        return sides[0], sides[1]


@dataclass(frozen=True, kw_only=True)
class PackedLayout:
    """Packs each pair into the fixed shape that was chosen for it, or into the larger one.

    Attributes:
        shapes: one or two, the one for shorter sentences first.
        of_pair: number of each pair's shape, [pairs].
        src_lengths: source tokens of each pair, [pairs].
        tgt_lengths: target tokens to predict of each pair, [pairs].
    """

    shapes: list[PackedShape]
    of_pair: Numbers
    src_lengths: Numbers
    tgt_lengths: Numbers

    def batches(self, order: Numbers, *, multiple_of: int = 1) -> list[BatchPlan]:
        """Fill batches with the pairs of each shape; a last batch that is not full moves on.

        Args:
            order: the numbers of pairs.
            multiple_of: each shape but the largest has a multiple of so many batches; the pairs of others
                move on to a larger shape.
        """
        plans: list[BatchPlan] = []
        of_pair, is_left_over = self.of_pair[order], np.zeros(len(order), dtype=np.bool_)
        for number, shape in enumerate(self.shapes):
            own = np.flatnonzero((of_pair == number) | is_left_over)
            batches = [own[at] for at in self._fill(order[own], shape)]
            num_kept = len(batches)
            if num_kept and number + 1 < len(self.shapes):
                # The last batch is seldom full: its pairs go on to the next shape instead of padding.
                num_kept = (num_kept - 1) // multiple_of * multiple_of
            is_left_over[:] = False
            is_left_over[np.concatenate([own[:0], *batches[num_kept:]])] = True
            plans += [BatchPlan(order[at], shape) for at in batches[:num_kept]]
        return plans

    def examples(self) -> list[BatchPlan]:
        """Return a batch of one pair for each shape."""
        return [
            BatchPlan(np.flatnonzero(self.of_pair == number)[:1], shape)
            for number, shape in enumerate(self.shapes)
        ]

    def describe(self) -> str:
        """Return how batches are laid out, for people."""
        sizes = " or ".join(f"{s.src_tokens:,} + {s.tgt_tokens:,}" for s in self.shapes)
        return f"packed into {sizes} tokens"

    def _fill(self, order: Numbers, shape: PackedShape) -> list[Numbers]:
        """Return which of the pairs each batch of this shape has."""
        lengths = [side[order].astype(np.int64) for side in (self.src_lengths, self.tgt_lengths)]
        at = _balanced(lengths[0], lengths[1], shape)
        src, tgt = (np.cumsum(side[at]) for side in lengths)
        batches = []
        start = 0
        while start < len(order):
            before_src, before_tgt = (side[start - 1] if start else 0 for side in (src, tgt))
            last = start + shape.sentences
            fits = shape.takes(src[start:last] - before_src, tgt[start:last] - before_tgt)
            # The first pair that does not fit ends the batch. A batch holds one pair at least.
            size = max(1, len(fits) if fits.all() else int(fits.argmin()))
            batches.append(at[start : start + size])
            start += size
        return batches


def _balanced(src_lengths: Numbers, tgt_lengths: Numbers, shape: PackedShape) -> Numbers:
    """Return the order of pairs in which both sides of a batch fill up at one rate.

    Interleaves source-heavy and target-heavy pairs by cumulative imbalance. Otherwise a batch
    could be full on one side and half empty on the other.
    """
    imbalance = src_lengths * shape.tgt_tokens - tgt_lengths * shape.src_tokens
    imbalance_before = np.zeros(len(imbalance), dtype=np.int64)
    for is_heavy in (imbalance > 0, imbalance <= 0):
        amounts = np.abs(imbalance[is_heavy])
        imbalance_before[is_heavy] = np.cumsum(amounts) - amounts
    return np.argsort(imbalance_before, kind="stable")


def choose_packed_layout(
    src_lengths: Numbers,
    tgt_lengths: Numbers,
    *,
    max_tokens: int,
    max_sentences: int | None = None,
) -> PackedLayout:
    """Choose one fixed shape or two for pairs of these lengths.

    Both sides of a shape fill up at the same rate.

    Args:
        src_lengths: source tokens of each pair, [pairs], at least one pair.
        tgt_lengths: target tokens to predict of each pair, [pairs].
        max_tokens: tokens of a batch's longer side, rounded down to a multiple of 64; more only
            if a single pair needs more.
        max_sentences: most pairs in a batch; None: as many as the tokens allow.

    Raises:
        ValueError: there are no pairs.
    """
    if not len(src_lengths):
        raise ValueError("there must be at least one pair to choose shapes for, but there is none")
    longer = np.maximum(src_lengths, tgt_lengths)
    table = _ByLength(longer, src_lengths, tgt_lengths)
    split_at = partial(_Split.at, table=table, max_tokens=max_tokens, max_sentences=max_sentences)
    one_shape = split_at(table.longest)
    limits = range(_round_up(table.shortest), table.longest, _GRAIN)
    two_shapes = min(
        map(split_at, limits),
        key=lambda split: split.attention_memory,
        default=one_shape,
    )
    is_worth_it = two_shapes.attention_memory < (1 - _LEAST_SAVING) * one_shape.attention_memory
    best = two_shapes if is_worth_it else one_shape
    return PackedLayout(
        shapes=best.shapes,
        of_pair=(longer > best.limit).astype(np.int8),
        src_lengths=src_lengths,
        tgt_lengths=tgt_lengths,
    )


class _ByLength:
    """How many pairs there are by the length of their longer side, and how long both are together.

    Args:
        longer: length of the longer side of each pair.
        sides: source and target tokens of each pair.
    """

    def __init__(self, longer: Numbers, *sides: Numbers) -> None:
        self.shortest, self.longest = int(longer.min()), int(longer.max())
        self._counts = np.zeros(self.longest + 1, dtype=np.int64)
        self._sums = np.zeros((2, self.longest + 1), dtype=np.int64)
        self._longest = np.zeros((2, self.longest + 1), dtype=np.int64)
        # Some at a time: what `bincount` makes of its arguments is larger than they are.
        for start in range(0, len(longer), _MOST_AT_ONCE):
            part = slice(start, start + _MOST_AT_ONCE)
            self._counts += np.bincount(longer[part], minlength=self.longest + 1)
            for number, side in enumerate(sides):
                sums = np.bincount(longer[part], side[part], minlength=self.longest + 1)
                self._sums[number] += sums.astype(np.int64)
                np.maximum.at(self._longest[number], longer[part], side[part])

    def num_pairs(self, above: int, to: int) -> int:
        """Return the pairs whose longer side has a length above one and up to another."""
        return int(self._counts[above + 1 : to + 1].sum())

    def tokens(self, above: int, to: int) -> list[int]:
        """Return source and target tokens of these pairs."""
        return [int(side[above + 1 : to + 1].sum()) for side in self._sums]

    def longest_to(self, to: int) -> list[int]:
        """Return the longest source and target of pairs whose longer side has a length up to one."""
        return [int(side[: to + 1].max()) for side in self._longest]


@dataclass(frozen=True)
class _Split:
    """Shapes for pairs up to a limit of length, and for those above it.

    Attributes:
        limit: length of a pair's longer side.
        shapes: one, if no pair is longer, or both.
        attention_memory: what the attention kernel keeps in an epoch: rows times the longest, summed.
    """

    limit: int
    shapes: list[PackedShape]
    attention_memory: float

    @classmethod
    def at(
        cls, limit: int, table: _ByLength, *, max_tokens: int, max_sentences: int | None
    ) -> _Split:
        ranges = [(-1, limit), (limit, table.longest)][: 1 + (limit < table.longest)]
        shapes, memory = [], 0.0
        for above, to in ranges:
            tokens, count = table.tokens(above, to), table.num_pairs(above, to)
            # Shorter pairs may move on into this shape, so it takes any of them.
            own_or_shorter = table.num_pairs(-1, to)
            all_pairs = table.num_pairs(-1, table.longest)
            shape = _shape(
                means=[side / count for side in tokens],
                longest=table.longest_to(to),
                max_tokens=max_tokens,
                max_sentences=min(max_sentences or all_pairs, own_or_shorter),
            )
            memory += sum(tokens) / shape.num_tokens * shape.rows * shape.longest
            shapes.append(shape)
        return cls(limit, shapes, memory)


def _shape(
    *, means: list[float], longest: list[int], max_tokens: int, max_sentences: int
) -> PackedShape:
    """Return the shape that fits pairs of these mean lengths, and takes pairs of these longest.

    Args:
        means: mean source and target length.
        longest: longest source and target.
        max_tokens: budget of the longer side.
        max_sentences: most pairs in a batch.
    """
    budget = max(_GRAIN, max_tokens // _GRAIN * _GRAIN)
    pairs = budget / max(means)
    longest_row = _round_up(max(longest))
    src_tokens, tgt_tokens = (
        min(budget, _round_up(min(pairs, max_sentences) * mean)) for mean in means
    )
    tgt_tokens = max(tgt_tokens, _round_up(longest[1]))
    # Beside any pair there is a source token for each row of padding.
    src_tokens = max(src_tokens, _round_up(longest[0] + tgt_tokens // longest_row + 1))
    return PackedShape(
        src_tokens=src_tokens,
        tgt_tokens=tgt_tokens,
        sentences=min(math.ceil(pairs + _SPARE * math.sqrt(pairs)), max_sentences),
        # Enough for a batch that is all padding.
        padding_rows=math.ceil(max(src_tokens, tgt_tokens) / longest_row) + 1,
        longest=longest_row,
    )


def _starts(lengths: Numbers) -> torch.Tensor:
    return torch.from_numpy(np.concatenate(([0], np.cumsum(lengths))).astype(np.int32))


def _filled(values: Numbers, length: int, filler: int) -> torch.Tensor:
    filled = np.full(length, filler, dtype=np.int64)
    filled[: len(values)] = values
    return torch.from_numpy(filled)


def _round_up(tokens: float) -> int:
    return math.ceil(tokens / _GRAIN) * _GRAIN
