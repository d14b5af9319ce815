"""Few padded shapes for many sentence pairs.

A captured step is captured once for each shape of batch, so shapes must be few; padding to few
shapes wastes work. `choose_shapes` splits the pairs by source and target length until padding is
under a set share, or until no split helps, or until there are as many shapes as are allowed.

What does not fill a batch of its shape moves on to the next larger one, so that only the largest
are filled up with rows of padding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np


if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


# Lengths are rounded up to a multiple of this: matrix kernels like it, and splits are few.
_GRAIN = 4


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A padded batch.

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

    def takes(self, other: Shape) -> bool:
        """Whether every sentence of another shape fits into this one."""
        return self.src_len >= other.src_len and self.tgt_len >= other.tgt_len


@dataclass(frozen=True, kw_only=True)
class Shapes:
    """The shapes of a training set, and which pair goes into which.

    Attributes:
        shapes: all of them, the one with the shortest sentences first.
        of_pair: number of each pair's shape, [pairs].
        padding_share: share of the positions of an epoch that hold no token, 0 to 1.
    """

    shapes: list[Shape]
    of_pair: NDArray[np.int64]
    padding_share: float


@dataclass(frozen=True)
class _Group:
    """Pairs that share a shape."""

    pairs: NDArray[np.int64]
    shape: Shape

    @property
    def num_tokens(self) -> int:
        """Positions of these pairs, padded to their shape."""
        return len(self.pairs) * (self.shape.src_len + self.shape.tgt_len)

    @property
    def fills_a_batch(self) -> bool:
        """Whether there are enough pairs for one batch of this shape."""
        return len(self.pairs) >= self.shape.rows


class _Lengths:
    """The lengths of all pairs, and how many rows a batch of them can have."""

    def __init__(
        self,
        src: NDArray[np.int64],
        tgt: NDArray[np.int64],
        *,
        max_tokens: int | None,
        max_sentences: int | None,
    ) -> None:
        self.both = np.stack([src, tgt])
        self.rounded = -(-self.both // _GRAIN) * _GRAIN
        self._max_tokens = max_tokens
        self._max_sentences = max_sentences or src.size

    def group(self, pairs: NDArray[np.int64]) -> _Group:
        """Return pairs with the smallest shape that takes them."""
        src_len, tgt_len = map(int, self.rounded[:, pairs].max(axis=1))
        rows = min(self._max_sentences, self.both.shape[1])
        if self._max_tokens is not None:
            rows = min(rows, max(1, self._max_tokens // max(src_len, tgt_len)))
        return _Group(pairs, Shape(rows=rows, src_len=src_len, tgt_len=tgt_len))

    def best_split(self, group: _Group) -> tuple[_Group, _Group] | None:
        """Return the two halves that save most, None if no split saves anything."""
        best, most = None, 0
        for lengths in self.rounded:
            own = lengths[group.pairs]
            for edge in np.unique(own)[:-1]:
                halves = self.group(group.pairs[own <= edge]), self.group(group.pairs[own > edge])
                if all(half.fills_a_batch for half in halves) and _saving(group, halves) > most:
                    best, most = halves, _saving(group, halves)
        return best


def choose_shapes(
    src_lengths: NDArray[np.int64],
    tgt_lengths: NDArray[np.int64],
    *,
    max_tokens: int | None = None,
    max_sentences: int | None = None,
    max_padding: float = 0.1,
    max_shapes: int = 40,
) -> Shapes:
    """Choose padded shapes for pairs of these lengths.

    Splits the group of pairs whose split saves most positions, as often as needed: a greedy k-d
    tree over (source length, target length). A shape that would not fill one batch is not made,
    so a small training set gets few shapes.

    Args:
        src_lengths: source tokens of each pair, [pairs], at least one pair.
        tgt_lengths: target tokens to predict of each pair, [pairs].
        max_tokens: budget of a batch: rows times the longer side's length.
        max_sentences: most pairs in a batch.
        max_padding: share of positions without a token at which to stop.
        max_shapes: most shapes.

    Raises:
        ValueError: there is no pair, or neither budget is given.
    """
    if not len(src_lengths) or (max_tokens is None and max_sentences is None):
        raise ValueError("choose_shapes needs at least one pair, and max_tokens or max_sentences")
    lengths = _Lengths(
        src_lengths, tgt_lengths, max_tokens=max_tokens, max_sentences=max_sentences
    )
    num_real = int(lengths.both.sum())
    groups = [lengths.group(np.arange(len(src_lengths)))]
    splits = [lengths.best_split(groups[0])]
    while len(groups) < max_shapes and 1.0 - num_real / _num_positions(groups) > max_padding:
        chosen = int(np.argmax([_saving(*item) for item in zip(groups, splits, strict=True)]))
        split = splits[chosen]
        if split is None:
            break
        groups[chosen : chosen + 1] = split
        splits[chosen : chosen + 1] = map(lengths.best_split, split)
    groups.sort(key=lambda group: (group.shape.src_len, group.shape.tgt_len))
    of_pair = np.empty(len(src_lengths), dtype=np.int64)
    for number, group in enumerate(groups):
        of_pair[group.pairs] = number
    shapes = [group.shape for group in groups]
    batches = cut(shapes, [group.pairs for group in groups])
    spent = sum(shapes[number].num_tokens for number, _ in batches)
    return Shapes(shapes=shapes, of_pair=of_pair, padding_share=1.0 - num_real / spent)


def cut(
    shapes: list[Shape], pairs_of: list[NDArray[np.int64]]
) -> list[tuple[int, NDArray[np.int64]]]:
    """Cut pairs into batches: (number of the shape, pairs), at most `rows` pairs each.

    Args:
        shapes: the one with the shortest sentences first.
        pairs_of: the pairs of each shape, in the order in which they are cut.
    """
    waiting = list(pairs_of)
    batches = []
    for number, shape in enumerate(shapes):
        pairs = waiting[number]
        num_full = len(pairs) // shape.rows * shape.rows
        batches += [(number, pairs[at : at + shape.rows]) for at in range(0, num_full, shape.rows)]
        rest = pairs[num_full:]
        larger = next((n for n in range(number + 1, len(shapes)) if shapes[n].takes(shape)), None)
        if larger is not None:
            waiting[larger] = np.concatenate((rest, waiting[larger]))
        elif len(rest):
            batches.append((number, rest))
    return batches


def _saving(group: _Group, split: tuple[_Group, _Group] | None) -> int:
    return 0 if split is None else group.num_tokens - _num_positions(split)


def _num_positions(groups: Sequence[_Group]) -> int:
    return sum(group.num_tokens for group in groups)
