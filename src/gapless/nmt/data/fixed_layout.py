"""Batches padded to a few fixed shapes.

A captured step needs a graph for each shape of batch, so there must be few shapes; but padding to
few shapes wastes work. `choose_fixed_layout` splits the pairs by source and target length until
the share of padding is small enough, no split helps, or the limit on shapes is reached.

Pairs that do not fill a batch of their shape move on to the next larger one, so only the largest
shapes get rows of padding. Where an update has several batches of one shape, so do pairs that do not
fill an update: fewer positions are padding than with batches of padding in their place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gapless.nmt.data.layout import BatchPlan
from gapless.nmt.data.padded_layout import PaddedShape


if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gapless.nmt.data.token_pairs import Numbers


# Lengths are rounded up to a multiple of this: matrix kernels run faster, and there are fewer
# splits to try.
_GRAIN = 4

# Pairs that are counted at a time.
_MOST_AT_ONCE = 1 << 20


@dataclass(frozen=True, kw_only=True)
class FixedLayout:
    """Pads each pair to the fixed shape that was chosen for it, or to a larger one.

    Attributes:
        shapes: all of them, the one with the shortest sentences first.
        of_pair: number of each pair's shape, [pairs].
    """

    shapes: list[PaddedShape]
    of_pair: Numbers

    def batches(self, order: Numbers, *, multiple_of: int = 1) -> list[BatchPlan]:
        """Cut the pairs of each shape into batches; a rest moves on to the next larger shape.

        Args:
            order: the numbers of pairs.
            multiple_of: each shape but the largest has a multiple of so many batches.
        """
        waiting = [order[self.of_pair[order] == number] for number in range(len(self.shapes))]
        batches = []
        for number, shape in enumerate(self.shapes):
            pairs = waiting[number]
            larger = self._next_larger(number)
            unit = shape.rows if larger is None else shape.rows * multiple_of
            num_full = len(pairs) // unit * unit
            batches += [
                BatchPlan(pairs[start : start + shape.rows], shape)
                for start in range(0, num_full, shape.rows)
            ]
            rest = pairs[num_full:]
            if larger is not None:
                waiting[larger] = np.concatenate((rest, waiting[larger]))
            elif len(rest):
                batches.append(BatchPlan(rest, shape))
        return batches

    def examples(self) -> list[BatchPlan]:
        """Return a batch of one pair for each shape."""
        return [
            BatchPlan(np.flatnonzero(self.of_pair == number)[:1], shape)
            for number, shape in enumerate(self.shapes)
        ]

    def describe(self) -> str:
        """Return how batches are laid out, for people."""
        return f"padded to {len(self.shapes)} shapes"

    def _next_larger(self, number: int) -> int | None:
        """Return the number of the first later shape that takes every sentence of this one."""
        later = range(number + 1, len(self.shapes))
        return next((n for n in later if self.shapes[n].takes(self.shapes[number])), None)


@dataclass(frozen=True)
class _Group:
    """Pairs that share a shape.

    Attributes:
        cells: their lengths, as numbers of those that `_Lengths` counts.
        count: how many they are.
        shape: that takes them.
    """

    cells: Numbers
    count: int
    shape: PaddedShape

    @property
    def num_tokens(self) -> int:
        """Positions of these pairs, padded to their shape."""
        return self.count * (self.shape.src_len + self.shape.tgt_len)

    @property
    def fills_a_batch(self) -> bool:
        """Whether there are enough pairs for one batch of this shape."""
        return self.count >= self.shape.rows


class _Lengths:
    """How many pairs have which lengths, rounded up, and how many rows a batch of them can have."""

    def __init__(
        self,
        src: Numbers,
        tgt: Numbers,
        *,
        max_tokens: int | None,
        max_sentences: int | None,
    ) -> None:
        self.num_pairs = len(src)
        self.num_tokens = int(src.sum()) + int(tgt.sum())
        self._sides = src, tgt
        self._width = int(tgt.max()) // _GRAIN + 2
        found = [np.unique(codes, return_counts=True) for _, codes in self._codes()]
        codes, at = np.unique(np.concatenate([part for part, _ in found]), return_inverse=True)
        self._known = codes
        counts = np.concatenate([counts for _, counts in found])
        self._counts = np.bincount(at, counts).astype(np.int64)
        self._rounded = np.stack(np.divmod(codes, self._width)) * _GRAIN
        self._max_tokens = max_tokens
        self._max_sentences = max_sentences or self.num_pairs

    def _codes(self) -> Iterator[tuple[slice, Numbers]]:
        """Yield what says both rounded lengths of each pair, some at a time."""
        for start in range(0, self.num_pairs, _MOST_AT_ONCE):
            part = slice(start, start + _MOST_AT_ONCE)
            src, tgt = (-(-side[part].astype(np.int64) // _GRAIN) for side in self._sides)
            yield part, src * self._width + tgt

    def group(self, cells: Numbers) -> _Group:
        """Return pairs of these lengths with the smallest shape that takes them."""
        src_len, tgt_len = map(int, self._rounded[:, cells].max(axis=1))
        rows = min(self._max_sentences, self.num_pairs)
        if self._max_tokens is not None:
            rows = min(rows, max(1, self._max_tokens // max(src_len, tgt_len)))
        count = int(self._counts[cells].sum())
        return _Group(cells, count, PaddedShape(rows=rows, src_len=src_len, tgt_len=tgt_len))

    def all(self) -> _Group:
        """Return all pairs."""
        return self.group(np.arange(len(self._known)))

    def best_split(self, group: _Group) -> tuple[_Group, _Group] | None:
        """Return the two halves that save most positions; None if no split saves any."""
        best, most = None, 0
        for lengths in self._rounded:
            own = lengths[group.cells]
            for edge in np.unique(own)[:-1]:
                halves = self.group(group.cells[own <= edge]), self.group(group.cells[own > edge])
                if all(half.fills_a_batch for half in halves) and _saving(group, halves) > most:
                    best, most = halves, _saving(group, halves)
        return best

    def numbers(self, groups: Sequence[_Group]) -> Numbers:
        """Return for each pair the number of the group that it is in."""
        of_cell = np.empty(len(self._known), dtype=np.int16)
        for number, group in enumerate(groups):
            of_cell[group.cells] = number
        of_pair = np.empty(self.num_pairs, dtype=np.int16)
        for part, codes in self._codes():
            of_pair[part] = of_cell[np.searchsorted(self._known, codes)]
        return of_pair


def choose_fixed_layout(
    src_lengths: Numbers,
    tgt_lengths: Numbers,
    *,
    max_tokens: int | None = None,
    max_sentences: int | None = None,
    max_padding: float = 0.1,
    max_shapes: int = 40,
) -> FixedLayout:
    """Choose fixed shapes for pairs of these lengths.

    Repeatedly splits the group of pairs whose split saves most positions: a greedy k-d tree over
    (source length, target length). Every shape has enough pairs to fill a batch, so a small
    training set gets few shapes.

    Args:
        src_lengths: source tokens of each pair, [pairs], at least one pair.
        tgt_lengths: target tokens to predict of each pair, [pairs].
        max_tokens: budget of a batch: rows times the longer side's length.
        max_sentences: most pairs in a batch.
        max_padding: stop when the share of positions without a token is at most this.
        max_shapes: most shapes.

    Raises:
        ValueError: there is no pair, or neither budget is given.
    """
    if not len(src_lengths) or (max_tokens is None and max_sentences is None):
        raise ValueError(
            "there must be at least one pair, and max_tokens or max_sentences must be given, but "
            f"there are {len(src_lengths)} pairs, max_tokens={max_tokens} and "
            f"max_sentences={max_sentences}"
        )
    lengths = _Lengths(
        src_lengths, tgt_lengths, max_tokens=max_tokens, max_sentences=max_sentences
    )
    groups = _split(lengths, max_padding=max_padding, max_shapes=max_shapes)
    groups.sort(key=lambda group: (group.shape.src_len, group.shape.tgt_len))
    return FixedLayout(shapes=[group.shape for group in groups], of_pair=lengths.numbers(groups))


def _split(lengths: _Lengths, *, max_padding: float, max_shapes: int) -> list[_Group]:
    """Return groups of pairs that pad at most this share, or cannot be split further."""
    groups = [lengths.all()]
    splits = [lengths.best_split(groups[0])]
    while (
        len(groups) < max_shapes
        and 1.0 - lengths.num_tokens / _num_positions(groups) > max_padding
    ):
        chosen = int(np.argmax([_saving(*item) for item in zip(groups, splits, strict=True)]))
        split = splits[chosen]
        if split is None:
            break
        groups[chosen : chosen + 1] = split
        splits[chosen : chosen + 1] = map(lengths.best_split, split)
    return groups


def _saving(group: _Group, split: tuple[_Group, _Group] | None) -> int:
    return 0 if split is None else group.num_tokens - _num_positions(split)


def _num_positions(groups: Sequence[_Group]) -> int:
    return sum(group.num_tokens for group in groups)
