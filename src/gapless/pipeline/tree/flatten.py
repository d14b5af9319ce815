"""Take a batch apart into its tensors and the structure around them, once.

A batch is any nesting of the containers of `gapless.pipeline.tree.containers`, with tensors, plain values
(numbers, strings, None) and whatever else there may be as leaves. `flatten` walks it once; the `Tree` that it
returns travels with the batch, so nobody walks the batch again.
"""

from __future__ import annotations

import dataclasses
import enum
import re
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

import torch

from gapless.errors import BatchError
from gapless.pipeline.step import Call
from gapless.pipeline.tree.containers import (
    PLAIN,
    OddContainerError,
    attributes_of,
    container_of_type,
    endless,
    taken_apart,
    tensor_beside,
)
from gapless.pipeline.tree.tensor_layout import (
    kind_of,
    misalignment,
    shape_of,
    stride_of,
    twins_among,
)


if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterator, Sequence

    from gapless.pipeline.tree.containers import Container


# What differs between batches of one structure.
OF_SHAPE: Final = "the shape of its tensors"

# Attributes of a container that are part of its key, beside its items or fields.
_PLAIN_ATTRIBUTE = (bool, int, float, complex, str, bytes, type(None))


# Not frozen: one is made for every batch, and freezing triples the time to make it.
@dataclasses.dataclass(slots=True)
class Tree:
    """A batch and its tensors.

    Attributes:
        value: the batch.
        leaves: its tensors, in the order of the walk.
        unknown: what is neither tensor, container nor plain value; nobody looks into it.
        known_key: its key, if that is known from another batch.
    """

    value: Any
    leaves: list[torch.Tensor]
    unknown: list[Any]
    # None if nobody has asked for the nodes yet; then there is a form instead.
    _root: _Node | None
    _form: Hashable | None = None
    known_key: Hashable | None = None

    def with_leaves(self, leaves: Sequence[torch.Tensor]) -> Tree:
        """Return a batch of the same structure with these tensors in place of its own.

        Args:
            leaves: as many as `self.leaves`, in the same order.

        Raises:
            BatchError: a container in the batch cannot be rebuilt, such as a read-only mapping.

        Sync: Does not block the host.
        """
        value, root = self._nodes().rebuild(iter(leaves))
        return Tree(value, list(leaves), self.unknown, root, self._form)

    def map(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Tree:
        """Return a batch of the same structure with `change(tensor)` for every tensor.

        A tensor that occurs twice is changed once: code may ask whether two are the same object.

        Sync: Does not block the host, unless `change` does.
        """
        changed = {key: change(leaf) for key, leaf in {id(e): e for e in self.leaves}.items()}
        return self.with_leaves([changed[id(leaf)] for leaf in self.leaves])

    def key(self) -> Hashable:
        """Return what two batches share if one graph can take both.

        That is the types of their containers, the names of their parts, all plain values, and
        the shape, strides, alignment, dtype and device of every tensor, whether it is one of inference
        mode, and which of them are the same one.

        Sync: Does not block the host.
        """
        if self.known_key is not None:
            return self.known_key
        tensors = tuple(
            [
                (shape_of(leaf), stride_of(leaf), misalignment(leaf), *kind_of(leaf))
                for leaf in self.leaves
            ]
        )
        return (self.structure(), tensors, twins_among(self.leaves))

    def structure(self) -> Hashable:
        """Return the part of the key that does not depend on tensors.

        Sync: Does not block the host.
        """
        return self._nodes().key() if self._form is None else self._form

    def _nodes(self) -> _Node:
        if self._root is None:
            self._root = _node_of(self.value, [], [])
        return self._root

    def difference(self, other: Tree) -> str:
        """Return in a few words where the key of another batch differs from this one's."""
        found = next(self._nodes().differences(other._nodes(), "batch"), None)
        if found is None:
            are_alike = twins_among(self.leaves) == twins_among(other.leaves)
            return OF_SHAPE if are_alike else "which of its tensors are the same one"
        return _named_as_called(found) if isinstance(self.value, Call) else found


def flatten(value: Any) -> Tree:
    """Walk a batch and return it with its tensors.

    Raises:
        BatchError: a container is a part of itself.

    Sync: Does not block the host.
    """
    leaves: list[torch.Tensor] = []
    unknown: list[Any] = []
    try:
        root = _node_of(value, leaves, unknown)
    except RecursionError:
        raise BatchError(endless(value)) from None
    return Tree(value, leaves, unknown, root)


def left_alone(value: Any, unknown: Any) -> Tree:
    """Return a tree for a value that nobody looks into.

    Args:
        value: as it will be handed on.
        unknown: what in it nobody can look into.
    """
    return Tree(value, [], [unknown], _UnknownNode(value))


def _named_as_called(found: str) -> str:
    """Say of the parts of a call what they are to its caller."""
    found = re.sub(r"\bbatch\.kwargs\[('[^']*')\]", r"argument \1", found)
    if "batch.args[0]" in found:
        return found.replace("batch.args[0]", "batch")
    found = re.sub(r"\bbatch\.args\[(\d+)\]", lambda n: f"argument {int(n[1]) + 1}", found)
    return re.sub(r"\bbatch\.(kw)?args\b", "the arguments", found)


# --- nodes ---


class _Node(Protocol):
    """One part of a batch."""

    def rebuild(self, leaves: Iterator[torch.Tensor]) -> tuple[Any, _Node]:
        """Return this part with the next tensors in it, and its new node."""

    def key(self) -> Hashable:
        """Return what identifies the part, its tensors left out."""

    def differences(self, other: _Node, where: str) -> Iterator[str]:
        """Name what differs between the keys of two parts."""


class _TensorNode:
    """The place of a tensor."""

    __slots__ = ()

    def rebuild(self, leaves: Iterator[torch.Tensor]) -> tuple[Any, _Node]:
        return next(leaves), self

    def key(self) -> Hashable:
        return torch.Tensor

    def differences(self, other: _Node, where: str) -> Iterator[str]:
        if isinstance(other, _PlainNode):
            yield f"{where} ({type(other.value).__name__})"


_TENSOR: Final = _TensorNode()


class _PlainNode:
    """A number, a string or another value that needs no copy."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def rebuild(self, leaves: Iterator[torch.Tensor]) -> tuple[Any, _Node]:
        del leaves
        return self.value, self

    def key(self) -> Hashable:
        return (type(self.value), _text_of(self.value))

    def differences(self, other: _Node, where: str) -> Iterator[str]:
        if self.key() != other.key():
            type_ = type(other.value).__name__ if isinstance(other, _PlainNode) else "its kind"
            yield f"{where} ({type_})"


class _UnknownNode:
    """Something that nobody here looks into; it is equal to itself alone.

    All weak references are alike: a TensorDict remembers by one what it was made of. In a batch that is
    made anew they lead nowhere, which a step that follows them shows.
    """

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def rebuild(self, leaves: Iterator[torch.Tensor]) -> tuple[Any, _Node]:
        del leaves
        return (_NOWHERE if type(self.value) is weakref.ref else self.value), self

    def key(self) -> Hashable:
        return (type(self.value), None if type(self.value) is weakref.ref else id(self.value))

    def differences(self, other: _Node, where: str) -> Iterator[str]:
        if self.key() != other.key():
            yield f"{where} ({type(self.value).__name__})"


_NOWHERE: Final = weakref.ref(type("Gone", (), {})())


class _SequenceNode:
    """A tuple, a list or a named tuple."""

    __slots__ = ("container", "parts", "value")

    def __init__(self, value: Any, container: Container, parts: list[_Node]) -> None:
        self.value = value
        self.container = container
        self.parts = parts

    def rebuild(self, leaves: Iterator[torch.Tensor]) -> tuple[Any, _Node]:
        built = [part.rebuild(leaves) for part in self.parts]
        nodes = [node for _, node in built]
        value = self.container.with_parts(self.value, [value for value, _ in built])
        return value, _SequenceNode(value, self.container, nodes)

    def key(self) -> Hashable:
        type_ = type(self.value)
        own = () if type_ in (list, tuple) else _plain_attributes(self.value)
        return (type_, *own, *[part.key() for part in self.parts])

    def differences(self, other: _Node, where: str) -> Iterator[str]:
        if not isinstance(other, _SequenceNode) or len(self.parts) != len(other.parts):
            yield f"what is in {where}"
            return
        yield from _differences_of_attributes(self.value, other.value, where)
        for number, (part, its) in enumerate(zip(self.parts, other.parts, strict=True)):
            yield from part.differences(its, f"{where}[{number}]")


class _NamedNode:
    """A mapping, a dataclass or an object: parts by name, and plain attributes beside them."""

    __slots__ = ("container", "parts", "value")

    def __init__(self, value: Any, container: Container, parts: dict[Any, _Node]) -> None:
        self.value = value
        self.container = container
        self.parts = parts

    def rebuild(self, leaves: Iterator[torch.Tensor]) -> tuple[Any, _Node]:
        built = [part.rebuild(leaves) for part in self.parts.values()]
        value = self.container.with_parts(self.value, [value for value, _ in built])
        nodes = dict(zip(self.parts, [node for _, node in built], strict=True))
        return value, _NamedNode(value, self.container, nodes)

    def key(self) -> Hashable:
        parts = [(repr(name), part.key()) for name, part in self.parts.items()]
        fixed = self.container.fixed
        own = _plain_attributes(self.value, self.parts) if fixed is None else [fixed(self.value)]
        return (type(self.value), *own, *parts)

    def differences(self, other: _Node, where: str) -> Iterator[str]:
        if not isinstance(other, _NamedNode) or self.parts.keys() != other.parts.keys():
            yield f"what is in {where}"
            return
        yield from _differences_of_attributes(self.value, other.value, where, self.parts)
        fixed = self.container.fixed
        if fixed is not None and fixed(self.value) != fixed(other.value):
            yield f"how {where} is packed"
        is_mapping = isinstance(self.value, Mapping)
        for name, part in self.parts.items():
            place = f"{where}[{name!r}]" if is_mapping else f"{where}.{name}"
            yield from part.differences(other.parts[name], place)


def _text_of(value: Any) -> str:
    """Return a text that two plain values of one type share only if they are equal, NaN included."""
    if isinstance(value, enum.Enum):
        return value.name
    # A user's class may show less of a value than there is.
    type_: Any = next((one for one in _PLAIN_ATTRIBUTE if isinstance(value, one)), type(value))
    text: str = type_.__repr__(value)
    return text


def _plain_attributes(value: Any, parts: Collection[Any] = ()) -> list[tuple[str, Hashable]]:
    """Return plain attributes beside the parts; a step may decide by them as well."""
    found = [(name, _plain_key(part)) for name, part in attributes_of(value) if name not in parts]
    return [(name, key) for name, key in found if key is not None]


_MOST_ITEMS = 100
_DEPTH = 3


def _plain_key(value: Any, depth: int = _DEPTH) -> Hashable | None:
    """Return what two attributes share if they are equal; None for what is not plain all through."""
    if isinstance(value, _PLAIN_ATTRIBUTE):
        return (type(value), _text_of(value))
    type_ = type(value)
    if type_ not in (list, tuple, set, frozenset, dict) or not depth or len(value) > _MOST_ITEMS:
        return None
    items = value.items() if type_ is dict else value
    keys = [_plain_key(item, depth - 1) for item in items]
    if None in keys:
        return None
    return (type_, frozenset(keys) if type_ in (set, frozenset) else tuple(keys))


def _differences_of_attributes(
    value: Any, other: Any, where: str, parts: Collection[Any] = ()
) -> Iterator[str]:
    ours, theirs = dict(_plain_attributes(value, parts)), dict(_plain_attributes(other, parts))
    if ours.keys() != theirs.keys():
        yield f"what is in {where}"
    for name, attribute in ours.items():
        if attribute != theirs.get(name, attribute):
            yield f"{where}.{name} ({type(getattr(other, name)).__name__})"


# Containers of these types hold what they say, and have no attributes.
_BARE: Final = frozenset((tuple, list, dict))


def _node_of(value: Any, leaves: list[torch.Tensor], unknown: list[Any]) -> _Node:
    # An object may name another class as its own, as one of `unittest.mock` does: its type is asked.
    type_ = type(value)
    if issubclass(type_, torch.Tensor):
        leaves.append(value)
        return _TENSOR
    if issubclass(type_, PLAIN):
        return _unknown(value, unknown) if has_attributes(value) else _PlainNode(value)
    if issubclass(
        type_, type
    ):  # PyG's data hold some: a class is the same in each batch, or another one
        return _UnknownNode(value)
    container = container_of_type(type_)
    if container is None:
        return _unknown(value, unknown)
    if type_ in _BARE:
        names, parts = container.read(value)
    else:
        try:
            names, parts = taken_apart(container, value)
        except OddContainerError:
            return _unknown(value, unknown)
        if tensor_beside(value, names) is not None:
            return _unknown(value, unknown)
    nodes = [_node_of(part, leaves, unknown) for part in parts]
    if issubclass(type_, (tuple, list)) and container.fixed is None:
        return _SequenceNode(value, container, nodes)
    return _NamedNode(value, container, dict(zip(names, nodes, strict=True)))


def _unknown(value: Any, unknown: list[Any]) -> _Node:
    unknown.append(value)
    return _UnknownNode(value)


def has_attributes(value: Any) -> bool:
    """Return whether a plain value has attributes of its own, which its text does not show."""
    type_ = type(value)
    if type_ in _PLAIN_ATTRIBUTE or isinstance(value, enum.Enum):
        return False
    return bool(getattr(value, "__dict__", None)) or any(
        vars(owner).get("__slots__") for owner in type_.__mro__
    )
