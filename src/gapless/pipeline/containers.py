"""The containers that a batch may be made of: how each is taken apart and put together again.

A batch is any nesting of tuples, named tuples, lists, mappings and dataclasses. Everything else in
it is a leaf: a tensor, a plain value, an object with a `to` of its own, or anything that nobody
here looks into.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
import operator
from collections.abc import Mapping, MutableMapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from gapless.errors import BatchError


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


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


def take_apart(kind: type) -> None:
    """Let objects of a class be containers, whose parts are those of their attributes that are one.

    Parts are attributes that are tensors or containers; a twin shares the others.
    """
    _known[kind] = Container(
        _holding, lambda value: [vars(value)[name] for name in _holding(value)], _with_holding
    )


def _new_container(kind: type) -> Container | None:
    if issubclass(kind, Mapping):
        return _DICT if kind is dict else _MAPPING
    if dataclasses.is_dataclass(kind):
        return Container(
            _fields, lambda value: [getattr(value, name) for name in _fields(value)], _with_fields
        )
    if issubclass(kind, tuple):
        return Container(_indices, list, _tuple_with_parts)
    if issubclass(kind, list):
        return Container(_indices, list.copy, _list_with_parts)
    return None


def endless(batch: Any) -> str:
    """Return what is wrong with a batch in whose containers a walk finds no end."""
    return (
        f"a batch, a {type(batch).__qualname__}, leads to itself or is nested too deeply; give what "
        "the step needs of it as a tuple or a dict"
    )


def has_own_to(kind: type) -> bool:
    """Return whether values of this type move themselves, as `value.to(device)`.

    A tensor does as well, but is not meant here.
    """
    return callable(getattr(kind, "to", None)) and not issubclass(kind, torch.Tensor)


def _indices(value: Any) -> list[int]:
    return list(range(len(value)))


def _fields(value: Any) -> list[str]:
    """Return the names of a dataclass's fields; one that was never set is no part of it."""
    return [field.name for field in dataclasses.fields(value) if hasattr(value, field.name)]


def _holding(value: Any) -> list[str]:
    return [
        name
        for name, part in vars(value).items()
        if isinstance(part, torch.Tensor) or container_of(type(part)) is not None
    ]


def _with_holding(value: Any, parts: Sequence[Any]) -> Any:
    twin = object.__new__(type(value))
    vars(twin).update(vars(value) | dict(zip(_holding(value), parts, strict=True)))
    return twin


def _tuple_with_parts(value: Any, parts: Sequence[Any]) -> Any:
    if all(map(operator.is_, value, parts)):
        return value
    kind = type(value)
    if hasattr(kind, "n_sequence_fields"):  # made in C, such as `torch.return_types.max`
        return kind(parts)
    return _with_attributes(tuple.__new__(kind, parts), value)


def _list_with_parts(value: Any, parts: Sequence[Any]) -> Any:
    twin: Any = list.__new__(type(value))
    list.extend(twin, parts)
    return _with_attributes(twin, value)


def _with_attributes(twin: Any, value: Any) -> Any:
    """Return a twin that was made past the constructor, which may take or do anything."""
    for name, attribute in attributes_of(value):
        object.__setattr__(twin, name, attribute)
    return twin


@contextmanager
def _rebuilding(value: Any, instead: str) -> Iterator[None]:
    """Say in one line that a container cannot be rebuilt, whatever its own methods raise."""
    try:
        yield
    except Exception as error:
        raise BatchError(
            f"cannot rebuild a {type(value).__qualname__} on the device; use {instead}"
        ) from error


def _with_fields(value: Any, parts: Sequence[Any]) -> Any:
    with _rebuilding(value, "a plain dataclass"):
        twin = copy.copy(value)
        for name, part in zip(_fields(value), parts, strict=True):
            # Past `__setattr__`, because the dataclass may be frozen.
            object.__setattr__(twin, name, part)
    return twin


def _mapping_with_parts(value: Any, parts: Sequence[Any]) -> Any:
    with _rebuilding(value, "a dict"):
        twin = copy.copy(value)
        _own_attributes(value, twin)
        before = [(name, value[name]) for name in value]
        for (name, had), part in zip(before, parts, strict=True):
            twin[name] = part
            if part is not had and value[name] is part:
                value[name] = had
                raise TypeError("its copy shares items with it")
            _check_is_kept(twin[name], part)
    return twin


def _check_is_kept(kept: Any, part: Any) -> None:
    """Raise if a mapping changes what it is given or asked for: it would do so twice."""
    if kept is not part and not (isinstance(part, PLAIN) and kept == part):
        raise TypeError("its items are not what was put there")


def _own_attributes(value: Any, twin: Any) -> None:
    """Let a copied mapping share no container with the one that it was copied from."""
    attributes = getattr(value, "__dict__", None)
    if attributes is value:  # items that are attributes as well: `self.__dict__ = self`
        twin.__dict__ = twin
        return
    for name, attribute in attributes_of(value):
        # Its class may have copied it.
        if getattr(twin, name, None) is attribute:
            object.__setattr__(twin, name, _own(attribute, {}))


def _own(value: Any, known: dict[int, Any]) -> Any:
    """Return a copy of a container that shares no list and no mapping with it, within others too."""
    if not isinstance(value, MutableMapping | list):
        return value
    if id(value) not in known:
        known[id(value)] = twin = copy.copy(value)
        places = range(len(value)) if isinstance(value, list) else list(value)
        for place in places:
            part = value[place]
            if isinstance(part, MutableMapping | list):
                twin[place] = _own(part, known)
    return known[id(value)]


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


def containers_in(value: Any) -> Iterator[Any]:
    """Return all containers of a batch, from the outside in; one that stands there twice, twice."""
    if isinstance(value, (torch.Tensor, *PLAIN)):
        return
    container = container_of(type(value))
    if container is None:
        return
    yield value
    for part in container.parts(value):
        yield from containers_in(part)


def distinct_containers(value: Any) -> list[Any]:
    """Return all containers of a batch, each once, also where one refers back to another."""
    found: dict[int, Any] = {}
    todo = [value]
    while todo:
        part = todo.pop()
        if id(part) in found or isinstance(part, (torch.Tensor, *PLAIN)):
            continue
        container = container_of(type(part))
        if container is not None:
            found[id(part)] = part
            todo += container.parts(part)
    return list(found.values())


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
    return parts + [attribute for _, attribute in attributes_of(value)]


def attributes_of(value: Any) -> list[tuple[str, Any]]:
    """Return the attributes that an object holds, in slots and in its `__dict__`."""
    names = [name for kind in type(value).__mro__ for name in _slots(kind)]
    in_slots = [(name, getattr(value, name)) for name in names if hasattr(value, name)]
    return in_slots + list(getattr(value, "__dict__", {}).items())


def _slots(kind: type) -> tuple[str, ...]:
    slots = kind.__dict__.get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    return tuple([name for name in names if name not in ("__dict__", "__weakref__")])
