"""Values that need no device: which are plain, when two are the same, and how they are shown."""

from __future__ import annotations

import collections
import enum
import functools
import sys
from operator import is_
from types import (
    BuiltinFunctionType,
    FunctionType,
    MethodType,
    MethodWrapperType,
    ModuleType,
    NoneType,
    WrapperDescriptorType,
)
from typing import TYPE_CHECKING, Any

import torch

from gapless.graphs.reads.value_places import MISSING, entries_of
from gapless.pipeline.tree.containers import container_of
from gapless.pipeline.tree.flatten import has_attributes


if TYPE_CHECKING:
    from collections.abc import Callable


_BY_EQUALITY = (int, str, bytes, bool, complex, slice, range)
_TORCH_PLAIN = (torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size)
_BY_IDENTITY = (
    type,
    ModuleType,
    BuiltinFunctionType,
    NoneType,
    enum.Enum,
    MethodWrapperType,
    WrapperDescriptorType,
    type(Ellipsis),
    type(NotImplemented),
)
_WITHOUT_ATTRIBUTES = frozenset((*_BY_EQUALITY, *_TORCH_PLAIN))
_DEPTH = 5


def is_plain(value: Any) -> bool:
    """Return whether a value can be compared at once, without looking into it."""
    return isinstance(value, (float, *_BY_EQUALITY, *_TORCH_PLAIN, *_BY_IDENTITY))


def is_value(value: Any) -> bool:
    """Return whether a value stands for itself, so that an equal one is as good."""
    if issubclass(type(value), tuple | frozenset):
        return all(map(is_value, value))
    return is_plain(value)


def is_number_like(value: Any) -> bool:
    """Return whether a value's type is one of Python's own, whose items compare by value."""
    return type(value) in (int, float, bool, str, bytes, NoneType, complex)


def is_scalar_of_numpy(value: Any) -> bool:
    """Return whether a value is a scalar of numpy, other than a record, which can be written to."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return False
    return isinstance(value, numpy.generic) and not isinstance(value, numpy.void)


def same(before: Any, after: Any, depth: int = _DEPTH) -> bool:
    """Return whether two values are the same to whoever reads them.

    Floats are compared by their bits, and a NaN is the same as itself. Tensors on a device are the
    same if they are one object.
    """
    if before is after:
        return True
    if type(before) is not type(after) or depth == 0:
        return False
    if isinstance(before, float):
        return float.hex(before) == float.hex(after) and _same_attributes(before, after, depth)
    if isinstance(before, complex):
        return same(before.real, after.real) and same(before.imag, after.imag)
    if isinstance(before, enum.Enum):
        return False
    if isinstance(before, torch.Tensor):
        return False
    if isinstance(before, _BY_EQUALITY + _TORCH_PLAIN):
        return bool(before == after) and _same_attributes(before, after, depth)
    if isinstance(before, _BY_IDENTITY):
        return False
    return _same_parts(before, after, depth - 1)


def are_same_items(before: Any, after: Any) -> bool:
    """Return whether two sequences have the same items, most of which are the same objects."""
    return len(before) == len(after) and (
        all(map(is_, before, after)) or all(map(same, before, after))
    )


def _same_attributes(before: Any, after: Any, depth: int) -> bool:
    """Return whether two equal texts or numbers have the same attributes, if they have any."""
    if type(before) in _WITHOUT_ATTRIBUTES or not (
        has_attributes(before) or has_attributes(after)
    ):
        return True
    mine, theirs = entries_of(before), entries_of(after)
    return mine is not None and theirs is not None and same(mine, theirs, depth - 1)


def _same_parts(before: Any, after: Any, depth: int) -> bool:
    if isinstance(before, list | tuple | collections.deque):
        return len(before) == len(after) and all(
            same(one, other, depth) for one, other in zip(before, after, strict=True)
        )
    if isinstance(before, dict):
        return list(before) == list(after) and all(
            same(value, after[key], depth) for key, value in before.items()
        )
    if isinstance(before, set | frozenset):
        return (len(before) == len(after) and {id(each) for each in before} == {
            id(each) for each in after
        }) or (all(map(is_plain, before)) and all(map(is_plain, after)) and before == after)  # fmt: skip
    if isinstance(before, MethodType):
        return before.__self__ is after.__self__ and same(before.__func__, after.__func__, depth)
    if is_scalar_of_numpy(before):
        # By their bits, as floats are.
        return bool(before.dtype == after.dtype and before.tobytes() == after.tobytes())
    if isinstance(before, torch.nn.Module | FunctionType | functools.partial):
        return False
    mine, theirs = entries_of(before), entries_of(after)
    return mine is not None and theirs is not None and same(mine, theirs, depth)


def is_tensor_tree(value: Any, on_device: Callable[[torch.Tensor], bool]) -> bool:
    """Return whether a value is a tensor of the device, or a nesting of containers of such."""
    return _num_tensors(value, on_device, _DEPTH) > 0


def _num_tensors(value: Any, on_device: Callable[[torch.Tensor], bool], depth: int) -> float:
    """Return how many tensors a tree has; less than 0 if there is anything else in it."""
    never = float("-inf")
    if isinstance(value, torch.Tensor):
        return 1 if on_device(value) and not isinstance(value, torch.nn.Parameter) else never
    if is_plain(value):
        return 0
    container = container_of(value) if depth else None
    if container is None:
        return never
    return sum(_num_tensors(part, on_device, depth - 1) for part in container.parts(value))


def same_but_tensors(before: Any, after: Any, depth: int = _DEPTH) -> bool:
    """Return whether two trees differ at most in their tensors."""
    if isinstance(before, torch.Tensor) and isinstance(after, torch.Tensor):
        return True
    if type(before) is not type(after) or depth == 0:
        return False
    container = container_of(before)
    if container is None or is_plain(before):
        return same(before, after)
    if container.names(before) != container.names(after):
        return False
    parts = zip(container.parts(before), container.parts(after), strict=True)
    return all(same_but_tensors(one, other, depth - 1) for one, other in parts)


_LONGEST = 60
_MOST_SHOWN = 4


def shown(value: Any) -> str:
    """Return a short text for a value, without calling any of the user's code."""
    if value is MISSING:
        return "nothing"
    if isinstance(value, torch.Tensor):
        kind = type(value).__name__.lower()
        return f"a {kind} of shape {tuple(value.shape)}"
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, FunctionType | type | BuiltinFunctionType | ModuleType):
        return str(value.__name__)
    if isinstance(value, MethodType):
        return str(value.__func__.__qualname__)
    if type(value) in (int, float, bool, str, bytes, complex, NoneType, slice, range) or (
        isinstance(value, _TORCH_PLAIN)
    ):
        text = repr(value)
        return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
    if isinstance(value, list | tuple | dict | set | frozenset | collections.deque):
        return _shown_container(value)
    if is_scalar_of_numpy(value):
        return str(value)
    return f"a {type(value).__name__}"


def _shown_container(value: Any) -> str:
    parts = value.values() if isinstance(value, dict) else value
    if len(value) <= _MOST_SHOWN and all(map(is_number_like, parts)):
        text = repr(value)
        if len(text) <= _LONGEST:
            return text
    return f"{len(value)} item{'' if len(value) == 1 else 's'}"
