"""What a step leaves on the Python side, put back where a run of it is not to count.

A new graph is captured and proved by running the step several times for one batch. Memory of the
device is put back by `DeviceState`; here are the objects around it: which tensors are gradients,
what the optimizers' state consists of, and what places of the step hold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gapless.graphs.reads.weight_guards import Gradients
    from gapless.graphs.replay.kept_tensors import KeptTensors


class PythonSide:
    """The objects that a step replaces, as they are now.

    Args:
        gradients: of the weights that the step trains.
        optimizers: that it calls.
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
        self._gradients = gradients
        self._kept = kept
        self._optimizers = [_OptimizerObjects(optimizer, on_device) for optimizer in optimizers]

    def restore(self) -> None:
        """Put all of them back.

        Sync: Does not block the host.
        """
        for weight, gradient in self._gradients:
            weight.grad = gradient
        for optimizer in self._optimizers:
            optimizer.restore()
        self._kept.reset()


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
