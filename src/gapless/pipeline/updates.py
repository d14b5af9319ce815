"""What the optimizers of a step do: captured work has to do the same each time.

A graph holds the numbers with which it was captured. A learning rate that is a Python number, or
an update that a counter on the host leads to, would silently stay as it was; so a step is watched
while it still runs by itself, and its optimizers' numbers are compared at every replay.
"""

from __future__ import annotations

import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch.optim.optimizer import register_optimizer_step_pre_hook


if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    import torch


class Updates:
    """Know the optimizers that a step calls, and the numbers they have now."""

    def __init__(self) -> None:
        self._optimizers: dict[int, weakref.ref[torch.optim.Optimizer]] = {}

    @contextmanager
    def watched(self) -> Iterator[list[int]]:
        """Note the optimizers that a body calls; yields their ids, in order of the calls.

        Sync: Does not block the host.
        """
        calls: list[int] = []

        def note(optimizer: torch.optim.Optimizer, *_: Any) -> None:
            self._optimizers[id(optimizer)] = weakref.ref(optimizer)
            calls.append(id(optimizer))

        handle = register_optimizer_step_pre_hook(note)
        try:
            yield calls
        finally:
            handle.remove()

    def settings(self) -> Hashable:
        """Return all plain numbers of these optimizers, such as a rate that is no tensor.

        Sync: Does not block the host.
        """
        return tuple(
            tuple((name, value) for name, value in group.items() if _is_plain(value))
            for group in self._groups()
        )

    def gradients(self) -> list[tuple[torch.Tensor, torch.Tensor | None]]:
        """Return every parameter of these optimizers with the gradient that it has now."""
        return [(weight, weight.grad) for group in self._groups() for weight in group["params"]]

    def _groups(self) -> Iterator[dict[str, Any]]:
        for reference in self._optimizers.values():
            optimizer = reference()
            if optimizer is not None:
                yield from optimizer.param_groups


def _is_plain(value: object) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return isinstance(value, int | float)
