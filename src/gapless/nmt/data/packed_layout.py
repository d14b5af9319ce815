"""Sentences packed one after the other, with almost no padding.

Batches have one fixed shape: a number of source tokens, of target tokens and of rows, and a limit
on the tokens of a row. What a batch leaves free at the end of either side becomes rows of padding.
They see only themselves, and the loss leaves them out.

Pairs are not sorted by length: every batch is a random sample.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from gapless.nmt.data.batch import PackedBatch
from gapless.nmt.data.layout import BatchPlan
from gapless.nmt.data.vocab import PAD


if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gapless.nmt.data.token_pairs import Numbers, Rows


# Token counts and the longest row are rounded up to a multiple of this, with which matrix kernels
# run faster.
_GRAIN = 64

# The number of sentences in a batch varies. The shape has room for the mean plus this many times its
# square root: where rows are padded for attention, each costs memory, used or not.
_SPARE = 4.0


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
        tgt_padding = np.full(self.tgt_tokens - len(trg.ids), PAD)
        numbers = np.concatenate(
            (
                *(src.ids, np.full(self.src_tokens - len(src.ids), PAD)),
                *(trg.ids, tgt_padding),
                *(trg_y.ids, tgt_padding),
                *([0], np.cumsum(src_rows)),
                *([0], np.cumsum(tgt_rows)),
                *([len(trg.ids)], [update_tokens]),
            ),
            dtype=np.int32,
            casting="same_kind",
        )
        return PackedBatch(
            numbers=torch.from_numpy(numbers),
            src_tokens=self.src_tokens,
            tgt_tokens=self.tgt_tokens,
            rows=self.rows,
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
    """Packs pairs into batches of one fixed shape.

    Attributes:
        shape: of every batch.
        src_lengths: source tokens of each pair, [pairs].
        tgt_lengths: target tokens to predict of each pair, [pairs].
    """

    shape: PackedShape
    src_lengths: Numbers
    tgt_lengths: Numbers

    def batches(self, order: Numbers, *, multiple_of: int = 1) -> list[BatchPlan]:
        """Fill batches with the pairs.

        Args:
            order: the numbers of pairs.
            multiple_of: is for layouts of several shapes.
        """
        del multiple_of
        return [BatchPlan(order[at], self.shape) for at in self._fill(order)]

    def examples(self) -> list[BatchPlan]:
        """Return a batch of one pair."""
        return [BatchPlan(np.arange(1), self.shape)]

    def describe(self) -> str:
        """Return how batches are laid out, for people."""
        return f"packed into {self.shape.src_tokens:,} + {self.shape.tgt_tokens:,} tokens"

    def _fill(self, order: Numbers) -> list[Numbers]:
        """Return which of the pairs each batch has."""
        shape = self.shape
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
    """Choose the fixed shape for pairs of these lengths, whose sides fill up at the same rate.

    Args:
        src_lengths: source tokens of each pair, [pairs], at least one pair.
        tgt_lengths: target tokens to predict of each pair, [pairs].
        max_tokens: tokens of a batch's longer side, rounded down to a multiple of 64; more only
            if a single pair needs more.
        max_sentences: most pairs in a batch; None: as many as the tokens allow.

    Raises:
        ValueError: there are no pairs.
    """
    count = len(src_lengths)
    if not count:
        raise ValueError(
            "there must be at least one pair to choose a shape for, but there is none"
        )
    sides = src_lengths, tgt_lengths
    means = [int(side.sum(dtype=np.int64)) / count for side in sides]
    longest_src, longest_tgt = (int(side.max()) for side in sides)
    budget = max(_GRAIN, max_tokens // _GRAIN * _GRAIN)
    pairs = budget / max(means)
    most = min(max_sentences or count, count)
    longest_row = _round_up(max(longest_src, longest_tgt))
    src_tokens, tgt_tokens = (min(budget, _round_up(min(pairs, most) * mean)) for mean in means)
    tgt_tokens = max(tgt_tokens, _round_up(longest_tgt))
    # Beside any pair there is a source token for each row of padding.
    src_tokens = max(src_tokens, _round_up(longest_src + tgt_tokens // longest_row + 1))
    shape = PackedShape(
        src_tokens=src_tokens,
        tgt_tokens=tgt_tokens,
        sentences=min(math.ceil(pairs + _SPARE * math.sqrt(pairs)), most),
        # Enough for a batch that is all padding.
        padding_rows=math.ceil(max(src_tokens, tgt_tokens) / longest_row) + 1,
        longest=longest_row,
    )
    return PackedLayout(shape=shape, src_lengths=src_lengths, tgt_lengths=tgt_lengths)


def _round_up(tokens: float) -> int:
    return math.ceil(tokens / _GRAIN) * _GRAIN
