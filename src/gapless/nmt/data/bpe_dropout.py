"""BPE-dropout: words of the training text are cut otherwise in each epoch.

Source: Provilkov et al. 2020.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gapless.nmt.data.token_pairs import TokenPairs
from gapless.nmt.data.vocab import BOS, EOS, SubwordVocab


if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gapless.nmt.data.token_pairs import Rows
    from gapless.nmt.data.vocab import Vocabs


# Pairs that are cut at a time.
_CHUNK = 50_000


class BpeDropout:
    """Cuts pairs anew for each epoch; the same epoch always gives the same tokens.

    Args:
        pairs: to cut, whose tokens give back their text.
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
        self._pairs = pairs
        self._vocabs = vocabs.src, vocabs.tgt
        self._share = share
        self._max_length = max_length
        self._seed = seed

    def of_epoch(self, epoch: int) -> TokenPairs:
        """Return the pairs of an epoch, in their order, in memory."""
        parts = []
        for start in range(0, len(self._pairs), _CHUNK):
            numbers = np.arange(start, min(start + _CHUNK, len(self._pairs)))
            rows = self._pairs.take(numbers)
            src, tgt = (
                self._cut(side, vocab, key=(self._seed, epoch, start, at))
                for at, (side, vocab) in enumerate(zip(rows, self._vocabs, strict=True))
            )
            parts.append(TokenPairs(src, tgt))
        return TokenPairs.joined(parts)

    def _cut(self, rows: Rows, vocab: SubwordVocab, *, key: Sequence[int]) -> list[list[int]]:
        before = [_without_marks(ids) for ids in np.split(rows.ids, np.cumsum(rows.lengths)[:-1])]
        (seed,) = np.random.SeedSequence(key).generate_state(1)
        cut = vocab.sample(
            [vocab.decode(ids) for ids in before], share=self._share, seed=int(seed)
        )
        return [
            new if len(new) <= self._max_length else old
            for old, new in zip(before, cut, strict=True)
        ]


def _without_marks(ids: NDArray[np.int64]) -> list[int]:
    return [int(number) for number in ids if number not in (BOS, EOS)]
