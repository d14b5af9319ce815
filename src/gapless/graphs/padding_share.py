"""What padding would have given: the share of calls that could have been replays.

A graph takes tensors of one shape. Where shapes vary, padding the dimensions that vary to multiples
of a number makes fewer kinds of calls, and each kind is replayed more often.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from gapless.pipeline.tree.tensor_layout import shape_of


if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping

    from gapless.pipeline.tree.flatten import Tree


# The shape of every tensor of a call.
Shapes: TypeAlias = "tuple[tuple[int, ...], ...]"

# Everything of a kind that padding leaves as it is, and its shapes.
Kind: TypeAlias = "tuple[Hashable, Shapes]"

MULTIPLES = (8, 16, 64)

# Calls of further kinds are not counted.
_MAX_KINDS = 1_000


@dataclass
class KindsSeen:
    """How often each kind of call ran as written; a bounded table."""

    counts: Counter[Kind] = field(default_factory=Counter)

    def add(self, tree: Tree) -> None:
        """Count a call."""
        shapes = tuple([tuple(shape_of(leaf)) for leaf in tree.leaves])
        dtypes = tuple([(leaf.dtype, leaf.dim()) for leaf in tree.leaves])
        kind = (hash((tree.structure(), dtypes)), shapes)
        if kind in self.counts or len(self.counts) < _MAX_KINDS:
            self.counts[kind] += 1


def padding_shares(
    counts: Mapping[Kind, int], *, num_replays: int, num_before: int
) -> dict[int, float]:
    """Return, for each of `MULTIPLES`, the share of calls that padding would have made replays.

    Only dimensions that vary are padded. Nothing is returned if none does.
    """
    varying = _varying(counts)
    num_calls = sum(counts.values()) + num_replays
    if not any(varying.values()):
        return {}
    shares = {}
    for multiple in MULTIPLES:
        padded: Counter[Kind] = Counter()
        for (structure, shapes), count in counts.items():
            padded[structure, _padded(shapes, varying[structure], multiple)] += count
        # A kind that was replayed had its runs before: all further ones are replays as well.
        gained = sum(max(0, count - num_before) for count in padded.values())
        shares[multiple] = (num_replays + gained) / num_calls
    return shares


def _varying(kinds: Iterable[Kind]) -> dict[Hashable, set[tuple[int, int]]]:
    """Return, by structure, tensor and dimension of all sizes of which there is more than one."""
    shapes_of: dict[Hashable, list[Shapes]] = defaultdict(list)
    for structure, shapes in kinds:
        shapes_of[structure].append(shapes)
    return {structure: _differing(shapes) for structure, shapes in shapes_of.items()}


def _differing(shapes: list[Shapes]) -> set[tuple[int, int]]:
    first = shapes[0]
    return {
        (tensor, dimension)
        for other in shapes
        for tensor, (one, its) in enumerate(zip(first, other, strict=True))
        for dimension, (size, its_size) in enumerate(zip(one, its, strict=True))
        if size != its_size
    }


def _padded(shapes: Shapes, varying: set[tuple[int, int]], multiple: int) -> Shapes:
    return tuple(
        tuple(
            -(-size // multiple) * multiple if (tensor, dimension) in varying else size
            for dimension, size in enumerate(shape)
        )
        for tensor, shape in enumerate(shapes)
    )
