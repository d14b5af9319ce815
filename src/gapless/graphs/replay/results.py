"""What a replay returns: tensors in the graph's memory, or the caller's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from gapless.graphs.reads.addresses import address_of
from gapless.graphs.reads.value_places import put_on
from gapless.graphs.replay.gradient_graph import used_up
from gapless.graphs.replay.tensor_copies import TensorCopies
from gapless.pipeline.tree.containers import container_of_type, containers_in, tensors_inside


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gapless.pipeline.tree.flatten import Tree


@dataclass(frozen=True, slots=True)
class _OfBatch:
    """A result that is a tensor of the batch, or a view of one.

    Attributes:
        number: of the tensor.
        is_whole: whether it is the tensor itself.
        is_leaf: whether it is a view that requires gradients of its own.
        size: of the view.
        stride: of the view.
        offset: of the view, from where the tensor begins.
    """

    number: int
    is_whole: bool
    is_leaf: bool
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def of(self, batch: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the same of another batch."""
        tensor = batch[self.number]
        if self.is_whole:
            return tensor
        begin = tensor.storage_offset() + self.offset
        view = tensor.detach().as_strided(self.size, self.stride, begin)
        return view.requires_grad_() if self.is_leaf else view


class Results:
    """What a step returned in its capture, and what its replays return for it.

    Tensors that share memory share it after a replay. What lies in the batch lies in the batch of
    the replay, and a gradient is the gradient that its weight has then.

    Args:
        out: what the step returned.
        inputs: the tensors of the batch that it was captured with.
        others: tensors that were there before the step.
        gradients: weights, with the gradients that the step left.

    Attributes:
        in_place: the results in the graph's memory, valid until the next replay.
        has_gradients: whether gradients are among them, which `own` alone returns.
        plain: the one tensor of which `own` returns a clone outside inference mode; None if it returns more.
    """

    def __init__(
        self,
        out: Tree,
        *,
        inputs: Sequence[torch.Tensor],
        others: Sequence[torch.Tensor],
        gradients: Sequence[tuple[torch.Tensor, torch.Tensor | None]] = (),
    ) -> None:
        there = set(map(address_of, others))
        self._of_batch = [_place_in(leaf, inputs) for leaf in out.leaves]
        weights = {id(gradient): weight for weight, gradient in gradients if gradient is not None}
        self._weights = [weights.get(id(leaf)) for leaf in out.leaves]
        # These and views of them go on changing after the step, for whoever holds them.
        stays = [address_of(leaf) in there for leaf in out.leaves]
        objects = {id(other) for other in others}
        # Without its graph of gradients, which would hold on to more of the memory.
        seen: dict[int, torch.Tensor] = {}
        leaves = [
            leaf if id(leaf) in objects else seen.setdefault(id(leaf), leaf.detach())
            for leaf in out.leaves
        ]
        # Weights stand for their gradients: nobody is to hold these here.
        self._leaves = [
            leaf if weight is None else weight
            for leaf, weight in zip(leaves, self._weights, strict=True)
        ]
        self.in_place = out.with_leaves(self._leaves).value
        self.has_gradients = any(weight is not None for weight in self._weights)
        parts = zip(self._leaves, self._of_batch, self._weights, stays, strict=True)
        overwritten = {
            id(leaf): leaf
            for leaf, of_batch, weight, stay in parts
            if of_batch is None and weight is None and not stay
        }
        self._copies = TensorCopies(list(overwritten.values()))
        self._place = {key: place for place, key in enumerate(overwritten)}
        # What requires gradients of itself does so again; the rest has used up its graph.
        required = {
            id(seen[id(leaf)]): leaf.is_leaf
            for leaf in out.leaves
            if leaf.requires_grad and id(leaf) in seen
        }
        self._are_required = [
            (place, required[key]) for key, place in self._place.items() if key in required
        ]
        # The step has made these anew, though not their memory.
        self._views = {
            id(leaf): leaf
            for leaf, stay in zip(self._leaves, stays, strict=True)
            if stay and id(leaf) not in objects
        }
        self._is_one_tensor = bool(overwritten) and self.in_place is self._leaves[0]
        self._only = self._copies.only if self._is_one_tensor else None
        self.plain = None if self._are_required else self._only

    def own(self, batch: Sequence[torch.Tensor]) -> Any:
        """Return results that no replay overwrites.

        Args:
            batch: the tensors of the replay's batch; what the step returned of its own is returned
                of this one.

        Sync: Does not block the host.
        """
        # As nearly all steps return.
        if self._only is not None and not torch.is_inference_mode_enabled():
            copy = self._only.clone()
            return (
                _requiring(copy, is_leaf=self._are_required[0][1]) if self._are_required else copy
            )
        copies = self._copies.make()
        for number, is_leaf in self._are_required:
            copies[number] = _requiring(copies[number], is_leaf=is_leaf)
        if self._is_one_tensor:
            return copies[0]
        leaves: list[Any] = []
        views = {key: view.detach() for key, view in self._views.items()}
        parts = zip(self._leaves, self._of_batch, self._weights, strict=True)
        for leaf, of_batch, weight in parts:
            place = self._place.get(id(leaf))
            if of_batch is not None:
                leaves.append(of_batch.of(batch))
            elif weight is not None:
                leaves.append(weight.grad)
            else:
                leaves.append(views.get(id(leaf), leaf) if place is None else copies[place])
        return rebuilt(self.in_place, iter(leaves))


def has_own_gradient(tensor: torch.Tensor) -> bool:
    """Return whether a tensor that a step has made holds its gradient, by `retain_grad` or as a leaf."""
    return tensor.retains_grad or (tensor.is_leaf and tensor.grad is not None)


def _requiring(copy: torch.Tensor, *, is_leaf: bool) -> torch.Tensor:
    """Return a copy that requires gradients, as what it is a copy of does."""
    return copy.requires_grad_() if is_leaf else used_up(copy)


def are_unlike_in_one_memory(
    leaves: Iterable[torch.Tensor], inputs: Iterable[torch.Tensor]
) -> bool:
    """Return whether one memory is there as tensors that are copied apart, and would not share it.

    These are tensors of two dtypes, a conjugate and another one, and one of inference mode and another.

    Args:
        leaves: that a step returns, keeps or puts into its batch.
        inputs: of its batch.
    """
    seen: dict[int, tuple[Any, ...]] = {}
    some = [leaf for leaf in leaves if leaf.numel() and leaf.layout is torch.strided]
    if any(seen.setdefault(address_of(leaf), _form_of(leaf)) != _form_of(leaf) for leaf in some):
        return True
    return any(
        seen.get(address_of(one), _form_of(one))[:-1] != _form_of(one)[:-1]
        for one in inputs
        if one.numel() and one.layout is torch.strided
    )


def _form_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.dtype, tensor.is_conj(), tensor.is_neg(), tensor.is_inference()


def not_made_anew(out: Tree, others: Sequence[torch.Tensor]) -> Any:
    """Return a part of what a step returned that a replay cannot make anew, None if there is none.

    Such is a container that stands there twice, one with other tensors in its attributes, a tensor
    with attributes, and a new weight.

    Args:
        out: what the step returned.
        others: tensors that were there before the step.
    """
    seen: set[int] = set()
    for container in containers_in(out.value):
        if id(container) in seen and not isinstance(container, tuple):
            return container
        seen.add(id(container))
    there = set(map(id, others))
    for leaf in out.leaves:
        # A copy of a weight is none.
        is_more = put_on(leaf) or isinstance(leaf, torch.nn.Parameter)
        if id(leaf) not in there and is_more:
            return leaf
    new = [torch.empty(0, device="cpu") for _ in out.leaves]
    known = set(map(id, new))
    for container in reversed(list(containers_in(out.with_leaves(new).value))):
        if any(id(tensor) not in known for tensor in tensors_inside(container)):
            return container
    return None


def rebuilt(value: Any, leaves: Iterator[torch.Tensor]) -> Any:
    """Return the same structure with other tensors; much quicker than a tree."""
    kind = type(value)
    if isinstance(value, torch.Tensor):
        return next(leaves)
    if kind is tuple or kind is list:
        return kind([rebuilt(part, leaves) for part in value])
    if kind is dict:
        return {name: rebuilt(part, leaves) for name, part in value.items()}
    container = container_of_type(kind)
    if container is None:
        return value
    return container.with_parts(value, [rebuilt(part, leaves) for part in container.parts(value)])


def _place_in(leaf: torch.Tensor, inputs: Sequence[torch.Tensor]) -> _OfBatch | None:
    """Return where a result lies in a batch, None if it does not."""
    if leaf.layout is not torch.strided or leaf.is_nested:
        return None
    for number, tensor in enumerate(inputs):
        if address_of(leaf) == address_of(tensor) and leaf.dtype == tensor.dtype:
            offset = int(leaf.storage_offset() - tensor.storage_offset())
            is_leaf = leaf.requires_grad and leaf.is_leaf
            return _OfBatch(
                number, leaf is tensor, is_leaf, tuple(leaf.size()), leaf.stride(), offset
            )
    return None
