"""How many shapes the batches of a loader have."""

from __future__ import annotations

from collections import UserDict
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch

from gapless.doctor import placement


if TYPE_CHECKING:
    from collections.abc import Hashable

# Parts of a batch that are looked at; those of one batch mostly change together.
_MAX_PARTS = 16

# Of containers in containers.
_MAX_DEPTH = 5

# As torch has it, whatever a class of the script says.
_sizes = torch._C.TensorBase.size


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


def shapes_of(value: Any, *, depth: int = 0) -> Hashable:
    """Return the shapes of the tensors of a batch, however they are held; None for anything else.

    No code of the script runs for it: containers of its own are looked at as the ones they derive from.
    """
    if isinstance(value, torch.Tensor):
        return _shape_of(value)
    parts = _parts_of(value) if depth < _MAX_DEPTH else None
    if parts is None:
        return None
    return tuple(shapes_of(part, depth=depth + 1) for part in parts)


def _parts_of(value: Any) -> list[Any] | None:
    if issubclass(type(value), UserDict):
        value = vars(value).get("data")
    if issubclass(type(value), dict):
        return list(islice(dict.values(value), _MAX_PARTS))
    for kind in (list, tuple):
        if issubclass(type(value), kind):
            return list(kind.__getitem__(value, slice(_MAX_PARTS)))
    return None


def _shape_of(tensor: torch.Tensor) -> Hashable:
    with torch._C.DisableTorchFunction():
        if not placement.holds_values(tensor) or tensor.is_nested:
            return None
        return tuple(_sizes(tensor))
