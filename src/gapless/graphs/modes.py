"""The modes in which a step runs: each leads to other work, so each has graphs of its own."""

from __future__ import annotations

from functools import partial
from types import CellType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn


if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator


# How far names are followed: a lambda, the function that it calls, an object there, its model.
_DEPTH = 4

# Longer containers hold data.
_MOST_PARTS = 50


class Modes:
    """What code reads that decides between training and evaluation, now.

    Torch's gradients and autocast are; so are training and evaluation mode, and the probability
    of dropout, of the modules to which the step's code refers by name: in its closure, among its
    globals, or in the object that it is a method of. Others are not found.

    Args:
        step: the step itself.
        device_type: such as "cuda".
    """

    def __init__(self, step: object, *, device_type: str) -> None:
        self._device_type = device_type
        roots = _modules(step, _DEPTH, set())
        found = dict.fromkeys(module for root in roots for module in root.modules())
        self._modules = list(found)
        self._dropouts = [one for one in found if isinstance(getattr(one, "p", None), int | float)]

    def now(self) -> Hashable:
        """Return all of them.

        Sync: Does not block the host.
        """
        return (
            torch.is_grad_enabled(),
            torch.is_autocast_enabled(self._device_type),
            torch.get_autocast_dtype(self._device_type),
            tuple([module.training for module in self._modules]),
            tuple([module.p for module in self._dropouts]),
        )


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
