"""What a step leaves on the Python side, put back where a run of it is not to count.

A new graph is captured and proved by running the step several times for one batch. Memory of the
device is put back by `DeviceState`; here are the objects around it: which tensors are gradients,
what the optimizers' state consists of, and what places of the step hold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from gapless.graphs.reads.addresses import address_of


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gapless.graphs.reads.weight_guards import Gradients
    from gapless.graphs.replay.kept_tensors import KeptTensors


class PythonSide:
    """The objects that a step replaces, as they are now.

    Args:
        gradients: of the weights that the step trains.
        kept: tensors that it keeps from call to call.
        on_device: says whether a tensor lies on the device, where others restore it.
    """

    def __init__(
        self,
        gradients: Gradients,
        optimizers: Iterable[torch.optim.Optimizer],
        kept: KeptTensors,
        *,
        on_device: Callable[[torch.Tensor], bool],
    ) -> None:
        self.gradients = gradients
        self.kept = kept
        self.optimizers = list(optimizers)
        self._objects = [_OptimizerObjects(one, on_device) for one in self.optimizers]

    def restore(self) -> None:
        """Put all of them back."""
        for weight, gradient in self.gradients:
            weight.grad = gradient
        for objects in self._objects:
            objects.restore()
        self.kept.reset()


class _OptimizerObjects:
    """State and numbers of one optimizer, without the memory of tensors on the device."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, on_device: Callable[[torch.Tensor], bool]
    ) -> None:
        self._optimizer = optimizer
        self._states = dict(optimizer.state)
        states = [state for state in self._states.values() if isinstance(state, dict)]
        self._tables = [(table, dict(table)) for table in [*states, *optimizer.param_groups]]
        values = [value for _, entries in self._tables for value in entries.values()]
        self._on_host = [
            (value, value.detach().clone())
            for value in values
            if isinstance(value, torch.Tensor) and not on_device(value)
        ]

    def restore(self) -> None:
        _put_back(self._optimizer.state, self._states)
        for table, entries in self._tables:
            _put_back(table, entries)
        for tensor, copy in self._on_host:
            tensor.detach().copy_(copy)


def _put_back(table: dict[Any, Any], entries: dict[Any, Any]) -> None:
    for key in table.keys() - entries.keys():
        del table[key]
    table.update(entries)


def tensors_of(
    optimizer: torch.optim.Optimizer, names: dict[int, str]
) -> list[tuple[torch.Tensor, str]]:
    """Return the tensors of an optimizer's state and settings, with names."""
    found: list[tuple[Any, str]] = []
    for weight, state in optimizer.state.items():
        if isinstance(state, dict):
            name = names.get(address_of(weight))
            found += [(part, f"{key} of {name}" if name else "") for key, part in state.items()]
    found += [(part, key) for group in optimizer.param_groups for key, part in group.items()]
    return [(part, name) for part, name in found if isinstance(part, torch.Tensor)]
