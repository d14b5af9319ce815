"""What a step does to its own batch: assigning and deleting parts, writing into tensors.

A replay does not run the step's code, so the batch of the replay is changed in the same way here.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from operator import is_
from typing import TYPE_CHECKING, Any

import torch

from gapless.graphs.addresses import address_of
from gapless.pipeline.containers import PLAIN, container_of


if TYPE_CHECKING:
    from collections.abc import Iterator

    from gapless.pipeline.tree import Tree


class BatchWatch:
    """Note how a batch is made up before a step runs on it.

    Args:
        tree: the batch.
    """

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._containers = list(_containers(tree.value))
        self._parts = [_parts(container) for container in self._containers]
        self._versions = [_version(leaf) for leaf in tree.leaves]

    def changes(self, written: frozenset[int] = frozenset()) -> BatchChanges:
        """Return what is different now.

        Args:
            written: addresses of storages that are known to have been written to.
        """
        changed = {
            number: _parts(container)
            for number, container in enumerate(self._containers)
            if not _same_parts(_parts(container), self._parts[number])
        }
        leaves = [
            number
            for number, leaf in enumerate(self._tree.leaves)
            if _version(leaf) != self._versions[number] or address_of(leaf) in written
        ]
        return BatchChanges(self._tree, self._containers, changed, leaves)


class BatchChanges:
    """What a step did to the batch it was captured with.

    Args:
        tree: that batch.
        containers: in it, in the order of a walk.
        changed: the new parts of those that changed, by their numbers.
        written: numbers of the tensors that the step wrote into.

    Attributes:
        unsupported: type of a changed container that cannot be changed here, None if there is
            none.
    """

    def __init__(
        self,
        tree: Tree,
        containers: list[Any],
        changed: dict[int, dict[Any, Any]],
        written: list[int],
    ) -> None:
        self._leaves = tree.leaves
        self._leaf_numbers = {id(leaf): number for number, leaf in enumerate(tree.leaves)}
        self._container_numbers = {id(value): number for number, value in enumerate(containers)}
        # Keeps the ids above from being used again.
        self._containers = containers
        self._changed = changed
        self._written = written
        self.unsupported = next(
            (
                type(containers[number]).__qualname__
                for number in changed
                if not _can_change(containers[number])
            ),
            None,
        )

    def __bool__(self) -> bool:
        return bool(self._changed or self._written)

    @property
    def writes_tensors(self) -> bool:
        """Whether the step wrote into tensors of its batch."""
        return bool(self._written)

    def apply(self, tree: Tree) -> None:
        """Change another batch of the same kind in the same way.

        Sync: Does not block the host.
        """
        for number in self._written:
            with torch.inference_mode(tree.leaves[number].is_inference()):
                tree.leaves[number].copy_(self._leaves[number])
        if not self._changed:
            return
        containers = list(_containers(tree.value))
        for number, parts in self._changed.items():
            new = {name: self._moved(part, tree, containers) for name, part in parts.items()}
            _change(containers[number], new)

    def _moved(self, part: Any, tree: Tree, containers: list[Any]) -> Any:
        """Return a part of the captured batch as a part of another batch."""
        if isinstance(part, torch.Tensor):
            number = self._leaf_numbers.get(id(part))
            return part.detach().clone() if number is None else tree.leaves[number]
        number = self._container_numbers.get(id(part))
        if number is not None:
            return containers[number]
        container = None if isinstance(part, PLAIN) else container_of(type(part))
        if container is None:
            return part
        parts = [self._moved(inner, tree, containers) for inner in container.parts(part)]
        return container.with_parts(part, parts)


def _containers(value: Any) -> Iterator[Any]:
    """Return all containers of a batch, from the outside in."""
    if isinstance(value, (torch.Tensor, *PLAIN)):
        return
    container = container_of(type(value))
    if container is None:
        return
    yield value
    for part in container.parts(value):
        yield from _containers(part)


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


def _version(tensor: torch.Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version
