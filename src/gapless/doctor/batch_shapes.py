"""How many shapes the batches of a loader have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch


if TYPE_CHECKING:
    from collections.abc import Hashable

# Parts of a batch that are looked at; those of one batch mostly change together.
_MAX_PARTS = 16


class BatchShapes:
    """Counts batches, and the shapes that they come in.

    Attributes:
        num_batches: that were seen.
        num_shapes: different ones among them.
    """

    def __init__(self) -> None:
        self.num_batches = 0
        self._seen: set[Hashable] = set()

    @property
    def num_shapes(self) -> int:
        """How many different shapes were seen."""
        return len(self._seen)

    def add(self, batch: Any) -> None:
        """Note a batch. Values are not read."""
        self.num_batches += 1
        self._seen.add(shapes_of(batch))


def shapes_of(value: Any) -> Hashable:
    """Return the shapes of the tensors of a batch, however they are held; None for anything else."""
    if isinstance(value, torch.Tensor):
        return tuple(value.shape)
    if isinstance(value, Mapping):
        return tuple(shapes_of(part) for part in list(value.values())[:_MAX_PARTS])
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return tuple(shapes_of(part) for part in value[:_MAX_PARTS])
    return None
