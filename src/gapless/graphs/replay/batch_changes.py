"""What a step does to its own batch: assigning and deleting parts, writing into tensors.

A replay does not run the step's code, so the batch of the replay is changed in the same way here.
"""

from __future__ import annotations

from collections import UserDict
from collections.abc import MutableMapping
from operator import is_
from typing import TYPE_CHECKING, Any

import torch

from gapless.errors import BatchError
from gapless.graphs.reads.addresses import address_of
from gapless.graphs.reads.value_places import put_on
from gapless.graphs.replay.alignment import inference_mode
from gapless.graphs.replay.results import has_own_gradient
from gapless.graphs.replay.versions import version_of
from gapless.pipeline.tree.containers import (
    PLAIN,
    Container,
    container_of,
    container_of_type,
    containers_in,
    distinct_containers,
    tensors_inside,
)
from gapless.pipeline.tree.flatten import flatten
from gapless.pipeline.tree.tensor_layout import has_address


if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from gapless.pipeline.tree.flatten import Tree


# What torch answers where elements of a tensor surely share memory.
_OVERLAPS = 1


class BatchWatch:
    """Note how a batch is made up before a step runs on it."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._containers = list(containers_in(tree.value))
        self._parts = [_parts(container) for container in self._containers]
        self._versions = [version_of(leaf) for leaf in tree.leaves]
        self._layouts = list(map(layout_of, tree.leaves))
        self._attributes = [put_on(leaf) for leaf in tree.leaves]
        self._of_containers = list(map(_attributes_beside, self._containers))

    def changes(
        self,
        others: Sequence[torch.Tensor] = (),
        *,
        written: frozenset[int] | None = None,
        out: Any = None,
    ) -> BatchChanges:
        """Return what is different now.

        Args:
            others: tensors that were there before the step.
            out: what the step returned.
            written: numbers of the tensors whose memory the step wrote into, also where that counted
                no version; None: nobody saw, and all tensors of inference mode, which have no
                version, count as written. Their values are put back as the step has left them.
        """
        changed = {
            number: _parts(container)
            for number, container in enumerate(self._containers)
            if not _same_parts(_parts(container), self._parts[number])
        }
        versions = enumerate(map(version_of, self._tree.leaves))
        counted = {number for number, version in versions if version != self._versions[number]}
        if written is None:
            written = frozenset(
                number for number, leaf in enumerate(self._tree.leaves) if leaf.is_inference()
            )
        return BatchChanges(
            self._tree,
            self._containers,
            changed,
            counted,
            written - counted,
            others=others,
            marked=self._marked(),
            out=out,
        )

    def done_to(self, tree: Tree, out: Any) -> Any:
        """Do to another batch what was done to this one; return what the step returns for it.

        Raises:
            BatchError: a container cannot be made anew, or changed.
        """
        own = dict(zip(map(id, self._tree.leaves), tree.leaves, strict=True))
        changes = self.changes(out=out)
        if changes.unsupported is not None:
            raise BatchError(f"cannot change {changes.unsupported} of another batch")
        put = [own.get(id(tensor), tensor) for tensor in changes.put]
        of_out = flatten(out)
        if any(id(leaf) in own for leaf in of_out.leaves):
            out = of_out.with_leaves([own.get(id(leaf), leaf) for leaf in of_out.leaves]).value
        return changes.apply(tree, put, out)

    def _marked(self) -> str | None:
        """Return what was set that a replay would not set, such as an attribute, None if nothing."""
        if list(map(layout_of, self._tree.leaves)) != self._layouts:
            return "the shape or the memory of a tensor"
        now = map(put_on, self._tree.leaves)
        if not all(map(_same_parts, now, self._attributes)):
            return "an attribute of a tensor"
        for container, before in zip(self._containers, self._of_containers, strict=True):
            if not _same_parts(_attributes_beside(container), before):
                return f"an attribute of a {type(container).__qualname__}"
        return None


def layout_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return what `unsqueeze_`, `resize_` or another `.data` would change."""
    if not has_address(tensor):
        return (id(tensor),)
    return tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), address_of(tensor)


class BatchChanges:
    """What a step did to the batch it was captured with.

    Args:
        containers: in it, in the order of a walk.
        changed: the new parts of those that changed, by their numbers.
        counted: numbers of the tensors that the step wrote into, which counts a version.
        written: numbers of those that it wrote into without one.
        others: tensors that were there before the step.
        marked: what it set otherwise, None if nothing.

    Attributes:
        put: tensors that were put into the batch, each once.
        unsupported: what was changed that cannot be changed here, None if there is nothing.
        puts_gradients: whether a tensor that was put into the batch holds its gradient.
    """

    def __init__(
        self,
        tree: Tree,
        containers: list[Any],
        changed: dict[int, dict[Any, Any]],
        counted: Collection[int],
        written: Collection[int],
        *,
        others: Sequence[torch.Tensor],
        marked: str | None = None,
        out: Any = None,
    ) -> None:
        self._leaves = tree.leaves
        self._trained = [number for number, leaf in enumerate(tree.leaves) if leaf.requires_grad]
        gradients = [(number, tree.leaves[number].grad) for number in self._trained]
        # In the memory of the graph.
        self._gradients = [(number, one) for number, one in gradients if one is not None]
        self._container_numbers = {id(value): number for number, value in enumerate(containers)}
        # Keeps the ids above from being used again.
        self._containers = containers
        self._changed = changed
        self._counted = sorted(counted)
        self._written = sorted(written)
        self.unsupported = next(
            (
                f"a {type(containers[number]).__qualname__}"
                for number in changed
                if not _can_change(containers[number])
            ),
            marked,
        )
        self.unsupported = self.unsupported or self._not_put_anew(others)
        put = [part for parts in changed.values() for part in parts.values()]
        tensors = {id(tensor): tensor for part in put for tensor in self._tensors_in(part)}
        self._put = list(tensors)
        self.put = tuple(tensors.values())
        there = set(map(id, [*tree.leaves, *others]))
        self.puts_gradients = any(
            has_own_gradient(tensor) for key, tensor in tensors.items() if key not in there
        )

        returns_part = returns_part_of([*containers, tree.value], out)
        self._out = out if returns_part else None
        self._leaves_of_out = flatten(out).leaves if returns_part else []

    def __bool__(self) -> bool:
        return bool(self._changed or self.writes_tensors or self._trained or self._out is not None)

    @property
    def changes_containers(self) -> bool:
        """Whether the step put something into its batch, or took something out."""
        return bool(self._changed)

    @property
    def writes_tensors(self) -> bool:
        """Whether the step wrote into tensors of its batch."""
        return bool(self._counted or self._written)

    def can_apply(self, tree: Tree) -> bool:
        """Return whether another batch can be changed in the same way.

        A gradient that is there already would be added to. A container that stands there twice is
        changed twice.
        """
        if any(tree.leaves[number].grad is not None for number, _ in self._gradients):
            return False
        return not (self.changes_containers and has_container_twice(tree.value))

    def apply(self, tree: Tree, put: Sequence[torch.Tensor], out: Any = None) -> Any:
        """Change another batch of the same kind in the same way; return what its step returns.

        Args:
            tree: that batch.
            put: what is put into it, in the order of the attribute `put`.
            out: what the step returns, as if none of its containers were in the batch.
        """
        for number in self._counted:
            _write(tree.leaves[number], self._leaves[number])
        for number in self._written:
            leaf = tree.leaves[number]
            # What the step has not counted is not counted here either.
            _write(leaf if leaf.is_inference() else leaf.data, self._leaves[number])
        for number in self._trained:
            tree.leaves[number].requires_grad_()
        for number, gradient in self._gradients:
            tree.leaves[number].grad = gradient.detach().clone()
        if not self._changed and self._out is None:
            return out
        # By the ids of what was put into the captured batch.
        moved: dict[int, Any] = dict(zip(self._put, put, strict=True))
        containers = list(containers_in(tree.value))
        for key, number in self._container_numbers.items():
            moved[key] = containers[number]
        for number, parts in self._changed.items():
            new = {name: _moved(part, moved) for name, part in parts.items()}
            _change(containers[number], new)
        if self._out is None:
            return out
        moved.update(zip(map(id, self._leaves_of_out), flatten(out).leaves, strict=True))
        return _moved(self._out, moved)

    def _not_put_anew(self, others: Sequence[torch.Tensor]) -> str | None:
        """Return what was put into the batch that cannot be put into another one, None if nothing."""
        there = set(map(id, [*self._leaves, *others]))
        known = dict(self._container_numbers)
        todo = [part for parts in self._changed.values() for part in parts.values()]
        while todo:
            part = todo.pop()
            if isinstance(part, torch.Tensor):
                if id(part) not in there and put_on(part):
                    return "an attribute of a tensor"
            elif id(part) not in known:
                container = _container(part)
                parts = () if container is None else container.parts(part)
                inside = {id(tensor) for one in parts for tensor in tensors_inside(one)}
                if any(id(tensor) not in inside for tensor in tensors_inside(part)):
                    return f"a {type(part).__qualname__} that holds tensors"
                known[id(part)] = len(known)
                todo += parts
        return None

    def _tensors_in(self, part: Any) -> Iterator[torch.Tensor]:
        """Return the tensors of a part, without those in containers that the batch had."""
        if isinstance(part, torch.Tensor):
            yield part
        elif id(part) not in self._container_numbers:
            container = _container(part)
            for inner in () if container is None else container.parts(part):
                yield from self._tensors_in(inner)


def returns_part_of(batch: Any, out: Any) -> bool:
    """Return whether a container in what a step returned, which may be changed, is one of its batch."""
    in_batch = set(map(id, distinct_containers(batch)))
    return any(id(one) in in_batch for one in distinct_containers(out) if _may_change(one))


def has_container_twice(value: Any) -> bool:
    """Return whether a container that can be changed stands in a batch twice."""
    found = [id(one) for one in containers_in(value) if _may_change(one)]
    return len(set(found)) < len(found)


def _may_change(container: Any) -> bool:
    return not isinstance(container, tuple)


def _write(target: torch.Tensor, source: torch.Tensor) -> None:
    # Torch writes to no tensor whose elements share memory, so the step has not either.
    is_strided = target.layout is torch.strided
    if is_strided and torch._debug_has_internal_overlap(target) == _OVERLAPS:
        return
    with inference_mode(is_on=target.is_inference()):
        target.copy_(source)


def _moved(part: Any, moved: dict[int, Any]) -> Any:
    """Return a part of the captured batch as a part of another one; what is new is added."""
    if id(part) not in moved:
        container = _container(part)
        if container is None:
            return part
        parts = [_moved(inner, moved) for inner in container.parts(part)]
        moved[id(part)] = container.with_parts(part, parts)
    return moved[id(part)]


def _container(value: Any) -> Container | None:
    return None if isinstance(value, PLAIN) else container_of(value)


def _parts(value: Any) -> dict[Any, Any]:
    container = container_of_type(type(value))
    assert container is not None
    parts = dict(zip(container.names(value), container.parts(value), strict=True))
    if not isinstance(value, list | tuple | MutableMapping):
        parts.update(getattr(value, "__dict__", {}))
    return parts


def _attributes_beside(value: Any) -> dict[Any, Any]:
    """Return the attributes of a list or mapping, which are no parts of it."""
    if not isinstance(value, list | MutableMapping):
        return {}
    return dict(getattr(value, "__dict__", {}))


def _same_parts(some: dict[Any, Any], others: dict[Any, Any]) -> bool:
    return list(some) == list(others) and all(map(is_, some.values(), others.values()))


def _can_change(container: Any) -> bool:
    """Return whether its parts can be taken out and put in; those of a mapping of layers lie anywhere."""
    if isinstance(container, MutableMapping):
        return isinstance(container, dict | UserDict)
    return isinstance(container, list) or hasattr(container, "__dict__")


def _change(container: Any, parts: dict[Any, Any]) -> None:
    if isinstance(container, list):
        container[:] = list(parts.values())
    elif isinstance(container, dict | UserDict):
        container.clear()
        container.update(parts)
    else:
        for name in set(vars(container)) - set(parts):
            object.__delattr__(container, name)
        for name, part in parts.items():
            object.__setattr__(container, name, part)
