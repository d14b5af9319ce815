"""The optimizers that a step calls, and the guards on what a graph keeps of them.

A graph holds the numbers and the memory with which it was captured. A learning rate that is a
Python number, or state that a checkpoint replaced, would silently stay as it was.
"""

from __future__ import annotations

import weakref
from itertools import chain
from numbers import Number
from operator import is_
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from gapless.graphs.guards import Guard


if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence


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

    def state_ids(self) -> Hashable:
        """Return the ids of all values of the optimizers' state.

        A Python counter gets a new id every step: state that a graph cannot update.
        """
        return tuple(
            id(part)
            for optimizer in self
            for state in optimizer.state.values()
            if isinstance(state, dict)
            for part in state.values()
        )


class OptimizerNumbers(Guard):
    """Numbers of the optimizers that lie on the host.

    Args:
        optimizers: that the step calls.
        needs_copy: says whether a tensor is not on the device, where a graph reads it anew.
    """

    watches: ClassVar[str] = "the optimizer's numbers on the host, such as its learning rate"
    advice: ClassVar[str] = "make the learning rate a tensor on the device, and fill it in place"

    def __init__(
        self, optimizers: KnownOptimizers, *, needs_copy: Callable[[torch.Tensor], bool]
    ) -> None:
        self._optimizers = optimizers
        self._needs_copy = needs_copy

    def check(self) -> Callable[[], bool]:
        """Return a function that says whether all numbers are as they are now."""
        found, objects = self._read(), self._objects()
        may_differ = [value for value in objects if not _is_fixed(value)]
        numbers = list(map(self._number, may_differ))

        def holds() -> bool:
            # The same objects as before are a quick yes; objects that are equal are one as well.
            if _same(self._objects(), objects):
                return list(map(self._number, may_differ)) == numbers
            return self._read() == found

        return holds

    def _objects(self) -> list[object]:
        """Return names and values of all groups."""
        found: list[object] = []
        for group in self._optimizers.groups():
            found += group
            found += [value for name, value in group.items() if name != "params"]
        return found

    def _read(self) -> list[list[tuple[str, Hashable]]]:
        number = self._number
        return [
            [(name, number(value)) for name, value in group.items() if name != "params"]
            for group in self._optimizers.groups()
        ]

    def _number(self, value: object) -> Hashable:
        """Return a value that a graph keeps, None for what it does not keep."""
        if isinstance(value, tuple | list):
            return tuple([self._number(part) for part in value])
        if not isinstance(value, torch.Tensor):
            return value if isinstance(value, Number) else None
        if not self._needs_copy(value):
            return value.data_ptr()
        # Reading it is no work of a device.
        return float(value) if value.numel() == 1 else (value.data_ptr(), value._version)


class OptimizerMemory(Guard):
    """Which weights the optimizers have, and where their state lies.

    Args:
        optimizers: that the step calls.
    """

    watches: ClassVar[str] = "the optimizer's weights and the memory of its state"
    advice: ClassVar[str] = "copy new values into the tensors that are there"

    def __init__(self, optimizers: KnownOptimizers) -> None:
        self._optimizers = optimizers

    def check(self) -> Callable[[], bool]:
        """Return a function that says whether all lies where it lies now."""
        weights, addresses = self._optimizers.weights(), self._addresses()

        def holds() -> bool:
            now = self._optimizers.weights()
            return _same(now, weights) and self._addresses() == addresses

        return holds

    def _addresses(self) -> list[int]:
        """Return where all tensors of the optimizers' state lie."""
        found: list[int] = []
        for optimizer in self._optimizers:
            parts = _parts(optimizer)
            try:
                found += list(map(torch.Tensor.data_ptr, parts))
            except TypeError:
                found += [
                    part.data_ptr() if isinstance(part, torch.Tensor) else part is None
                    for part in parts
                ]
        return found


def _same(some: Sequence[object], others: Sequence[object]) -> bool:
    """Return whether two lists hold the same objects; tensors are not compared."""
    return len(some) == len(others) and all(map(is_, some, others))


def _parts(optimizer: torch.optim.Optimizer) -> list[Any]:
    """Return all values of an optimizer's state."""
    states = optimizer.state.values()
    try:
        return list(chain.from_iterable(map(dict.values, states)))
    except TypeError:
        return [
            part
            for state in states
            for part in (state.values() if isinstance(state, dict) else [state])
        ]


def _is_fixed(value: object) -> bool:
    """Return whether an object's numbers are the same for ever."""
    if isinstance(value, tuple):
        return all(map(_is_fixed, value))
    return not isinstance(value, torch.Tensor | list)
