"""Sentence pairs as flat arrays of token ids, from which a batch is gathered in a few operations.

A batch may hold hundreds of sentences. Handling them one by one would take longer than a captured
step on the batch.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gapless.nmt.data.vocab import BOS, EOS


if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


@dataclass(frozen=True)
class Rows:
    """Rows of tokens, one after the other.

    Attributes:
        ids: of all tokens, [sum of the lengths], int64.
        lengths: tokens of each row, [rows], int64.
    """

    ids: NDArray[np.int64]
    lengths: NDArray[np.int64]

    def positions(self) -> NDArray[np.int64]:
        """Return the position of each token within its row, [tokens]."""
        before = np.cumsum(self.lengths) - self.lengths
        return np.arange(len(self.ids)) - np.repeat(before, self.lengths)

    def without_first(self) -> Rows:
        """Return the rows without the first token of each; no row may be empty."""
        return Rows(self.ids[self.positions() > 0], self.lengths - 1)

    def without_last(self) -> Rows:
        """Return the rows without the last token of each; no row may be empty."""
        is_last = np.zeros(len(self.ids), dtype=np.bool_)
        is_last[np.cumsum(self.lengths) - 1] = True
        return Rows(self.ids[~is_last], self.lengths - 1)


class _Sentences:
    """All sentences of one side; gathers any of them as rows."""

    def __init__(self, sentences: list[list[int]]) -> None:
        lengths = np.array([len(ids) for ids in sentences], dtype=np.int64)
        every_id = (number for ids in sentences for number in ids)
        # 32 bits: worker processes share these arrays, and each batch is read from memory.
        self.ids = np.fromiter(every_id, dtype=np.int32, count=int(lengths.sum()))
        self.starts = np.concatenate(([0], np.cumsum(lengths)))

    @property
    def lengths(self) -> NDArray[np.int64]:
        return np.diff(self.starts)

    def take(self, numbers: NDArray[np.int64]) -> Rows:
        starts = self.starts[numbers]
        lengths = self.starts[numbers + 1] - starts
        before = np.cumsum(lengths) - lengths
        at = np.repeat(starts - before, lengths) + np.arange(lengths.sum())
        return Rows(self.ids[at].astype(np.int64), lengths)


class TokenPairs:
    """Sentence pairs as flat arrays, cheap to share with worker processes.

    Args:
        src: token ids of each source sentence, without marks.
        tgt: token ids of each target sentence, without marks.
    """

    def __init__(self, src: Sequence[Sequence[int]], tgt: Sequence[Sequence[int]]) -> None:
        self._src = _Sentences([[*ids, EOS] for ids in src])
        self._tgt = _Sentences([[BOS, *ids, EOS] for ids in tgt])

    def __len__(self) -> int:
        return len(self._src.starts) - 1

    @property
    def src_lengths(self) -> NDArray[np.int64]:
        """Source tokens of each pair, the end mark included."""
        return self._src.lengths

    @property
    def tgt_lengths(self) -> NDArray[np.int64]:
        """Target tokens to predict of each pair, the end mark included."""
        return self._tgt.lengths - 1

    def target_entropy(self) -> float:
        """Return the entropy of target tokens, in nats: their mean loss by their frequencies alone."""
        counts = np.bincount(self._tgt.ids).astype(np.float64)
        # The begin mark is given, never predicted.
        counts[BOS] = 0.0
        shares = counts[counts > 0] / counts.sum()
        return float(-(shares * np.log(shares)).sum())

    def checksum(self) -> int:
        """Return a number that tells these pairs, in this order, from others."""
        checksum = 0
        for side in (self._src, self._tgt):
            checksum = zlib.crc32(side.starts.data, zlib.crc32(side.ids.data, checksum))
        return checksum

    def take(self, numbers: NDArray[np.int64]) -> tuple[Rows, Rows]:
        """Return sources with their ends, and targets with begin and end, of these pairs."""
        return self._src.take(numbers), self._tgt.take(numbers)
