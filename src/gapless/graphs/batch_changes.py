"""What a step does to its own batch: assigning and deleting parts, writing into tensors.

A replay does not run the step's code, so the batch of the replay is changed in the same way here.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from operator import is_
from typing import TYPE_CHECKING, Any

import torch

from gapless.graphs.inference_mode import inference_mode
from gapless.graphs.reach import put_on
from gapless.graphs.results import has_own_gradient
from gapless.graphs.versions import version_of
from gapless.pipeline.containers import PLAIN, Container, container_of, containers_in
from gapless.pipeline.tree import flatten


if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gapless.pipeline.tree import Tree


class BatchWatch:
    """Note how a batch is made up before a step runs on it.

    Args:
        tree: the batch.
    """

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._containers = list(containers_in(tree.value))
        self._parts = [_parts(container) for container in self._containers]
        self._versions = [version_of(leaf) for leaf in tree.leaves]
        self._attributes = [put_on(leaf) for leaf in tree.leaves]

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
        leaves = [
            number
            for number, leaf in enumerate(self._tree.leaves)
            if version_of(leaf) != self._versions[number]
            or (leaf.is_inference() if written is None else number in written)
        ]
        return BatchChanges(
            self._tree,
            self._containers,
            changed,
            leaves,
            others=others,
            marked=self._marked(),
            out=out,
        )

    def _marked(self) -> str | None:
        """Return what was put on a tensor of the batch, None if nothing was."""
        now = map(put_on, self._tree.leaves)
        are_same = all(map(_same_parts, now, self._attributes))
        return None if are_same else "an attribute of a tensor"


class BatchChanges:
    """What a step did to the batch it was captured with.

    Args:
        tree: that batch.
        containers: in it, in the order of a walk.
        changed: the new parts of those that changed, by their numbers.
        written: numbers of the tensors that the step wrote into.
        others: tensors that were there before the step.
        marked: what it put on a tensor of the batch, None if nothing.
        out: what it returned.

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
        written: list[int],
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
        self._written = written
        self.unsupported = next(
            (
                f"a {type(containers[number]).__qualname__}"
                for number in changed
                if not _can_change(containers[number])
            ),
            marked,
        )
        put = [part for parts in changed.values() for part in parts.values()]
        tensors = {id(tensor): tensor for part in put for tensor in self._tensors_in(part)}
        self._put = list(tensors)
        self.put = tuple(tensors.values())
        there = set(map(id, [*tree.leaves, *others]))
        self.puts_gradients = any(
            has_own_gradient(tensor) for key, tensor in tensors.items() if key not in there
        )

        in_batch = {*self._container_numbers, *map(id, containers_in(tree.value))}
        returns_part = any(
            id(one) in in_batch for one in containers_in(out) if not isinstance(one, tuple)
        )
        self._out = out if returns_part else None
        self._leaves_of_out = flatten(out).leaves if returns_part else []

    def __bool__(self) -> bool:
        return bool(self._changed or self._written or self._trained or self._out is not None)

    @property
    def writes_tensors(self) -> bool:
        """Whether the step wrote into tensors of its batch."""
        return bool(self._written)

    def can_apply(self, tree: Tree) -> bool:
        """Return whether another batch can be changed in the same way.

        A gradient that is there already would be added to.
        """
        return all(tree.leaves[number].grad is None for number, _ in self._gradients)

    def apply(self, tree: Tree, put: Sequence[torch.Tensor], out: Any = None) -> Any:
        """Change another batch of the same kind in the same way; return what its step returns.

        Args:
            tree: that batch.
            put: what is put into it, in the order of the attribute `put`.
            out: what the step returns, as if none of its containers were in the batch.

        Sync: Does not block the host.
        """
        for number in self._written:
            leaf = tree.leaves[number]
            # Torch writes to no tensor whose elements share memory, so the step has not either.
            if torch._debug_has_internal_overlap(leaf) != 1:
                with inference_mode(is_on=leaf.is_inference()):
                    leaf.copy_(self._leaves[number])
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

    def _tensors_in(self, part: Any) -> Iterator[torch.Tensor]:
        """Return the tensors of a part, without those in containers that the batch had."""
        if isinstance(part, torch.Tensor):
            yield part
        elif id(part) not in self._container_numbers:
            container = _container(part)
            for inner in () if container is None else container.parts(part):
                yield from self._tensors_in(inner)


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
    return None if isinstance(value, PLAIN) else container_of(type(value))


def _parts(value: Any) -> dict[Any, Any]:
    container = container_of(type(value))
    assert container is not None
    parts = dict(zip(container.names(value), container.parts(value), strict=True))
    if not isinstance(value, list | tuple | MutableMapping):
        parts.update(getattr(value, "__dict__", {}))
    return parts


def _same_parts(some: dict[Any, Any], others: dict[Any, Any]) -> bool:
    return list(some) == list(others) and all(map(is_, some.values(), others.values()))


def _can_change(container: Any) -> bool:
    return isinstance(container, list | MutableMapping) or hasattr(container, "__dict__")


def _change(container: Any, parts: dict[Any, Any]) -> None:
    if isinstance(container, list):
        container[:] = list(parts.values())
    elif isinstance(container, MutableMapping):
        container.clear()
        container.update(parts)
    else:
        for name in set(vars(container)) - set(parts):
            object.__delattr__(container, name)
        for name, part in parts.items():
            object.__setattr__(container, name, part)
