"""The optimizers that a step was seen to call."""

from __future__ import annotations

import weakref
from itertools import chain
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch


class KnownOptimizers:
    """The optimizers that a step was seen to call, as long as they live."""

    def __init__(self) -> None:
        self._references: dict[int, weakref.ref[torch.optim.Optimizer]] = {}

    def add(self, optimizer: torch.optim.Optimizer) -> None:
        """Know this one too."""
        self._references[id(optimizer)] = weakref.ref(optimizer)

    def __iter__(self) -> Iterator[torch.optim.Optimizer]:
        for reference in self._references.values():
            optimizer = reference()
            if optimizer is not None:
                yield optimizer

    def groups(self) -> Iterator[dict[str, Any]]:
        """Return the parameter groups of all optimizers."""
        for optimizer in self:
            yield from optimizer.param_groups

    def weights(self) -> list[torch.Tensor]:
        """Return the weights of all optimizers."""
        return list(chain.from_iterable([group["params"] for group in self.groups()]))
