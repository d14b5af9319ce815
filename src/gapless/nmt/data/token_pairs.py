"""Sentence pairs as flat arrays of token ids, from which a batch is gathered in a few operations.

A batch may hold hundreds of sentences. Handling them one by one would take longer than a captured
step on the batch.
"""

from __future__ import annotations

import os
import zlib
from dataclasses import dataclass
from functools import partial
from itertools import chain
from mmap import ACCESS_READ, MADV_DONTNEED, mmap
from struct import iter_unpack
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import finalize

import numpy as np

from gapless.nmt.data.vocab import BOS, EOS


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from gapless.nmt.data.sentences import Pairs
    from gapless.nmt.data.vocab import Vocabs


# Of pairs, or their lengths: as wide as they need to be.
Numbers: TypeAlias = "NDArray[np.integer[Any]]"

SIDES = ("src", "tgt")

# Numbers that are read or counted at a time.
_MOST_AT_ONCE = 1 << 20

# Bytes of one side's tokens up to which they are kept in memory. A read from a file takes some microseconds for each
# sentence, which a step of a small model has not.
_MOST_IN_MEMORY = 1 << 26


@dataclass(frozen=True)
class Rows:
    """Rows of tokens, one after the other.

    Attributes:
        ids: of all tokens, [sum of the lengths].
        lengths: tokens of each row, [rows], int64.
    """

    ids: Numbers
    lengths: NDArray[np.int64]

    def positions(self) -> NDArray[np.int64]:
        """Return the position of each token within its row, [tokens]."""
        before = np.cumsum(self.lengths) - self.lengths
        return np.arange(len(self.ids)) - np.repeat(before, self.lengths)

    def without_first(self) -> Rows:
        """Return the rows without the first token of each; no row may be empty."""
        return self._without(np.cumsum(self.lengths) - self.lengths)

    def without_last(self) -> Rows:
        """Return the rows without the last token of each; no row may be empty."""
        return self._without(np.cumsum(self.lengths) - 1)

    def _without(self, one_of_each: Numbers) -> Rows:
        is_kept = np.ones(len(self.ids), dtype=np.bool_)
        is_kept[one_of_each] = False
        return Rows(self.ids[is_kept], self.lengths - 1)


class _NumberFile:
    """A file of numbers. All are read through a map, a few from the file: a page that is mapped would stay in memory.

    Args:
        path: of the file.
        dtype: of the numbers.
    """

    def __init__(self, path: Path, dtype: str) -> None:
        self.path = path
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        finalize(self, os.close, self._file)
        # What is empty cannot be mapped.
        is_empty = not os.fstat(self._file).st_size
        self._map = None if is_empty else mmap(self._file, 0, access=ACCESS_READ)
        self.numbers: Numbers = np.frombuffer(self._map or b"", dtype=dtype)

    def read(self, ranges: Iterable[tuple[int, int]]) -> Numbers:
        """Return the numbers from one up to another of each range, one after the other."""
        size = self.numbers.itemsize
        found = [os.pread(self._file, (end - at) * size, at * size) for at, end in ranges]
        return np.frombuffer(b"".join(found), dtype=self.numbers.dtype)

    def forget(self) -> None:
        """Let what was read through the map leave memory."""
        if self._map is not None:
            self._map.madvise(MADV_DONTNEED)


class Sentences:
    """All sentences of one side, one after the other; gathers any of them as rows.

    Args:
        ids: of all tokens, marks included; mapped from a file where they are many.
        starts: where each sentence begins, and the number of tokens, [sentences + 1].
        files: that both are mapped from; none: they are in memory.
    """

    def __init__(
        self,
        ids: NDArray[np.integer[Any]],
        starts: NDArray[np.integer[Any]],
        *,
        files: tuple[_NumberFile, ...] = (),
    ) -> None:
        self.ids, self.starts, self._files = ids, starts, files

    def __len__(self) -> int:
        return len(self.starts) - 1

    @classmethod
    def of(cls, sentences: Iterable[Sequence[int]]) -> Sentences:
        """Return these sentences, in memory."""
        sentences = list(sentences)
        lengths = np.fromiter(map(len, sentences), dtype=np.int64, count=len(sentences))
        starts = np.concatenate(([0], np.cumsum(lengths)))
        every_id = chain.from_iterable(sentences)
        # 32 bits: worker processes share these arrays, and each batch is read from memory.
        return cls(np.fromiter(every_id, dtype=np.int32, count=int(starts[-1])), starts)

    @classmethod
    def joined(cls, parts: Sequence[Sentences]) -> Sentences:
        """Return the sentences of all parts, in memory."""
        lengths = [np.diff(part.starts) for part in parts]
        ids = np.concatenate([np.empty(0, dtype=np.int32), *(part.ids for part in parts)])
        return cls(ids, np.cumsum(np.concatenate([np.zeros(1, dtype=np.int64), *lengths])))

    @classmethod
    def mapped(cls, ids: Path, starts: Path, dtype: str) -> Sentences:
        """Return the sentences in two files; many stay there.

        Args:
            ids: file of all tokens.
            starts: file of where sentences begin, 64 bits each.
            dtype: of the tokens, such as `uint16`.
        """
        if ids.stat().st_size <= _MOST_IN_MEMORY:
            return cls(np.fromfile(ids, dtype), np.fromfile(starts, "int64"))
        files = _NumberFile(ids, dtype), _NumberFile(starts, "int64")
        return cls(files[0].numbers, files[1].numbers, files=files)

    def __reduce__(self) -> tuple[Any, ...]:
        """Let processes that are sent many sentences map them too."""
        if self._files:
            return Sentences.mapped, (*(file.path for file in self._files), self.ids.dtype.name)
        return Sentences, (self.ids, self.starts)

    def take(self, numbers: Numbers) -> Rows:
        """Return these sentences."""
        if self._files:
            ids, starts = self._files
            ranges = starts.read((n, n + 2) for n in map(int, numbers)).reshape(-1, 2)
            found = ids.read(iter_unpack("qq", ranges.data))
            return Rows(found, np.diff(ranges).ravel())
        begins = self.starts[numbers]
        lengths = self.starts[numbers + 1] - begins
        before = np.cumsum(lengths) - lengths
        at = np.repeat(begins - before, lengths) + np.arange(lengths.sum())
        return Rows(self.ids[at], lengths)

    def lengths(self, *, less: int = 0) -> Numbers:
        """Return the tokens of each sentence, less so many."""
        found = np.empty(len(self), dtype=np.int16)
        for at in self._parts(len(self)):
            lengths = np.diff(self.starts[at.start : at.stop + 1]) - less
            if lengths.max() > np.iinfo(found.dtype).max:
                found = found.astype(np.int32)
            found[at] = lengths
        return found

    def counts(self) -> NDArray[np.int64]:
        """Return how often each token occurs."""
        counts = np.zeros(1, dtype=np.int64)
        for at in self._parts(len(self.ids)):
            more = np.bincount(self.ids[at], minlength=len(counts))
            more[: len(counts)] += counts
            counts = more
        return counts

    def checksum(self, begin: int) -> int:
        """Return a checksum of tokens and lengths that goes on from another."""
        for at in self._parts(len(self.ids)):
            begin = zlib.crc32(self.ids[at].astype(np.int32).data, begin)
        for at in self._parts(len(self.starts)):
            begin = zlib.crc32(self.starts[at].data, begin)
        return begin

    def _parts(self, count: int) -> Iterator[slice]:
        """Yield slices of so many things; what was read of a file does not stay in memory."""
        for start in range(0, count, _MOST_AT_ONCE):
            yield slice(start, min(start + _MOST_AT_ONCE, count))
            for file in self._files:
                file.forget()


class TokenPairs:
    """Sentence pairs as flat arrays, cheap to share with worker processes.

    Args:
        src: token ids of each source sentence, without marks; or sources with their end marks.
        tgt: token ids of each target sentence, without marks; or targets with both marks.
        checksum: of the pairs, where it is known.
    """

    def __init__(
        self,
        src: Iterable[Sequence[int]] | Sentences,
        tgt: Iterable[Sequence[int]] | Sentences,
        *,
        checksum: int | None = None,
    ) -> None:
        self.src = src if isinstance(src, Sentences) else Sentences.of([*ids, EOS] for ids in src)
        self.tgt = (
            tgt if isinstance(tgt, Sentences) else Sentences.of([BOS, *ids, EOS] for ids in tgt)
        )
        self.src_lengths = self.src.lengths()
        self.tgt_lengths = self.tgt.lengths(less=1)
        self._checksum = checksum

    def __reduce__(self) -> tuple[Any, ...]:
        """Let lengths be counted anew where pairs are sent."""
        return partial(TokenPairs, checksum=self._checksum), (self.src, self.tgt)

    @classmethod
    def joined(cls, parts: Sequence[TokenPairs]) -> TokenPairs:
        """Return the pairs of all parts, in memory."""
        return cls(*(Sentences.joined([getattr(part, side) for part in parts]) for side in SIDES))

    def __len__(self) -> int:
        return len(self.src_lengths)

    def target_entropy(self) -> float:
        """Return the entropy of target tokens, in nats: their mean loss by their frequencies alone."""
        counts = self.tgt.counts().astype(np.float64)
        # The begin mark is given, never predicted.
        counts[BOS] = 0.0
        shares = counts[counts > 0] / counts.sum()
        return float(-(shares * np.log(shares)).sum())

    def checksum(self) -> int:
        """Return a number that tells these pairs, in this order, from others."""
        if self._checksum is None:
            self._checksum = self.tgt.checksum(self.src.checksum(0))
        return self._checksum

    def take(self, numbers: Numbers) -> tuple[Rows, Rows]:
        """Return sources with their ends, and targets with begin and end, of these pairs."""
        return self.src.take(numbers), self.tgt.take(numbers)


def encode(pairs: Pairs, vocabs: Vocabs, *, max_length: int) -> TokenPairs:
    """Return the pairs that are short enough, as token ids.

    Args:
        pairs: to encode.
        vocabs: of both sides.
        max_length: most tokens of a sentence, marks aside.
    """
    src, tgt = vocabs.src.encode(pairs.src), vocabs.tgt.encode(pairs.tgt)
    short = [n for n in range(len(src)) if max(len(src[n]), len(tgt[n])) <= max_length]
    return TokenPairs([src[n] for n in short], [tgt[n] for n in short])
