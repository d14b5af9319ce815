"""The containers that a batch may be made of: how each is flattened and rebuilt.

A batch is any nesting of tuples, named tuples, lists, mappings, dataclasses, and objects of classes
written in Python, whose parts are their attributes. Everything else in it is a leaf: a tensor, a plain
value, or anything else. An object of a container's type that does not behave like one is a leaf as well.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
import operator
import sys
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Mapping, MutableMapping
from itertools import islice
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.utils.rnn import PackedSequence

from gapless.errors import BatchError


if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence


# Values that are the same on every device.
PLAIN = (str, bytes, int, float, complex, type(None), enum.Enum, torch.dtype, torch.device)

# An object in a batch may refer to anything; nobody looks at more of it than this.
_MOST_PARTS = 10_000


class OddContainerError(Exception):
    """A value behaves otherwise than the container that its type claims to be; says how."""


@dataclasses.dataclass(frozen=True, slots=True)
class Container:
    """How one type of container is flattened and rebuilt.

    Attributes:
        names: returns the names of a container's parts, in order: indices, keys or fields.
        parts: returns its parts, in the same order.
        read: returns names and parts at once, each part as it was read first; without names where
            they are indices. It may raise anything if the container behaves otherwise than one.
        with_parts: returns a container of the same type with other parts, and all else as it was.
        may_be_odd: whether one of this type can behave otherwise than a container.
        is_object: whether its parts are all its attributes.
        fixed: returns what else must be equal in two of one kind; None if that is nothing.
    """

    names: Callable[[Any], Sequence[Any]]
    parts: Callable[[Any], list[Any]]
    read: Callable[[Any], tuple[Sequence[Any], list[Any]]]
    with_parts: Callable[[Any, Sequence[Any]], Any]
    may_be_odd: bool = False
    is_object: bool = False
    fixed: Callable[[Any], Hashable] | None = None


def container_of(value: Any) -> Container | None:
    """Return how to flatten a container; None if the value is none, or does not behave like its type."""
    container = container_of_type(type(value))
    if container is None or not container.may_be_odd or why_odd(value) is None:
        return container
    return None


def container_of_type(type_: type) -> Container | None:
    """Return how to flatten containers of this type; None if it is no container."""
    if type_ not in _known:
        _known[type_] = _new_container(type_)
    return _known[type_]


_known: dict[type, Container | None] = {}


def is_object(value: Any) -> bool:
    """Return whether a value is an object of a class written in Python, whose parts are its attributes."""
    container = container_of_type(type(value))
    return container is not None and container.is_object


def taken_apart(container: Container, value: Any) -> tuple[Sequence[Any], list[Any]]:
    """Return the names and the parts of a container; no names where they are indices.

    TensorDict is a mapping whose iteration gives rows. What a container raises while it is looked
    at must not reach a loop that only called its step.

    Raises:
        OddContainerError: it behaves otherwise than its type claims.
    """
    try:
        return container.read(value)
    except (
        OddContainerError,
        RecursionError,
    ):  # the batch leads to itself, or is nested too deeply
        raise
    except Exception as error:
        raise OddContainerError(f"raises {type(error).__name__} when it is read") from error


def why_odd(value: Any) -> str | None:
    """Return in a few words how a value behaves otherwise than its type claims; None if it does not."""
    container = container_of_type(type(value))
    if container is None or not container.may_be_odd:
        return None
    try:
        taken_apart(container, value)
    except OddContainerError as error:
        return str(error)
    return None


def why_left_alone(value: Any) -> str | None:
    """Return in a few words why no graph can read a container's parts; None if one can."""
    container = container_of_type(type(value))
    if container is None or container is _DICT:
        return None
    try:
        names, _ = taken_apart(container, value)
    except OddContainerError as error:
        return str(error)
    beside = tensor_beside(value, names)
    return None if beside is None else f"has a tensor beside its items, {beside!r}"


def tensor_beside(value: Any, names: Sequence[Any]) -> str | None:
    """Return the name of a tensor that a container has as an attribute; None if there is none.

    A copy of the container with other parts keeps its attributes, so a graph would read this tensor
    from the wrong batch.

    Args:
        value: the container.
        names: of its parts, which may be attributes as well.
    """
    attributes = getattr(value, "__dict__", None)
    if not attributes:
        return None
    tensors = [name for name, part in attributes.items() if issubclass(type(part), torch.Tensor)]
    if not tensors:
        return None
    known = set(names)
    return next((name for name in tensors if name not in known), None)


def _new_container(type_: type) -> Container | None:
    if type_ is dict:
        return _DICT
    if issubclass(type_, Mapping):
        base = next((base for base in _MAPPINGS_IN_C if issubclass(type_, base)), None)
        if base is not None and _reads_as(type_, base):
            return _PLAIN_MAPPING
        return _MAPPING_IN_PYTHON if _is_of_python(type_) else _MAPPING
    if dataclasses.is_dataclass(type_):
        return _dataclass_container(type_)
    if issubclass(type_, PackedSequence):
        return _PACKED
    # Subclasses may override reading, so what these hold is read by the methods of their base.
    if issubclass(type_, tuple):
        return Container(_indices, _of_tuple, _read_tuple, _tuple_with_parts)
    if issubclass(type_, list):
        return Container(_indices, list.copy, _read_list, _list_with_parts)
    return _OBJECT if _is_of_python(type_) else None


# --- mappings ---


# Whoever reads these with methods of theirs gets what they hold.
_MAPPINGS_IN_C: tuple[type, ...] = (OrderedDict, defaultdict, dict)

_READING = ("__getitem__", "__iter__", "__len__", "values")


def _reads_as(type_: type, base: type) -> bool:
    """Return whether a class reads its items as one of Python's own mappings does."""
    return all(getattr(type_, name) is getattr(base, name) for name in _READING)


def _of_mapping(value: Any) -> list[Any]:
    return [value[name] for name in value]


def _of_values(value: Any) -> list[Any]:
    return list(value.values())


def _read_values(value: Any) -> tuple[list[Any], list[Any]]:
    return list(value), list(value.values())


def _read_mapping(value: Any) -> tuple[list[Any], list[Any]]:
    size = len(value)
    # An iteration may have no end.
    names = list(islice(value, size + 1))
    if any(type(name).__hash__ is None for name in names):
        raise OddContainerError("gives no names of its items when it is iterated")
    if len(set(names)) != size or len(names) != size:
        raise OddContainerError("gives other items than it holds")
    parts = []
    for name in names:
        part = value[name]
        if not _is_kept(value[name], part):
            raise OddContainerError("gives other items each time that it is read")
        parts.append(part)
    return names, parts


def _mapping_with_parts(value: Any, parts: Sequence[Any]) -> Any:
    try:
        twin = copy.copy(value)
        _own_attributes(value, twin)
        before = [(name, value[name]) for name in value]
        for (name, had), part in zip(before, parts, strict=True):
            twin[name] = part
            if part is not had and value[name] is part:
                value[name] = had
                raise TypeError("its copy shares items with it")
            _check_is_kept(twin[name], part)
    except Exception as error:  # whatever its own methods raise
        raise BatchError(cannot_rebuild(value, "a dict")) from error
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
    _of_values,
    _read_values,
    lambda value, parts: dict(zip(value, parts, strict=True)),
)
_PLAIN_MAPPING = Container(list, _of_values, _read_values, _mapping_with_parts)
_MAPPING = Container(list, _of_mapping, _read_mapping, _mapping_with_parts, may_be_odd=True)


# --- dataclasses, and objects of classes written in Python ---


def _dataclass_container(type_: Any) -> Container:
    """Return how to flatten a dataclass; a field that was never set is no part of it."""
    fields = tuple([field.name for field in dataclasses.fields(type_)])

    def read(value: Any) -> tuple[Sequence[str], list[Any]]:
        try:
            return fields, [getattr(value, name) for name in fields]
        except AttributeError:
            names = [name for name in fields if hasattr(value, name)]
            return names, [getattr(value, name) for name in names]

    def with_parts(value: Any, parts: Sequence[Any]) -> Any:
        try:
            twin = copy.copy(value)
            for name, part in zip(read(value)[0], parts, strict=True):
                # Past `__setattr__`, because the dataclass may be frozen.
                object.__setattr__(twin, name, part)
        except Exception as error:  # whatever its own methods raise
            raise BatchError(cannot_rebuild(value, "a plain dataclass")) from error
        return twin

    return Container(
        lambda value: read(value)[0],
        lambda value: read(value)[1],
        read,
        with_parts,
        may_be_odd=True,
    )


# What is used for what it does, though it holds tensors.
_NO_BATCHES = (torch.nn.Module, torch.optim.Optimizer)

_HEAP_TYPE = 1 << 9  # of `__flags__`: not made in C


def _is_of_python(type_: type) -> bool:
    """Return whether all that objects of a class are is in their `__dict__` and slots."""
    if issubclass(type_, _NO_BATCHES) or hasattr(type_, "__del__"):
        return False
    if any("__class__" in vars(one) for one in type_.__mro__[:-1]):
        return False  # it passes for another, as those of `unittest.mock` do
    if not type_.__flags__ & _HEAP_TYPE:
        return type_ is SimpleNamespace
    num_more = len(_slot_names(type_)) + (type_.__dictoffset__ > 0) + (type_.__weakrefoffset__ > 0)
    return (
        type_.__basicsize__ <= _maker_of(type_).__basicsize__ + num_more * _POINTER
        and type_.__itemsize__ == 0
    )


_POINTER = sys.maxsize.bit_length() // 8 + 1


def _maker_of(type_: type) -> type:
    return SimpleNamespace if issubclass(type_, SimpleNamespace) else object


def _read_object(value: Any) -> tuple[list[str], list[Any]]:
    held = dict(attributes_of(value))
    return list(held), list(held.values())


def _object_with_parts(value: Any, parts: Sequence[Any]) -> Any:
    """Return a twin that was made past the constructor, and past what setting attributes does."""
    type_ = type(value)
    maker: Any = _maker_of(type_)
    twin = maker.__new__(type_)
    in_dict = getattr(value, "__dict__", {})
    for (name, had), part in zip(attributes_of(value), parts, strict=True):
        if name in in_dict:
            twin.__dict__[name] = part
        else:
            object.__setattr__(twin, name, part)
        if part is not had and isinstance(part, Mapping):
            _lead_back(part, value, twin)
    return twin


def _lead_back(part: Any, value: Any, twin: Any) -> None:
    """Let a part refer to the twin, as PyG's stores refer to the data that they belong to."""
    for name, attribute in list(getattr(part, "__dict__", {}).items()):
        if type(attribute) is weakref.ref and attribute() is value:
            part.__dict__[name] = weakref.ref(twin)


def _read_mapping_or_object(value: Any) -> tuple[Sequence[Any], list[Any]]:
    try:
        return _read_mapping(value)
    except RecursionError:
        raise
    except Exception:
        # The iteration of a TensorDict gives rows, not names: its attributes are read from now on.
        _known[type(value)] = _OBJECT
        return _read_object(value)


def _with_parts_of_either(value: Any, parts: Sequence[Any]) -> Any:
    is_object = _known[type(value)] is _OBJECT
    return (_object_with_parts if is_object else _mapping_with_parts)(value, parts)


_OBJECT = Container(
    lambda value: _read_object(value)[0],
    lambda value: _read_object(value)[1],
    _read_object,
    _object_with_parts,
    is_object=True,
)
_MAPPING_IN_PYTHON = Container(
    lambda value: _read_mapping_or_object(value)[0],
    lambda value: _read_mapping_or_object(value)[1],
    _read_mapping_or_object,
    _with_parts_of_either,
    may_be_odd=True,
)


# --- packed sequences ---


# Their `batch_sizes` stay on the host, where kernels read them.
_OF_PACKED = ("data", "sorted_indices", "unsorted_indices")


def _of_packed(value: Any) -> list[Any]:
    return [getattr(value, name) for name in _OF_PACKED]


def _packed_with_parts(value: Any, parts: Sequence[Any]) -> Any:
    data, *orders = parts
    return tuple.__new__(type(value), (data, value.batch_sizes, *orders))


_PACKED = Container(
    lambda value: _OF_PACKED,
    _of_packed,
    lambda value: (_OF_PACKED, _of_packed(value)),
    _packed_with_parts,
    fixed=lambda value: tuple(value.batch_sizes.tolist()),
)


# --- tuples and lists ---


def _indices(value: Any) -> list[int]:
    base = tuple if issubclass(type(value), tuple) else list
    return list(range(base.__len__(value)))


def _of_tuple(value: Any) -> list[Any]:
    return list(tuple.__iter__(value))


def _read_tuple(value: Any) -> tuple[tuple[()], list[Any]]:
    return (), list(tuple.__iter__(value))


def _read_list(value: Any) -> tuple[tuple[()], list[Any]]:
    return (), list.copy(value)


def _tuple_with_parts(value: Any, parts: Sequence[Any]) -> Any:
    if all(map(operator.is_, _of_tuple(value), parts)):
        return value
    type_ = type(value)
    if hasattr(type_, "n_sequence_fields"):  # made in C, such as `torch.return_types.max`
        return type_(parts)
    return _with_attributes(tuple.__new__(type_, parts), value)


def _list_with_parts(value: Any, parts: Sequence[Any]) -> Any:
    twin: Any = list.__new__(type(value))
    list.extend(twin, parts)
    return _with_attributes(twin, value)


def _with_attributes(twin: Any, value: Any) -> Any:
    """Return a twin that was made past the constructor, which may take or do anything."""
    for name, attribute in attributes_of(value):
        object.__setattr__(twin, name, attribute)
    return twin


# --- what is wrong with a batch ---


def cannot_rebuild(value: Any, instead: str) -> str:
    """Return that a container cannot be made again with other parts, and what to use instead."""
    return f"cannot rebuild a {type(value).__qualname__} on the device; use {instead}"


def endless(batch: Any) -> str:
    """Return what is wrong with a batch in whose containers a walk finds no end."""
    return (
        f"a batch, a {type(batch).__qualname__}, leads to itself or is nested too deeply; give what "
        "the step needs of it as a tuple or a dict"
    )


# --- walks ---


def containers_in(value: Any) -> Iterator[Any]:
    """Return all containers of a batch, from the outside in; one that occurs twice comes twice."""
    if issubclass(type(value), (torch.Tensor, *PLAIN)):
        return
    parts = _parts_of(value)
    if parts is None:
        return
    yield value
    for part in parts:
        yield from containers_in(part)


def distinct_containers(value: Any) -> list[Any]:
    """Return all containers of a batch, each once, also where one refers back to another."""
    found: dict[int, Any] = {}
    todo = [value]
    while todo:
        part = todo.pop()
        if id(part) in found or issubclass(type(part), (torch.Tensor, *PLAIN)):
            continue
        parts = _parts_of(part)
        if parts is not None:
            found[id(part)] = part
            todo += parts
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
        type_ = type(part)
        if id(part) in seen or issubclass(type_, PLAIN):
            continue
        seen.add(id(part))
        if issubclass(type_, torch.Tensor):
            found.append(part)
        else:
            todo += _inner_parts(part)
    return found


def _inner_parts(value: Any) -> list[Any]:
    inside = (_parts_of(value) or []) + [attribute for _, attribute in attributes_of(value)]
    if issubclass(type(value), (deque, set, frozenset)):
        inside += value
    elif type(value).__module__ == "numpy" and type(value).__name__ == "ndarray":
        inside += list(value.flat) if value.dtype.hasobject else []
    return inside


def _parts_of(value: Any) -> list[Any] | None:
    """Return the parts of a container; None if a value is none, or behaves otherwise than one."""
    container = container_of_type(type(value))
    if container is None:
        return None
    try:
        return taken_apart(container, value)[1]
    except OddContainerError:
        return None


def attributes_of(value: Any) -> list[tuple[str, Any]]:
    """Return the attributes that an object holds, in slots and in its `__dict__`."""
    type_ = type(value)
    slots = _slot_names(type_)
    in_slots = [(name, getattr(value, name)) for name in slots if hasattr(value, name)]
    return in_slots + list(getattr(value, "__dict__", {}).items())


_slots: dict[type, tuple[str, ...]] = {}


def _slot_names(type_: type) -> tuple[str, ...]:
    slots = _slots.get(type_)
    if slots is None:
        slots = _slots[type_] = tuple([name for one in type_.__mro__ for name in _slots_of(one)])
    return slots


def _slots_of(type_: type) -> list[str]:
    slots = type_.__dict__.get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    return [
        f"_{type_.__name__.lstrip('_')}{name}" if _is_private(name) else name
        for name in names
        if name not in ("__dict__", "__weakref__")
    ]


def _is_private(name: str) -> bool:
    """Return whether Python puts the name of the class before a slot's."""
    return name.startswith("__") and not name.endswith("__")
