"""What a replay returns: tensors in the graph's memory, or the caller's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from gapless.graphs.addresses import address_of


if TYPE_CHECKING:
    from collections.abc import Sequence

    from gapless.pipeline.tree import Tree


@dataclass(frozen=True, slots=True)
class _OfBatch:
    """A result that is a tensor of the batch, or a view of one.

    Attributes:
        number: of the tensor.
        is_whole: whether it is the tensor itself.
        size: of the view.
        stride: of the view.
        offset: of the view, from where the tensor begins.
    """

    number: int
    is_whole: bool
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def of(self, batch: Tree) -> torch.Tensor:
        """Return the same of another batch."""
        tensor = batch.leaves[self.number]
        if self.is_whole:
            return tensor
        begin = tensor.storage_offset() + self.offset
        return tensor.detach().as_strided(self.size, self.stride, begin)


@dataclass(frozen=True, slots=True)
class _Shared:
    """Results that lie in one memory of the graph: whoever writes to one writes to the others.

    Attributes:
        first: one of them.
        begin: where the memory begins that they lie in, in elements of the storage.
        length: of that memory.
        leaves: the results.
    """

    first: torch.Tensor
    begin: int
    length: int
    leaves: list[torch.Tensor]

    @classmethod
    def of(cls, leaves: list[torch.Tensor]) -> _Shared:
        """Find the memory of results of one dtype and one storage."""
        begin = min(leaf.storage_offset() for leaf in leaves)
        end = max(leaf.storage_offset() + _span(leaf) for leaf in leaves)
        return cls(leaves[0], begin, end - begin, leaves)

    def copies(self) -> dict[int, torch.Tensor]:
        """Return copies that lie in one memory of their own, by the ids of the results."""
        memory = self.first.as_strided((self.length,), (1,), self.begin).clone()
        return {
            id(leaf): memory.as_strided(
                leaf.size(), leaf.stride(), leaf.storage_offset() - self.begin
            )
            for leaf in self.leaves
        }


class Results:
    """What a step returned in its capture, and what its replays return for it.

    Args:
        out: what the step returned.
        inputs: the tensors of the batch that it was captured with.
        others: tensors that were there before the step.

    Attributes:
        in_place: the results in the graph's memory, valid until the next replay.
    """

    def __init__(
        self, out: Tree, *, inputs: Sequence[torch.Tensor], others: Sequence[torch.Tensor]
    ) -> None:
        there = set(map(address_of, others))
        self._of_batch = [_place_in(leaf, inputs) for leaf in out.leaves]
        # These and views of them go on changing after the step, for whoever holds them.
        self._is_there = [address_of(leaf) in there for leaf in out.leaves]
        objects = {id(other) for other in others}
        # Without its graph of gradients, which would hold on to more of the memory.
        seen: dict[int, torch.Tensor] = {}
        detached = [
            leaf if id(leaf) in objects else seen.setdefault(id(leaf), leaf.detach())
            for leaf in out.leaves
        ]
        self._tree = out.with_leaves(detached)
        self.in_place = self._tree.value
        made = [
            leaf
            for leaf, of_batch, is_there in zip(
                detached, self._of_batch, self._is_there, strict=True
            )
            if of_batch is None and not is_there
        ]
        self._shared = _shared(made)
        self._is_one_tensor = isinstance(out.value, torch.Tensor) and len(made) == 1

    def own(self, batch: Tree) -> Any:
        """Return results that no replay overwrites.

        Args:
            batch: of the replay; what the step returned of its batch is returned of this one.

        Sync: Does not block the host.
        """
        if self._is_one_tensor:  # as nearly all steps return; a tree would cost microseconds
            return self.in_place.clone()
        copies: dict[int, torch.Tensor] = {}
        for shared in self._shared:
            copies.update(shared.copies())
        leaves = []
        for leaf, of_batch, is_there in zip(
            self._tree.leaves, self._of_batch, self._is_there, strict=True
        ):
            if of_batch is not None:
                leaves.append(of_batch.of(batch))
            elif is_there:
                leaves.append(leaf)
            else:
                if id(leaf) not in copies:
                    copies[id(leaf)] = leaf.clone()
                leaves.append(copies[id(leaf)])
        return self._tree.with_leaves(leaves).value


def _shared(leaves: list[torch.Tensor]) -> list[_Shared]:
    """Return which results lie in one memory."""
    groups: dict[tuple[int, torch.dtype], dict[int, torch.Tensor]] = {}
    for leaf in leaves:
        if leaf.layout is torch.strided and not leaf.is_nested:
            groups.setdefault((address_of(leaf), leaf.dtype), {})[id(leaf)] = leaf
    return [_Shared.of(list(group.values())) for group in groups.values() if len(group) > 1]


def _span(tensor: torch.Tensor) -> int:
    """Return how many elements of its storage a tensor reaches over."""
    if not tensor.numel():
        return 0
    pairs = zip(tensor.size(), tensor.stride(), strict=True)
    return 1 + sum((size - 1) * stride for size, stride in pairs)


def _place_in(leaf: torch.Tensor, inputs: Sequence[torch.Tensor]) -> _OfBatch | None:
    """Return where a result lies in a batch, None if it does not."""
    if leaf.layout is not torch.strided or leaf.is_nested:
        return None
    for number, tensor in enumerate(inputs):
        if address_of(leaf) == address_of(tensor) and leaf.dtype == tensor.dtype:
            offset = leaf.storage_offset() - tensor.storage_offset()
            is_whole = leaf is tensor
            return _OfBatch(number, is_whole, tuple(leaf.size()), leaf.stride(), offset)
    return None
