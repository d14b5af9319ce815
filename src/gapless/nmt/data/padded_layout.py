"""Batches of pairs of similar length, each padded to its longest sentence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from gapless.nmt.data.batch import TokenBatch
from gapless.nmt.data.layout import BatchPlan
from gapless.nmt.data.vocab import BOS, EOS, PAD


if TYPE_CHECKING:
    from gapless.nmt.data.token_pairs import Numbers, Rows


@dataclass(frozen=True, kw_only=True)
class PaddedShape:
    """The size of a padded batch.

    Attributes:
        rows: sentence pairs.
        src_len: source tokens of each row, padding included.
        tgt_len: target tokens to predict of each row, padding included.
    """

    rows: int
    src_len: int
    tgt_len: int

    @property
    def num_tokens(self) -> int:
        """Source and target positions of a batch, padding included."""
        return self.rows * (self.src_len + self.tgt_len)

    def takes(self, other: PaddedShape) -> bool:
        """Return whether every sentence of another shape fits into this one."""
        return self.src_len >= other.src_len and self.tgt_len >= other.tgt_len

    def collate(
        self, src: Rows, tgt: Rows, *, update_tokens: int, ends_update: bool
    ) -> TokenBatch:
        """Return the batch of these pairs.

        Args:
            src: sources with end.
            tgt: targets with begin and end.
            update_tokens: target tokens of the whole update.
            ends_update: whether this is the update's last batch.
        """
        return TokenBatch(
            # Rows that fill up the batch: one source token, since attention over no key gives NaN, and no target.
            src=_pad(src, (self.rows, self.src_len), filler=EOS),
            tgt=_pad(tgt, (self.rows, self.tgt_len + 1), filler=BOS),
            ntokens=torch.tensor(len(tgt.ids) - len(tgt.lengths)),
            norm=torch.tensor(update_tokens),
            ends_update=ends_update,
        )


class PaddedLayout:
    """Sorts pairs by length and cuts them into batches; each has a shape of its own.

    Args:
        src_lengths: source tokens of each pair, [pairs].
        tgt_lengths: target tokens to predict of each pair, [pairs].
        max_tokens: budget of a batch, padding included: rows times the longer side's length.
        max_sentences: most pairs in a batch.

    Raises:
        ValueError: neither budget is given.
    """

    def __init__(
        self,
        src_lengths: Numbers,
        tgt_lengths: Numbers,
        *,
        max_tokens: int | None = None,
        max_sentences: int | None = None,
    ) -> None:
        if max_tokens is None and max_sentences is None:
            raise ValueError("max_tokens or max_sentences must be given, but both are None")
        self._src_lengths = src_lengths
        self._tgt_lengths = tgt_lengths
        self._max_tokens = max_tokens or int(np.iinfo(np.int64).max)
        self._max_sentences = max_sentences or len(src_lengths)

    def batches(self, order: Numbers, *, multiple_of: int = 1) -> list[BatchPlan]:
        """Cut the pairs into batches, the shortest sentences first.

        Args:
            order: numbers of pairs; orders those of equal lengths.
            multiple_of: not used: each batch has a shape of its own.
        """
        del multiple_of
        if not len(order):
            return []
        numbers = np.sort(order)
        lengths = self._tgt_lengths[numbers], self._src_lengths[numbers]
        by_length = numbers[np.lexsort((order, *lengths))]
        src, tgt = self._src_lengths[by_length], self._tgt_lengths[by_length]
        starts = self._starts(np.maximum(src, tgt))
        ends = [*starts[1:], len(by_length)]
        src_lens, tgt_lens = (map(int, np.maximum.reduceat(side, starts)) for side in (src, tgt))
        return [
            BatchPlan(
                by_length[start:end],
                PaddedShape(rows=end - start, src_len=src_len, tgt_len=tgt_len),
            )
            for start, end, src_len, tgt_len in zip(starts, ends, src_lens, tgt_lens, strict=True)
        ]

    def examples(self) -> list[BatchPlan]:
        """Return nothing: each batch has a shape of its own."""
        return []

    def describe(self) -> str:
        """Return how batches are laid out, for people."""
        return "each padded to its longest sentence"

    def _starts(self, longer: Numbers) -> list[int]:
        """Return where each batch starts among pairs whose longer sides have these lengths."""
        starts, longest = [0], 0
        for end, length in enumerate(map(int, longer)):
            rows, longest = end - starts[-1] + 1, max(longest, length)
            if rows > 1 and (rows > self._max_sentences or rows * longest > self._max_tokens):
                starts.append(end)
                longest = length
        return starts


def _pad(rows: Rows, shape: tuple[int, int], *, filler: int) -> torch.Tensor:
    """Return rows of equal length; rows without a sentence begin with the filler."""
    padded = np.full(shape, PAD, dtype=np.int64)
    padded[len(rows.lengths) :, 0] = filler
    padded[np.repeat(np.arange(len(rows.lengths)), rows.lengths), rows.positions()] = rows.ids
    return torch.from_numpy(padded)
