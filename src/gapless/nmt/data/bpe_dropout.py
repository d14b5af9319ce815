"""BPE-dropout: words of the training text are cut otherwise in each epoch.

Source: Provilkov et al. 2020. Each merge that makes a subword is left out by chance, and then those above it are
undone. There another merge may take its place. This needs no text, and gives the same cuts on every machine,
which sentencepiece's own sampling does not promise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gapless.nmt.data.token_pairs import Rows, Sentences, TokenPairs
from gapless.nmt.data.vocab import SubwordVocab


if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gapless.nmt.data.vocab import Vocabs


# Sentences that are cut at a time.
_CHUNK = 100_000


class BpeDropout:
    """Cuts pairs anew for each epoch; the same epoch always gives the same tokens.

    Args:
        pairs: to cut.
        vocabs: of both sides, of subwords made by bpe.
        share: of the merges that are left out.
        max_length: most tokens of a sentence; one that would have more keeps its tokens.
        seed: of what is left out.
    """

    def __init__(
        self, pairs: TokenPairs, vocabs: Vocabs, *, share: float, max_length: int, seed: int
    ) -> None:
        assert isinstance(vocabs.src, SubwordVocab)
        assert isinstance(vocabs.tgt, SubwordVocab)
        self._sides = [
            # With their marks.
            (sentences, splits, _chances(splits, share), max_length + num_marks)
            for sentences, splits, num_marks in (
                (pairs.src, vocabs.src.splits(), 1),
                (pairs.tgt, vocabs.tgt.splits(), 2),
            )
        ]
        self._seed = seed

    def of_epoch(self, epoch: int) -> TokenPairs:
        """Return the pairs of an epoch, in their order, in memory."""
        cut = []
        for at, (sentences, splits, chances, most) in enumerate(self._sides):
            numbers = np.arange(len(sentences))
            parts = []
            for start in range(0, len(numbers), _CHUNK):
                random = np.random.default_rng((self._seed, epoch, at, start))
                rows = sentences.take(numbers[start : start + _CHUNK])
                parts.append(_cut(rows, splits, chances, random, most=most))
            cut.append(Sentences.joined(parts))
        return TokenPairs(*cut)


def _chances(splits: NDArray[np.int32], share: float) -> NDArray[np.float64]:
    """Return for each subword the chance that one of its merges is left out, [V]."""
    merges = np.full(len(splits), -1)

    def count(number: int) -> int:
        if merges[number] < 0:
            left, right = splits[number]
            merges[number] = 0 if left < 0 else 1 + count(left) + count(right)
        return int(merges[number])

    return 1.0 - (1.0 - share) ** np.array([count(number) for number in range(len(splits))])


def _cut(
    rows: Rows,
    splits: NDArray[np.int32],
    chances: NDArray[np.float64],
    random: np.random.Generator,
    *,
    most: int,
) -> Sentences:
    """Return sentences cut anew; one of more tokens than `most` as it was."""
    row_of = np.repeat(np.arange(len(rows.lengths)), rows.lengths)
    ids, row_of_new = rows.ids, row_of
    may_be_cut = np.ones(len(ids), dtype=np.bool_)
    while True:
        is_cut = may_be_cut & (random.random(len(ids)) < chances[ids])
        if not is_cut.any():
            break
        counts = 1 + is_cut
        at = (np.cumsum(counts) - counts)[is_cut]
        parts = splits[ids[is_cut]]
        ids, row_of_new = np.repeat(ids, counts), np.repeat(row_of_new, counts)
        ids[at], ids[at + 1] = parts.T
        # The parts of what is whole are.
        may_be_cut = np.zeros(len(ids), dtype=np.bool_)
        may_be_cut[at] = may_be_cut[at + 1] = True
    lengths = np.bincount(row_of_new, minlength=len(rows.lengths))
    is_long = lengths > most
    ids = np.concatenate((ids[~is_long[row_of_new]], rows.ids[is_long[row_of]]))
    order = np.concatenate((row_of_new[~is_long[row_of_new]], row_of[is_long[row_of]]))
    lengths = np.where(is_long, rows.lengths, lengths)
    ids = ids[np.argsort(order, kind="stable")].astype(np.int32)
    return Sentences(ids, np.concatenate(([0], np.cumsum(lengths))))
