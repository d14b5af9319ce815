"""The containers that a batch may be made of: how each is taken apart and put together again.

A batch is any nesting of tuples, named tuples, lists, mappings and dataclasses. Everything else in
it is a leaf: a tensor, a plain value, an object with a `to` of its own, or anything that nobody
here looks into. Such is also an object that claims to be a container and behaves otherwise.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
import operator
from collections import OrderedDict, defaultdict
from collections.abc import Mapping, MutableMapping
from contextlib import contextmanager
from itertools import islice
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
        check: returns in a few words how a container behaves otherwise than one, None if it does not;
            None: containers of this type cannot.
    """

    names: Callable[[Any], list[Any]]
    parts: Callable[[Any], list[Any]]
    with_parts: Callable[[Any, Sequence[Any]], Any]
    check: Callable[[Any], str | None] | None = None


def container_of(value: Any) -> Container | None:
    """Return how a container is taken apart; None if a value is none, or behaves otherwise than one."""
    kind = type(value)
    container = _known[kind] if kind in _known else container_of_type(kind)
    if container is None or container.check is None or why_odd(value) is None:
        return container
    return None


def container_of_type(kind: type) -> Container | None:
    """Return how honest containers of this type are taken apart; None if it is no container."""
    if kind not in _known:
        _known[kind] = _new_container(kind)
    return _known[kind]


_known: dict[type, Container | None] = {}


def why_odd(value: Any) -> str | None:
    """Return in a few words how a value behaves otherwise than its type claims; None if it does not.

    TensorDict is a mapping whose iteration gives rows. What such an object raises while it is looked
    at must not reach a loop that only called its step.
    """
    container = container_of_type(type(value))
    if container is None or container.check is None:
        return None
    try:
        return container.check(value)
    except RecursionError:  # the batch leads to itself, or is nested too deeply
        raise
    except Exception as error:
        return f"raises {type(error).__name__} when it is read"


def why_left_alone(value: Any) -> str | None:
    """Return in a few words why no graph can read a container's parts; None if one can.

    A copy of it with other parts goes on with the attributes that stand beside them: a graph would
    read those of another batch.
    """
    container = container_of_type(type(value))
    if container is None or container is _DICT:
        return None
    why = why_odd(value)
    attributes = None if why is not None else getattr(value, "__dict__", None)
    if not attributes:
        return why
    names = set(container.names(value))
    tensors = [name for name, part in attributes.items() if issubclass(type(part), torch.Tensor)]
    beside = next((name for name in tensors if name not in names), None)
    return None if beside is None else f"has a tensor beside its items, {beside!r}"


def take_apart(kind: type) -> None:
    """Let objects of a class be containers, whose parts are those of their attributes that are one.

    Parts are attributes that are tensors or containers; a twin shares the others.
    """
    _known[kind] = Container(
        _holding, lambda value: [vars(value)[name] for name in _holding(value)], _with_holding
    )


def _new_container(kind: type) -> Container | None:
    if kind in (dict, OrderedDict, defaultdict):
        return _DICT if kind is dict else dataclasses.replace(_MAPPING, check=None)
    if issubclass(kind, Mapping):
        return _MAPPING
    if dataclasses.is_dataclass(kind):
        return Container(_fields, _of_fields, _with_fields, _check_fields)
    # What these hold is read past methods of their own.
    if issubclass(kind, tuple):
        return Container(_indices, _of_tuple, _tuple_with_parts)
    if issubclass(kind, list):
        return Container(_indices, list.copy, _list_with_parts)
    return None


def _check_mapping(value: Any) -> str | None:
    size = len(value)
    # An iteration may have no end.
    names = list(islice(value, size + 1))
    if any(type(name).__hash__ is None for name in names):
        return "gives no names of its items when it is iterated"
    if len(set(names)) != size or len(names) != size:
        return "gives other items than it holds"
    for part, again in [(value[name], value[name]) for name in names]:
        if not _is_kept(again, part):
            return "gives other items each time that it is read"
    return None


def _check_fields(value: Any) -> None:
    _of_fields(value)


def cannot_rebuild(value: Any, instead: str) -> str:
    """Return that a container cannot be made again with other parts, and what to use instead."""
    return f"cannot rebuild a {type(value).__qualname__} on the device; use {instead}"


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
    base = tuple if issubclass(type(value), tuple) else list
    return list(range(base.__len__(value)))


def _of_tuple(value: Any) -> list[Any]:
    return list(tuple.__iter__(value))


def _fields(value: Any) -> list[str]:
    """Return the names of a dataclass's fields; one that was never set is no part of it."""
    return [field.name for field in dataclasses.fields(value) if hasattr(value, field.name)]


def _of_fields(value: Any) -> list[Any]:
    return [getattr(value, name) for name in _fields(value)]


def _holding(value: Any) -> list[str]:
    return [
        name
        for name, part in vars(value).items()
        if issubclass(type(part), torch.Tensor) or container_of(part) is not None
    ]


def _with_holding(value: Any, parts: Sequence[Any]) -> Any:
    twin = object.__new__(type(value))
    vars(twin).update(vars(value) | dict(zip(_holding(value), parts, strict=True)))
    return twin


def _tuple_with_parts(value: Any, parts: Sequence[Any]) -> Any:
    if all(map(operator.is_, _of_tuple(value), parts)):
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
        raise BatchError(cannot_rebuild(value, instead)) from error


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
    if not _is_kept(kept, part):
        raise TypeError("its items are not what was put there")


def _is_kept(kept: Any, part: Any) -> bool:
    return kept is part or (isinstance(part, PLAIN) and bool(kept == part))


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
    _check_mapping,
)


def containers_in(value: Any) -> Iterator[Any]:
    """Return all containers of a batch, from the outside in; one that stands there twice, twice."""
    if issubclass(type(value), (torch.Tensor, *PLAIN)):
        return
    container = container_of(value)
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
        if id(part) in found or issubclass(type(part), (torch.Tensor, *PLAIN)):
            continue
        container = container_of(part)
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
        kind = type(part)
        if id(part) in seen or issubclass(kind, PLAIN):
            continue
        seen.add(id(part))
        if issubclass(kind, torch.Tensor):
            found.append(part)
        else:
            todo += _inner_parts(part)
    return found


def _inner_parts(value: Any) -> list[Any]:
    container = container_of(value)
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
