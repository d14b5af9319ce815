"""Which pairs of the training text are trained on, found in one reading of any amount of it.

A row of figures for each pair goes to a temporary file, so that memory does not grow with the text.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from dataclasses import dataclass
from functools import cached_property, partial
from hashlib import blake2b
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, Any, Protocol

import numpy as np

from gapless.errors import DataError
from gapless.nmt.data.filters import BLANK, KEPT, Filters
from gapless.nmt.data.sentences import Pairs, in_order, plain


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray


_MAX_HELD_OUT = 1000
_HELD_OUT_SHARE = 0.05

# Of more sources than this, some by chance stand for all where pairs are held out.
_MOST_CANDIDATES = 1 << 18

# Short sentences occur in any text; more than this share of a split is no chance.
_SEEN_SHARE = 0.05

# Of each pair: hashes of its plain source and of itself, characters of its longer side and of both, and
# why it is left out.
_ROW = np.dtype(
    [("source", "u8"), ("pair", "u8"), ("longer", "u4"), ("characters", "u4"), ("why", "u1")]
)
_NO_LIMIT = (1 << 32) - 1

# Pairs that a vocabulary is made of, at most.
MOST_SAMPLED = 200_000
# Sentencepiece's own share; it leaves rarer characters to bytes.
_COVERAGE = 0.9995

# Rows that are read back at a time.
_MOST_ROWS = 1 << 20


class AnyText(Protocol):
    """Sentence pairs that can be read more than once."""

    def chunks(self) -> Iterator[Pairs]:
        """Yield the pairs, so many at a time."""
        ...


@dataclass(frozen=True, kw_only=True)
class TrainingText:
    """The pairs that are trained on, which are read anew each time and never kept whole.

    Attributes:
        texts: that they are of.
        kept: whether a pair of them is trained on, [pairs of all texts].
        longest: characters of a sentence that may have few enough tokens.
        characters: of the pairs that may be learned, both sides together.
        num_learnable: how many of the pairs that is.
        known_alphabet: what `alphabet` returns, where it is known.
    """

    texts: tuple[AnyText, ...]
    kept: NDArray[np.bool_]
    longest: int
    characters: int
    num_learnable: int
    known_alphabet: int | None = None

    def __len__(self) -> int:
        return int(np.count_nonzero(self.kept))

    @classmethod
    def of(cls, pairs: Pairs) -> TrainingText:
        """Return text of which all is trained on."""
        characters = sum(map(len, (*pairs.src, *pairs.tgt)))
        return cls(
            texts=(pairs,),
            kept=np.ones(len(pairs), dtype=np.bool_),
            longest=_NO_LIMIT,
            characters=characters,
            num_learnable=len(pairs),
        )

    def of_each_text(self) -> Iterator[Iterator[Pairs]]:
        """Yield for each text its pairs, so many at a time."""
        start = 0
        for text in self.texts:

            def kept(text: AnyText = text) -> Iterator[Pairs]:
                nonlocal start
                for chunk in text.chunks():
                    numbers = np.flatnonzero(self.kept[start : start + len(chunk)])
                    start += len(chunk)
                    yield chunk if len(numbers) == len(chunk) else chunk.take(numbers)

            yield kept()

    def chunks(self) -> Iterator[Pairs]:
        """Yield the pairs, so many at a time."""
        for chunks in self.of_each_text():
            yield from chunks

    def read(self) -> Pairs:
        """Return all pairs."""
        return _joined(self.chunks())

    @cached_property
    def sample(self) -> Pairs:
        """Pairs that a vocabulary is made of: evenly spaced ones of those that may be learned, or all.

        Text that is never trained on decides nothing about the vocabulary.
        """
        return _joined(self._learnable(every=-(-self.num_learnable // MOST_SAMPLED)))

    @cached_property
    def alphabet(self) -> int:
        """Different characters that a vocabulary of both sides must hold: rarer ones are left to bytes."""
        if self.known_alphabet is not None:
            return self.known_alphabet
        counts = np.zeros(sys.maxunicode + 1, dtype=np.int64)
        for chunk in self.sample.chunks():
            text = "".join((*chunk.src, *chunk.tgt)).encode("utf-32-le")
            counts += np.bincount(np.frombuffer(text, dtype="<u4"), minlength=len(counts))
        counts = np.sort(counts[counts > 0])[::-1]
        shares = np.cumsum(counts) / max(1, counts.sum())
        return min(int(np.searchsorted(shares, _COVERAGE)) + 1, len(counts))

    def _learnable(self, every: int) -> Iterator[Pairs]:
        seen = 0
        for chunk in self.chunks():
            sides = enumerate(zip(chunk.src, chunk.tgt, strict=True))
            numbers = [n for n, pair in sides if max(map(len, pair)) <= self.longest]
            yield chunk.take(numbers[-seen % every :: every])
            seen += len(numbers)


@dataclass(frozen=True, kw_only=True)
class Selection:
    """What was found in the training text.

    Attributes:
        train: pairs to learn from.
        held_out: pairs of each split that was missing.
        dropped_empty: pairs left out because nobody sees anything on a side.
        num_repeated: training pairs that are the same as an earlier one.
        filtered: what each filter left out, for people.
        seen: how many sources of each split that is scored are training sources too.
    """

    train: TrainingText
    held_out: dict[str, Pairs]
    dropped_empty: int
    num_repeated: int
    filtered: dict[str, str]
    seen: dict[str, int]


def select(
    texts: Sequence[AnyText],
    *,
    scored: Mapping[str, Pairs],
    missing: Sequence[str],
    name: str,
    seed: int,
    longest: int | None = None,
    filters: Filters,
    workers: int = 1,
) -> Selection:
    """Look at every pair of the training text, and say what is trained on.

    Args:
        texts: of training.
        scored: pairs of the splits that are there.
        missing: splits to hold out.
        name: of the corpus, for messages.
        seed: of the choice of pairs to hold out.
        longest: characters of a sentence that may have few enough tokens; None: any.
        filters: of the text.
        workers: processes that look.

    Raises:
        DataError: anything about the text that cannot be used.
    """
    with TemporaryFile() as file:
        rows = _Rows(file)
        candidates = _Candidates() if missing else None
        look = partial(_look, filters=filters)
        for text in texts:
            for chunk, found in in_order(look, text.chunks(), workers=workers):
                rows.add(found)
                if candidates is not None:
                    candidates.add(chunk, found)
        left_out = rows.mask(lambda row: row["why"] != KEPT)
        counts = rows.num_left_out()
        if left_out.all():
            what = (
                "with text on both sides"
                if counts[BLANK] == len(left_out)
                else "that no filter drops"
            )
            raise DataError(f"{name} holds no training pair {what}")
        owners = {} if candidates is None else candidates.hold_out(missing, name=name, seed=seed)
        held_out = {
            split: rows.mask(_is_of(hashes)) & ~left_out for split, hashes in owners.items()
        }
        kept = ~np.logical_or.reduce([left_out, *held_out.values()])
        repeated = rows.repeated(kept)
        num_repeated = int(np.count_nonzero(repeated))
        if filters.duplicates:
            kept &= ~repeated
        return Selection(
            train=_training_text(texts, rows, kept, longest=longest),
            held_out=_texts_at(texts, held_out) if held_out else {},
            dropped_empty=counts[BLANK],
            num_repeated=0 if filters.duplicates else num_repeated,
            filtered=filters.account(counts, num_repeated=num_repeated),
            seen={split: rows.num_seen(pairs, kept) for split, pairs in scored.items()},
        )


def _training_text(
    texts: Sequence[AnyText], rows: _Rows, kept: NDArray[np.bool_], *, longest: int | None
) -> TrainingText:
    most = _NO_LIMIT if longest is None else longest
    learnable = rows.mask(lambda row: row["longer"] <= most) & kept
    if not learnable.any():
        most, learnable = _NO_LIMIT, kept
    return TrainingText(
        texts=tuple(texts),
        kept=kept,
        longest=most,
        characters=rows.num_characters(learnable),
        num_learnable=int(np.count_nonzero(learnable)),
    )


def notes_of_seen(pairs: Pairs, *, split: str, seen: int) -> tuple[str, ...]:
    """Return what makes scores on a split say less than they seem to, a line each.

    Args:
        pairs: of the split.
        split: its name.
        seen: how many of its sources are training sources.
    """
    if seen <= _SEEN_SHARE * len(pairs):
        return ()
    return (
        f"{seen:,} of {len(pairs):,} {split} sources are training sources too, so scores say less "
        "of new text; leave them out of the training text",
    )


def _joined(parts: Iterator[Pairs]) -> Pairs:
    src: list[str] = []
    tgt: list[str] = []
    for part in parts:
        src += part.src
        tgt += part.tgt
    return Pairs(src=src, tgt=tgt)


def _texts_at(
    texts: Sequence[AnyText], masks: Mapping[str, NDArray[np.bool_]]
) -> dict[str, Pairs]:
    """Return the pairs at which each mask is true."""
    found = {split: Pairs(src=[], tgt=[]) for split in masks}
    start = 0
    for text in texts:
        for chunk in text.chunks():
            for split, mask in masks.items():
                part = chunk.take(np.flatnonzero(mask[start : start + len(chunk)]))
                found[split].src.extend(part.src)
                found[split].tgt.extend(part.tgt)
            start += len(chunk)
    return found


# --- rows of figures ---


def _look(pairs: Pairs, filters: Filters) -> NDArray[np.void]:
    """Return the figures of each pair; runs in worker processes."""
    rows = np.empty(len(pairs), dtype=_ROW)
    for number, (src, tgt) in enumerate(zip(pairs.src, pairs.tgt, strict=True)):
        lengths = len(src), len(tgt)
        rows[number] = (
            _hash(plain(src)),
            _hash(f"{lengths[0]} {src}{tgt}"),
            max(lengths),
            sum(lengths),
            filters.why_not(src, tgt),
        )
    return rows


def _hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


def _is_of(hashes: NDArray[np.uint64]) -> Callable[[NDArray[np.void]], NDArray[np.bool_]]:
    return lambda rows: np.isin(rows["source"], hashes)


class _Rows:
    """The figures of all pairs, in a file.

    Args:
        file: to write and read.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._count = 0

    def add(self, rows: NDArray[np.void]) -> None:
        """Append those of some pairs."""
        self._file.write(rows.tobytes())
        self._count += len(rows)

    def parts(self) -> Iterator[tuple[slice, NDArray[np.void]]]:
        """Yield the figures, some at a time, and of which pairs they are."""
        self._file.seek(0)
        for start in range(0, self._count, _MOST_ROWS):
            size = min(_MOST_ROWS, self._count - start)
            data = self._file.read(size * _ROW.itemsize)
            yield slice(start, start + size), np.frombuffer(data, dtype=_ROW)

    def mask(self, holds: Callable[[NDArray[np.void]], NDArray[np.bool_]]) -> NDArray[np.bool_]:
        """Return for each pair whether something holds of its figures."""
        found = np.empty(self._count, dtype=np.bool_)
        for at, rows in self.parts():
            found[at] = holds(rows)
        return found

    def num_left_out(self) -> dict[int, int]:
        """Return how many pairs are left out for each reason."""
        counts: Counter[int] = Counter()
        for _, rows in self.parts():
            counts.update(dict(enumerate(map(int, np.bincount(rows["why"])))))
        return counts

    def num_characters(self, kept: NDArray[np.bool_]) -> int:
        """Return the characters of these pairs."""
        return sum(int(rows["characters"][kept[at]].sum()) for at, rows in self.parts())

    def repeated(self, kept: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return which of the pairs that are kept are the same as an earlier one."""
        found = np.zeros(self._count, dtype=np.bool_)
        # Equal pairs have equal hashes: one part of all hashes at a time is looked through.
        num_parts = -(-self._count // _MOST_ROWS)
        for part in range(num_parts):
            hashes, numbers = [], []
            for at, rows in self.parts():
                own = np.flatnonzero(kept[at] & (rows["pair"] % num_parts == part))
                hashes.append(rows["pair"][own])
                numbers.append(own + at.start)
            of_part = np.concatenate(numbers)
            _, firsts = np.unique(np.concatenate(hashes), return_index=True)
            found[of_part] = True
            found[of_part[firsts]] = False
        return found

    def num_seen(self, pairs: Pairs, kept: NDArray[np.bool_]) -> int:
        """Return how many sources of other pairs are sources of these."""
        hashes = np.array([_hash(plain(source)) for source in pairs.src], dtype=np.uint64)
        seen = np.zeros(len(hashes), dtype=np.bool_)
        for at, rows in self.parts():
            seen |= np.isin(hashes, rows["source"][kept[at]])
        return int(np.count_nonzero(seen))


# --- pairs that are held out ---


class _Candidates:
    """The sources that may be held out, with their first spelling and how many pairs have them.

    Of a large text those with the smallest hashes, which are chosen by chance as others are.
    """

    def __init__(self) -> None:
        self._found: dict[int, list[Any]] = {}
        self._below = 1 << 64

    def add(self, chunk: Pairs, rows: NDArray[np.void]) -> None:
        """Take the sources of some pairs."""
        is_one = (rows["why"] == KEPT) & (rows["source"] <= np.uint64(self._below - 1))
        found = self._found
        numbers, keys = np.flatnonzero(is_one), rows["source"][is_one]
        for number, key in zip(map(int, numbers), map(int, keys), strict=True):
            if key in found:
                found[key][1] += 1
            else:
                found[key] = [chunk.src[number].strip(), 1]
        if len(found) > 2 * _MOST_CANDIDATES:
            self._leave_smallest()

    def _leave_smallest(self) -> None:
        keys = sorted(self._found)[:_MOST_CANDIDATES]
        self._below = keys[-1] + 1
        self._found = {key: self._found[key] for key in keys}

    def hold_out(
        self, splits: Sequence[str], *, name: str, seed: int
    ) -> dict[str, NDArray[np.uint64]]:
        """Return the hashes of the sources that go to each split.

        All pairs that `plain` makes one source go to one of them, or stay: split apart, one would be in
        train and one in test.

        Raises:
            DataError: there are too few.
        """
        if len(self._found) > _MOST_CANDIDATES:
            self._leave_smallest()
        keys = {spelling: key for key, (spelling, _) in self._found.items()}
        counts = Counter(dict(self._found.values()))
        if len(counts) < 3:
            raise DataError(
                f"{name} has no {' or '.join(splits)} split and only {len(counts)} different source "
                "sentences to hold out from, expected 3 or more; "
                f"{' and '.join(f'add a {split} file' for split in splits)}, or more text"
            )
        chosen: dict[str, list[str]] = {}
        for split in splits:
            free = sorted(counts.keys() - {source for one in chosen.values() for source in one})
            random.Random(f"{seed} {split}").shuffle(free)
            chosen[split] = _choose(free, counts)
        return {
            split: np.array([keys[source] for source in sources], dtype=np.uint64)
            for split, sources in chosen.items()
        }


def _choose(sources: list[str], counts: Counter[str]) -> list[str]:
    """Return the sources to hold out: the first that fit, or the rarest one if none fits."""
    most = max(1, int(len(sources) * _HELD_OUT_SHARE))
    pairs = sum(counts[source] for source in sources)
    room = max(1, min(_MAX_HELD_OUT, int(pairs * _HELD_OUT_SHARE)))
    chosen: list[str] = []
    for source in sources:
        # Where most pairs share one source, a limit on pairs alone would hold out nearly all other sources.
        if len(chosen) < most and counts[source] <= room:
            chosen.append(source)
            room -= counts[source]
    return chosen or [min(sources, key=counts.__getitem__)]
