"""The containers that a batch may be made of: how each is taken apart and put together again.

A batch is any nesting of tuples, named tuples, lists, mappings and dataclasses. Everything else in
it is a leaf: a tensor, a plain value, an object with a `to` of its own, or anything that nobody
here looks into.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from gapless.errors import BatchError


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


# Values that are the same on every device.
PLAIN = (str, bytes, int, float, complex, type(None), enum.Enum, torch.dtype, torch.device)

# An object in a batch may refer to anything; nobody looks at more of it than this.
_MOST_PARTS = 10_000


@dataclasses.dataclass(frozen=True, slots=True)
class Container:
    """How one type of container is taken apart and put together.

    Attributes:
        names: returns the names of a container's parts, in order: indices, keys or fields.
        parts: returns its parts, in the same order.
        with_parts: returns a container of the same type with other parts, and all else as it was.
    """

    names: Callable[[Any], list[Any]]
    parts: Callable[[Any], list[Any]]
    with_parts: Callable[[Any, Sequence[Any]], Any]


def container_of(kind: type) -> Container | None:
    """Return how containers of this type are taken apart; None if it is no container."""
    if kind not in _known:
        _known[kind] = _new_container(kind)
    return _known[kind]


_known: dict[type, Container | None] = {}


def _new_container(kind: type) -> Container | None:
    if issubclass(kind, Mapping):
        return _DICT if kind is dict else _MAPPING
    if dataclasses.is_dataclass(kind):
        fields = [field.name for field in dataclasses.fields(kind)]
        return Container(
            lambda value: fields,
            lambda value: [getattr(value, name) for name in fields],
            lambda value, parts: _with_fields(value, dict(zip(fields, parts, strict=True))),
        )
    if issubclass(kind, tuple):
        make = getattr(kind, "_make", kind)
        return Container(_indices, list, lambda value, parts: _made(make, kind, parts))
    if issubclass(kind, list):
        return Container(_indices, list, _list_with_parts)
    return None


def has_own_to(kind: type) -> bool:
    """Return whether values of this type move themselves, as `value.to(device)`.

    A tensor does as well, but is not meant here.
    """
    return callable(getattr(kind, "to", None)) and not issubclass(kind, torch.Tensor)


def _indices(value: Any) -> list[int]:
    return list(range(len(value)))


def _made(make: Callable[[Sequence[Any]], Any], kind: type, parts: Sequence[Any]) -> Any:
    try:
        return make(parts)
    except TypeError as error:
        raise BatchError(
            f"cannot rebuild a {kind.__qualname__} on the device; use a plain tuple or list"
        ) from error


def _list_with_parts(value: Any, parts: Sequence[Any]) -> Any:
    if type(value) is list:
        return list(parts)
    twin = copy.copy(value)
    twin[:] = parts
    return twin


def _with_fields(value: Any, parts: dict[str, Any]) -> Any:
    twin = copy.copy(value)
    for name, part in parts.items():
        # Past `__setattr__`, because the dataclass may be frozen.
        object.__setattr__(twin, name, part)
    return twin


def _mapping_with_parts(value: Any, parts: Sequence[Any]) -> Any:
    try:
        twin = copy.copy(value)
        _own_attributes(value, twin)
        for name, part in zip(value, parts, strict=True):
            twin[name] = part
    except TypeError as error:
        raise BatchError(
            f"cannot rebuild a {type(value).__qualname__} on the device; use a dict"
        ) from error
    return twin


def _own_attributes(value: Any, twin: Any) -> None:
    """Let a copied mapping share no dict or list with the one that it was copied from."""
    attributes = getattr(value, "__dict__", None)
    if attributes is value:  # items that are attributes as well: `self.__dict__ = self`
        twin.__dict__ = twin
    elif attributes:
        for name, attribute in attributes.items():
            if isinstance(attribute, dict | list):
                twin.__dict__[name] = copy.copy(attribute)


_DICT = Container(
    list,
    lambda value: list(value.values()),
    lambda value, parts: dict(zip(value, parts, strict=True)),
)
_MAPPING = Container(
    list,
    lambda value: [value[name] for name in value],
    _mapping_with_parts,
)


def tensors_inside(value: Any) -> list[torch.Tensor]:
    """Return the tensors in a value, in its containers and in the attributes of its objects.

    What an object keeps out of sight of Python is not found.
    """
    found: list[torch.Tensor] = []
    seen: set[int] = set()
    todo = [value]
    while todo and len(seen) < _MOST_PARTS:
        part = todo.pop()
        if id(part) in seen or isinstance(part, PLAIN):
            continue
        seen.add(id(part))
        if isinstance(part, torch.Tensor):
            found.append(part)
        else:
            todo += _inner_parts(part)
    return found


def _inner_parts(value: Any) -> list[Any]:
    container = container_of(type(value))
    parts = [] if container is None else container.parts(value)
    names = [name for kind in type(value).__mro__ for name in _slots(kind)]
    parts += [getattr(value, name) for name in names if hasattr(value, name)]
    return parts + list(getattr(value, "__dict__", {}).values())


def _slots(kind: type) -> tuple[str, ...]:
    slots = kind.__dict__.get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)
