"""Guards that select a graph: modes of torch, and of the modules that a step uses."""

from __future__ import annotations

from functools import partial
from operator import attrgetter
from types import CellType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn

from gapless.graphs.guards import SelectingGuard


if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator


# How far names are followed: a lambda, the function that it calls, an object there, its model.
_DEPTH = 4

# Longer containers hold data.
_MOST_PARTS = 50


class GradMode(SelectingGuard):
    """Autograd, on or off."""

    watches: ClassVar[str] = "whether torch records gradients"

    def reader(self) -> Callable[[], Hashable]:
        """Return a function that reads the mode."""
        return torch.is_grad_enabled


class Autocast(SelectingGuard):
    """Autocast, on or off, and its dtype.

    Args:
        device_type: such as "cuda".
    """

    watches: ClassVar[str] = "autocast and its dtype"

    def __init__(self, device_type: str) -> None:
        self._device_type = device_type

    def reader(self) -> Callable[[], Hashable]:
        """Return a function that reads both."""
        kind = self._device_type
        return lambda: (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))


class TrainingModes(SelectingGuard):
    """Modules in training or in evaluation.

    Args:
        modules: that a step uses.
    """

    watches: ClassVar[str] = "which modules are in training mode"

    def __init__(self, modules: list[nn.Module]) -> None:
        self._modules = modules

    def reader(self) -> Callable[[], Hashable]:
        """Return a function that reads the mode of each module."""
        modules, training = self._modules, attrgetter("training")
        return lambda: tuple(map(training, modules))


class DropoutProbabilities(SelectingGuard):
    """The attribute `p` of modules such as dropout.

    Args:
        modules: that a step uses.
    """

    watches: ClassVar[str] = "the probabilities of dropout"

    def __init__(self, modules: list[nn.Module]) -> None:
        self._modules: list[Any] = [
            module for module in modules if isinstance(getattr(module, "p", None), int | float)
        ]

    def reader(self) -> Callable[[], Hashable]:
        """Return a function that reads the probability of each module."""
        modules, probability = self._modules, attrgetter("p")
        return lambda: tuple(map(probability, modules))


def modes_of(step: object, *, device_type: str) -> list[SelectingGuard]:
    """Return the guards that select among the graphs of a step.

    Args:
        step: the step itself.
        device_type: such as "cuda".
    """
    modules = modules_of(step)
    return [
        GradMode(),
        Autocast(device_type),
        TrainingModes(modules),
        DropoutProbabilities(modules),
    ]


def modules_of(step: object) -> list[nn.Module]:
    """Return the modules to which a step's code refers by name, and the modules in them.

    Names are looked up in its closure, among its globals, and in the object that it is a method
    of. Other modules are not found.
    """
    roots = _modules(step, _DEPTH, set())
    return list(dict.fromkeys(module for root in roots for module in root.modules()))


def _modules(value: object, depth: int, seen: set[int]) -> Iterator[nn.Module]:
    """Return the modules to which a value leads."""
    if isinstance(value, nn.Module):
        yield value
    elif depth >= 0 and id(value) not in seen:
        seen.add(id(value))
        for part in _parts(value):
            yield from _modules(part, depth - 1, seen)


def _parts(value: object) -> list[Any]:
    """Return what code names, or a container or an object holds."""
    if isinstance(value, FunctionType):
        code, names = value.__code__, value.__globals__
        named = [names[name] for name in code.co_names if name in names]
        return named + [_content(cell) for cell in value.__closure__ or ()]
    if isinstance(value, MethodType):
        return [value.__func__, value.__self__]
    if isinstance(value, partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, list | tuple | dict):
        parts = value.values() if isinstance(value, dict) else value
        return list(parts) if len(value) <= _MOST_PARTS else []
    if isinstance(value, type | ModuleType | torch.Tensor):
        return []
    return list(getattr(value, "__dict__", {}).values())[:_MOST_PARTS]


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        # Its name is not bound yet.
        return None
