"""Tensors that a step keeps from call to call, such as `self.h = h.detach()`.

A graph reads them from memory of its own and leaves the new ones there. Before a replay, what the
place holds is copied to where the graph reads; after it, the place gets a copy of what the graph
left. So the place always holds tensors that nobody overwrites, as in the step as written; those that
share memory share it in the copies too. Places that every run leaves with the same plain value get
it too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from gapless.graphs.addresses import address_of, share_memory
from gapless.graphs.tensor_copies import TensorCopies, end_of
from gapless.pipeline.tree import flatten


if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from gapless.graphs.host_watch import KeptPath
    from gapless.pipeline.tree import Tree


class KeptTensors:
    """The places of a step that hold other tensors after each call.

    Args:
        paths: of these places.
        on_device: says whether a tensor lies where graphs can read it.
    """

    def __init__(
        self, paths: Sequence[KeptPath], *, on_device: Callable[[torch.Tensor], bool]
    ) -> None:
        self.paths = list(paths)
        self._plain = [(path, path.get()) for path in paths if path.is_plain]
        self._paths = [path for path in paths if not path.is_plain]
        self._before: list[Tree] = [flatten(path.get()) for path in self._paths]
        self.objection = next(
            (
                path
                for path, tree in zip(self._paths, self._before, strict=True)
                if tree.unknown or not all(map(on_device, tree.leaves))
            ),
            None,
        )
        self._inputs: list[torch.Tensor] = []
        self._after: list[Tree] = []
        self._plain_after: list[Any] = []
        self._keys: list[Hashable] = []
        self._overlaps = _overlaps(self.tensors())
        self._copies = TensorCopies([])
        self._left: list[int] = []

    def __bool__(self) -> bool:
        return bool(self.paths)

    def reset(self) -> None:
        """Put back what the places held when this object was made."""
        for path, tree in zip(self._paths, self._before, strict=True):
            path.set(tree.value)
        for path, value in self._plain:
            path.set(value)

    def tensors(self) -> list[torch.Tensor]:
        """Return the tensors that the places held when this object was made."""
        return [leaf for tree in self._before for leaf in tree.leaves]

    def begin_capture(self) -> None:
        """Let the step read memory that stays in its place."""
        for path, tree in zip(self._paths, self._before, strict=True):
            static = tree.map(_copy)
            self._inputs += static.leaves
            self._keys.append(tree.key())
            path.set(static.value)

    def end_capture(self) -> None:
        """Note what the captured step left in the places."""
        self._after = [flatten(path.get()) for path in self._paths]
        self._plain_after = [path.get() for path, _ in self._plain]
        left = {id(leaf): leaf for tree in self._after for leaf in tree.leaves}
        self._copies = TensorCopies(list(left.values()))
        self._left = list(left)

    def are_alike(self) -> bool:
        """Return whether the places hold tensors of the kinds that the graph was captured with.

        They are to share memory as those did. Where a plain value will be put, anything may stand.
        """
        trees = [flatten(path.get()) for path in self._paths]
        if [tree.key() for tree in trees] != self._keys:
            return False
        return _overlaps([leaf for tree in trees for leaf in tree.leaves]) == self._overlaps

    def fill(self) -> None:
        """Copy what the places hold to where the graph reads it.

        Sync: Does not block the host.
        """
        leaves = [leaf for path in self._paths for leaf in flatten(path.get()).leaves]
        for target, source in zip(self._inputs, leaves, strict=True):
            target.detach().copy_(source)

    def hand_out(self) -> None:
        """Put copies of what the graph left into the places, and the plain values.

        Sync: Does not block the host.
        """
        copies = dict(zip(self._left, self._copies.make(), strict=True))
        for path, tree in zip(self._paths, self._after, strict=True):
            path.set(tree.with_leaves([copies[id(leaf)] for leaf in tree.leaves]).value)
        for (path, _), value in zip(self._plain, self._plain_after, strict=True):
            path.set(value)


def _overlaps(tensors: list[torch.Tensor]) -> list[tuple[int, int]]:
    """Return the numbers of all pairs of tensors that have memory in common."""
    if not share_memory(tensors):  # nearly always
        return []
    return [
        (number, other)
        for other, tensor in enumerate(tensors)
        for number in range(other)
        if _overlap(tensors[number], tensor)
    ]


def _overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    if address_of(one) != address_of(other):
        return False
    if one.layout is not torch.strided:
        return True
    begin, end = _bytes_of(one)
    other_begin, other_end = _bytes_of(other)
    return begin < other_end and other_begin < end


def _bytes_of(tensor: torch.Tensor) -> tuple[int, int]:
    """Return where a tensor begins and ends in its storage, in bytes."""
    size = tensor.element_size()
    return int(tensor.storage_offset()) * size, end_of(tensor) * size


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone()


def place_of(path: Any) -> str:
    """Return the name and line of a place."""
    return f"{path.name} ({path.site})"
