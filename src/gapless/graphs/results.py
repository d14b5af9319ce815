"""What a replay returns: tensors in the graph's memory, or the caller's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from gapless.graphs.tensor_copies import TensorCopies
from gapless.pipeline.containers import container_of


if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gapless.pipeline.tree import Tree


class Results:
    """What a step returned in its capture, and what its replays return for it.

    Args:
        out: what the step returned.
        inputs: the tensors of the batch that it was captured with.
        others: tensors that were there before the step.
    """

    def __init__(
        self, out: Tree, *, inputs: Sequence[torch.Tensor], others: Sequence[torch.Tensor]
    ) -> None:
        self._inputs = {id(tensor): number for number, tensor in enumerate(inputs)}
        there = {id(tensor) for tensor in others}
        self._numbers = [self._inputs.get(id(leaf)) for leaf in out.leaves]
        self._is_there = [id(leaf) in there for leaf in out.leaves]
        # Without its graph of gradients, which would hold on to more of the memory.
        seen: dict[int, torch.Tensor] = {}
        detached = [
            leaf if is_there else seen.setdefault(id(leaf), leaf.detach())
            for leaf, is_there in zip(out.leaves, self._is_there, strict=True)
        ]
        self.in_place = out.with_leaves(detached).value
        self._leaves = detached
        parts = zip(detached, self._numbers, self._is_there, strict=True)
        overwritten = {
            id(leaf): leaf for leaf, number, there in parts if number is None and not there
        }
        self._copies = TensorCopies(list(overwritten.values()))
        self._place = {key: place for place, key in enumerate(overwritten)}
        self._is_one_tensor = bool(overwritten) and self.in_place is detached[0]

    def own(self, batch: Tree) -> Any:
        """Return results that no replay overwrites.

        Args:
            batch: of the replay; what the step returned of its batch is returned of this one.

        Sync: Does not block the host.
        """
        copies = self._copies.make()
        if self._is_one_tensor:  # as nearly all steps return
            return copies[0]
        leaves = []
        for leaf, number in zip(self._leaves, self._numbers, strict=True):
            place = self._place.get(id(leaf))
            if number is not None:
                leaves.append(batch.leaves[number])
            else:
                leaves.append(leaf if place is None else copies[place])
        return _rebuilt(self.in_place, iter(leaves))


def _rebuilt(value: Any, leaves: Iterator[torch.Tensor]) -> Any:
    """Return the same structure with other tensors; much quicker than a tree."""
    kind = type(value)
    if isinstance(value, torch.Tensor):
        return next(leaves)
    if kind is tuple or kind is list:
        return kind([_rebuilt(part, leaves) for part in value])
    if kind is dict:
        return {name: _rebuilt(part, leaves) for name, part in value.items()}
    container = container_of(kind)
    if container is None:
        return value
    return container.with_parts(value, [_rebuilt(part, leaves) for part in container.parts(value)])
