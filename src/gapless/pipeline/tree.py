"""Take a batch apart into its tensors and the structure around them, once.

A batch is any nesting of tuples, named tuples, lists, mappings and dataclasses, with tensors and
plain values (numbers, strings, None) as leaves. `flatten` walks it once; the `Tree` that it
returns travels with the batch, so nobody walks the batch again.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

import torch

from gapless.errors import BatchError


if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence


_PLAIN = (str, bytes, int, float, complex, type(None), enum.Enum, torch.dtype, torch.device)

# Attributes of a container that are part of its key, beside its items or fields.
_PLAIN_ATTRIBUTE = (bool, int, float, complex, str, bytes, type(None))


# Not frozen: one is made for every batch, and freezing triples the time to make it.
@dataclasses.dataclass(slots=True)
class Tree:
    """A batch and its tensors.

    Attributes:
        value: the batch.
        leaves: its tensors, in the order of the walk.
    """

    value: Any
    leaves: list[torch.Tensor]
    _root: _Node

    def with_leaves(self, leaves: Sequence[torch.Tensor]) -> Tree:
        """Return a batch of the same structure with these tensors in place of its own.

        Args:
            leaves: as many as `self.leaves`, in the same order.

        Raises:
            TypeError: a mapping in the batch is read-only.

        Sync: Does not block the host.
        """
        value, root = self._root.rebuild(iter(leaves))
        return Tree(value, list(leaves), root)

    def map(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Tree:
        """Return a batch of the same structure with `change(tensor)` for every tensor.

        Sync: Does not block the host, unless `change` does.
        """
        return self.with_leaves([change(leaf) for leaf in self.leaves])

    def key(self) -> Hashable:
        """Return what two batches share if one graph can take both.

        That is the types of their containers, the names of their parts, all plain values, and
        the shape, dtype and device of every tensor.

        Sync: Does not block the host.
        """
        tensors = tuple([(leaf.shape, leaf.dtype, leaf.device) for leaf in self.leaves])
        return (self._root.key(), tensors)

    def difference(self, other: Tree) -> str:
        """Return in a few words where the key of another batch differs from this one's."""
        found = next(self._root.differences(other._root, "batch"), None)
        return found or "the shape of its tensors"


def flatten(value: Any) -> Tree:
    """Walk a batch and return it with its tensors.

    Raises:
        BatchError: the batch holds something that is neither tensor, container nor plain value,
            or a tuple of a kind that cannot be made anew.

    Sync: Does not block the host.
    """
    leaves: list[torch.Tensor] = []
    root = _node_of(value, leaves)
    return Tree(value, leaves, root)


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
        return (type(self.value), repr(self.value))

    def differences(self, other: _Node, where: str) -> Iterator[str]:
        if self.key() != other.key():
            kind = type(other.value).__name__ if isinstance(other, _PlainNode) else "its kind"
            yield f"{where} ({kind})"


class _SequenceNode:
    """A tuple, a list or a named tuple."""

    __slots__ = ("kind", "make", "parts")

    def __init__(self, kind: type, make: Callable[[list[Any]], Any], parts: list[_Node]) -> None:
        self.kind = kind
        self.make = make
        self.parts = parts

    def rebuild(self, leaves: Iterator[torch.Tensor]) -> tuple[Any, _Node]:
        built = [part.rebuild(leaves) for part in self.parts]
        nodes = [node for _, node in built]
        return self.make([value for value, _ in built]), _SequenceNode(self.kind, self.make, nodes)

    def key(self) -> Hashable:
        return (self.kind, *[part.key() for part in self.parts])

    def differences(self, other: _Node, where: str) -> Iterator[str]:
        if not isinstance(other, _SequenceNode) or len(self.parts) != len(other.parts):
            yield f"what is in {where}"
            return
        for number, (part, its) in enumerate(zip(self.parts, other.parts, strict=True)):
            yield from part.differences(its, f"{where}[{number}]")


class _NamedNode:
    """A mapping or a dataclass: parts by name, and plain attributes beside them."""

    __slots__ = ("container", "parts", "put")

    def __init__(
        self, container: Any, put: Callable[[Any, Any, Any], None], parts: dict[Any, _Node]
    ) -> None:
        self.container = container
        self.put = put
        self.parts = parts

    def rebuild(self, leaves: Iterator[torch.Tensor]) -> tuple[Any, _Node]:
        container = {} if type(self.container) is dict else copy.copy(self.container)
        nodes = {}
        for name, part in self.parts.items():
            value, nodes[name] = part.rebuild(leaves)
            self.put(container, name, value)
        return container, _NamedNode(container, self.put, nodes)

    def key(self) -> Hashable:
        parts = [(repr(name), part.key()) for name, part in self.parts.items()]
        return (type(self.container), *self._attributes(), *parts)

    def _attributes(self) -> list[tuple[str, Hashable]]:
        """Return plain attributes beside the parts; a step may decide by them as well."""
        attributes = getattr(self.container, "__dict__", {})
        return [
            (name, (type(value), repr(value)))
            for name, value in attributes.items()
            if isinstance(value, _PLAIN_ATTRIBUTE) and name not in self.parts
        ]

    def differences(self, other: _Node, where: str) -> Iterator[str]:
        if not isinstance(other, _NamedNode) or self.parts.keys() != other.parts.keys():
            yield f"what is in {where}"
            return
        ours, theirs = dict(self._attributes()), dict(other._attributes())
        if ours.keys() != theirs.keys():
            yield f"what is in {where}"
        for name, value in ours.items():
            if value != theirs.get(name, value):
                yield f"{where}.{name} ({type(getattr(other.container, name)).__name__})"
        is_mapping = isinstance(self.container, Mapping)
        for name, part in self.parts.items():
            place = f"{where}[{name!r}]" if is_mapping else f"{where}.{name}"
            yield from part.differences(other.parts[name], place)


def _node_of(value: Any, leaves: list[torch.Tensor]) -> _Node:
    if isinstance(value, torch.Tensor):
        leaves.append(value)
        return _TENSOR
    if isinstance(value, _PLAIN):
        return _PlainNode(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}
        # object.__setattr__, because the dataclass may be frozen.
        return _named_node(value, object.__setattr__, fields, leaves)
    if isinstance(value, tuple | list):
        parts = [_node_of(part, leaves) for part in value]
        return _SequenceNode(type(value), _maker_of(type(value)), parts)
    if isinstance(value, Mapping):
        return _named_node(value, _put_item, dict(value), leaves)
    raise BatchError(
        f"cannot move a {type(value).__module__}.{type(value).__qualname__} to the device; a "
        "batch may hold tensors, numbers, strings, tuples, lists, mappings and dataclasses: "
        "convert it in the loader's collate_fn"
    )


def _named_node(
    container: Any,
    put: Callable[[Any, Any, Any], None],
    parts: dict[Any, Any],
    leaves: list[torch.Tensor],
) -> _NamedNode:
    nodes = {name: _node_of(part, leaves) for name, part in parts.items()}
    return _NamedNode(container, put, nodes)


def _put_item(mapping: Any, key: Any, value: Any) -> None:
    mapping[key] = value


def _maker_of(kind: type) -> Callable[[list[Any]], Any]:
    if kind in (tuple, list):
        return kind
    make: Callable[[list[Any]], Any] | None = getattr(kind, "_make", None)
    if make is None or kind.__module__ == "torch.nn.utils.rnn":
        raise BatchError(
            f"cannot rebuild a {kind.__qualname__} on the device; use a plain tuple or list"
        )
    return make
