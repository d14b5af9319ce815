"""What a replay returns: tensors in the graph's memory, or the caller's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch


if TYPE_CHECKING:
    from collections.abc import Sequence

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
        self._tree = out.with_leaves(detached)
        self.in_place = self._tree.value
        self._is_one_tensor = (
            isinstance(out.value, torch.Tensor)
            and self._numbers == [None]
            and self._is_there == [False]
        )

    def own(self, batch: Tree) -> Any:
        """Return results that no replay overwrites.

        Args:
            batch: of the replay; what the step returned of its batch is returned of this one.

        Sync: Does not block the host.
        """
        if self._is_one_tensor:  # as nearly all steps return; a tree would cost microseconds
            return self.in_place.clone()
        copies: dict[int, torch.Tensor] = {}
        leaves = []
        for leaf, number, is_there in zip(
            self._tree.leaves, self._numbers, self._is_there, strict=True
        ):
            if number is not None:
                leaves.append(batch.leaves[number])
            elif is_there:
                leaves.append(leaf)
            else:
                if id(leaf) not in copies:
                    copies[id(leaf)] = leaf.clone()
                leaves.append(copies[id(leaf)])
        return self._tree.with_leaves(leaves).value
