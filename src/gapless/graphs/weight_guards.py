"""The weights that a step trains: where they lie, and their gradients."""

from __future__ import annotations

from collections import Counter
from itertools import chain, repeat
from operator import attrgetter, is_not
from sys import getrefcount
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import torch
from torch.utils.weak import TensorWeakRef

from gapless.graphs.addresses import lie_as_now, lie_where
from gapless.graphs.guards import Guard
from gapless.graphs.same_tensors import are_the_same
from gapless.pipeline.tree import has_address


if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from gapless.graphs.known_optimizers import KnownOptimizers


# Weights, each with its gradient at one moment.
Gradients: TypeAlias = "list[tuple[torch.Tensor, torch.Tensor | None]]"


class KnownWeights:
    """The weights of a step's optimizers, and those behind its backward passes.

    Args:
        optimizers: that the step calls.
    """

    def __init__(self, optimizers: KnownOptimizers) -> None:
        self._optimizers = optimizers
        self._leaves: dict[int, TensorWeakRef] = {}

    def add_leaves_behind(self, tensors: Any) -> None:
        """Know the weights to which a backward pass from these tensors adds gradients."""
        for leaf in _leaves_behind(tensors):
            self._leaves[id(leaf)] = TensorWeakRef(leaf)

    def gradients(self) -> Gradients:
        """Return every weight with the gradient that it has now."""
        weights = {id(weight): weight for weight in self._optimizers.weights()}
        for key, reference in list(self._leaves.items()):
            leaf = reference()
            if leaf is None:
                del self._leaves[key]
            else:
                weights[id(leaf)] = leaf
        return [(weight, weight.grad) for weight in weights.values()]


class WeightsInPlace(Guard):
    """Where weights of a graph lie, and which are frozen.

    Args:
        weights: that the graph trains, and that no other guard compares.
    """

    watches: ClassVar[str] = "the memory of weights, and which of them are frozen"
    is_memory: ClassVar[bool] = True
    advice: ClassVar[str] = "copy new values into the weights that are there"

    def __init__(self, weights: list[torch.Tensor]) -> None:
        self._weights = weights

    def check(self) -> Callable[[], bool]:
        """Return a function that says whether the weights lie, and are frozen, as they are now."""
        weights, are_trained = self._weights, attrgetter("requires_grad")
        lie_still, trained = lie_as_now(weights), list(map(are_trained, weights))
        return lambda: lie_still() and list(map(are_trained, weights)) == trained


class GradientsInPlace(Guard):
    """The gradients that a replay adds to, or that they are None.

    Args:
        expected: weights with the gradients that the capture found.
    """

    watches: ClassVar[str] = "the gradients that a graph adds to"
    is_memory: ClassVar[bool] = False
    advice: ClassVar[str] = "call zero_grad(set_to_none=False)"

    def __init__(self, expected: Gradients) -> None:
        pairs = [
            (weight, grad) for weight, grad in expected if grad is None or not has_address(grad)
        ]
        self._others = [weight for weight, _ in pairs], [grad for _, grad in pairs]
        there = [
            (weight, grad) for weight, grad in expected if grad is not None and has_address(grad)
        ]
        self._weights = [weight for weight, _ in there]
        self._lie_there = lie_where([grad for _, grad in there])
        # The memory is held, and no tensor: a graph looks at who holds those that it made.
        self._storages = [grad.untyped_storage() for _, grad in there]

    def check(self) -> Callable[[], bool]:
        """Return a function that says whether a replay finds gradients in this memory."""
        others, weights, lie_there = self._others, self._weights, self._lie_there

        def check() -> bool:
            if not _have(*others):
                return False
            gradients = list(map(_gradient_of, weights))
            return all(map(is_not, gradients, repeat(None))) and lie_there(gradients)

        return check


class GraphGradients:
    """What the capture of a graph did with the gradients of its weights.

    A graph writes to the memory that gradients had in the capture, also when the loop has set
    them to None since. A loop may keep a gradient: it gets memory of its own before the next
    replay. A loop may keep a view, such as `weight.grad.detach()`, which cannot: then the next step
    runs as written, and from then on gradients are handed out as copies.

    A step may give weights tensors of its own as gradients, such as views of a flat one that it
    keeps. These stay what and where they are.

    Args:
        before: weights and their gradients before the capture; those that they have now are the
            capture's own.
        cuts: gradients that each call between two segments of the graph finds.
        unused: ids of weights whose gradients a run as written did not use before it let them go.
        others: tensors that were there before the capture, beside these gradients.

    Attributes:
        expected: weights, and the gradients that every replay has to find.
    """

    def __init__(
        self,
        before: Gradients,
        cuts: Sequence[list[torch.Tensor | None]] = (),
        *,
        unused: Collection[int] = (),
        others: Iterable[torch.Tensor] = (),
    ) -> None:
        self.expected: Gradients = []
        self._weights: list[torch.Tensor] = []
        self._made: list[torch.Tensor | None] = []
        for weight, found in before:
            left = weight.grad
            # If one tensor took the place of another, the step began by letting go of the first,
            # or the proof fails.
            if found is None or left is found or (left is None and id(weight) not in unused):
                self.expected.append((weight, found))
            # Also if the step used them up: user code may read `.grad` after a replay.
            if left is not found:
                self._weights.append(weight)
                self._made.append(left)
        # What was there before is the loop's own, and stays where it is.
        there = {_memory_of(found) for _, found in before if found is not None}
        there |= set(map(_memory_of, others))
        own = [
            [
                tensor
                for tensor in tensors
                if tensor is not None and _memory_of(tensor) not in there
            ]
            for tensors in [*cuts, self._made]
        ]
        self._own = own[-1]
        self._lists: list[list[Any]] = [*cuts, self._made, *own]
        times = Counter(id(tensor) for tensors in self._lists for tensor in tensors)
        made = {id(tensor) for tensor in self._made}
        # What `getrefcount` says of each where nobody but its weight holds it.
        self._looked_at = [
            (tensors, [_UNHELD - 1 + times[key] + _HELD_BY_WEIGHT * (key in made) for key in keys])
            for tensors, keys in ((tensors, list(map(id, tensors))) for tensors in own)
        ]
        self._are_in_place = False
        self._are_copies = False
        self._storages, self._num_holders = _holders_of(chain.from_iterable(own))

    def let_go_of(self, before: Gradients) -> list[torch.Tensor]:
        """Return gradients that were there before, and whose values no replay may depend on."""
        expected = {id(weight) for weight, _ in self.expected}
        made = {_memory_of(gradient) for gradient in self._made if gradient is not None}
        return [
            found
            for weight, found in before
            if found is not None and id(weight) not in expected and _memory_of(found) not in made
        ]

    def have_no_views(self) -> bool:
        """Return whether nobody keeps a view of gradients, which a replay would overwrite.

        Once somebody did, gradients are handed out as copies.

        Sync: Does not block the host.
        """
        if list(map(_num_holders_of, self._storages)) == self._num_holders:
            return True
        self._are_copies = True
        return False

    def let_go(self) -> None:
        """Give memory of their own to gradients that somebody keeps from an earlier replay.

        Sync: Does not block the host.
        """
        self._are_in_place = not self._made or _have(self._weights, self._made)
        if not self._are_in_place:
            # Some may be gradients of their weights, and some not: make all alike.
            self._hand_out(self._made)
        for tensors, expected in self._looked_at:
            if list(map(getrefcount, tensors)) != expected:
                self._let_go_of(tensors, expected)
                self._are_in_place = False

    def _let_go_of(self, tensors: list[torch.Tensor], expected: Sequence[int]) -> None:
        counts = list(map(getrefcount, tensors))
        for kept, count, unheld in zip(list(tensors), counts, expected, strict=True):
            if count == unheld:
                continue
            ours = kept.detach()
            for part in self._lists:
                part[:] = [ours if tensor is kept else tensor for tensor in part]
            kept.data = kept.clone()
        self._storages, self._num_holders = _holders_of(chain.from_iterable(self._lists))

    def hand_out(self) -> None:
        """Give the weights the gradients that a replay made."""
        if self._are_copies:
            own = set(map(id, self._own))
            self._hand_out(
                [
                    made.clone() if made is not None and id(made) in own else made
                    for made in self._made
                ]
            )
        elif not self._are_in_place:
            self._hand_out(self._made)

    def _hand_out(self, gradients: list[torch.Tensor | None]) -> None:
        for weight, gradient in zip(self._weights, gradients, strict=True):
            weight.grad = gradient


def _count_of_one_in_a_list() -> int:
    """Return what `getrefcount` says of an object that one list alone holds."""
    (count,) = map(getrefcount, [object()])
    return count


def _count_for_a_weight() -> int:
    """Return what `getrefcount` says more of a tensor that is the gradient of a weight."""
    held = [torch.zeros(1)]
    weight = torch.nn.Parameter(torch.zeros(1))
    (before,) = map(getrefcount, held)
    weight.grad = held[0]
    (after,) = map(getrefcount, held)
    return after - before


_UNHELD = _count_of_one_in_a_list()
_HELD_BY_WEIGHT = _count_for_a_weight()


def _memory_of(tensor: torch.Tensor) -> int:
    """Return the same for tensors that share memory; None has no address."""
    return tensor.untyped_storage()._cdata if has_address(tensor) else id(tensor)


# There is no public way to ask how many tensors share a storage.
_num_holders_of: Callable[[int], int] = torch._C._storage_Use_Count


def _holders_of(tensors: Iterable[torch.Tensor | None]) -> tuple[list[int], list[int]]:
    """Return the storages of tensors, and how many tensors share each if these alone do.

    Torch counts all handles that Python has of a storage as one more. Gradients that are views of
    one tensor, as parts of a flat one are, hold it.
    """
    found = {id(tensor): tensor for tensor in tensors if tensor is not None}
    bases = [tensor._base for tensor in found.values()]
    found |= {id(base): base for base in bases if base is not None}
    shared = Counter(
        tensor.untyped_storage()._cdata for tensor in found.values() if has_address(tensor)
    )
    return list(shared), [count + 1 for count in shared.values()]


_gradient_of = attrgetter("grad")


def _have(weights: list[torch.Tensor], gradients: list[torch.Tensor | None]) -> bool:
    return are_the_same(gradients, list(map(_gradient_of, weights)))


def _leaves_behind(tensors: Any) -> Iterator[torch.Tensor]:
    """Return the weights to which a backward pass from these tensors adds gradients."""
    roots = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
    roots = [root for root in roots if isinstance(root, torch.Tensor)]
    yield from (root for root in roots if root.is_leaf and root.requires_grad)
    nodes: list[Any] = [root.grad_fn for root in roots]
    seen = set()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, torch.Tensor) and leaf.is_leaf:
            yield leaf
        nodes += (parent for parent, _ in node.next_functions)
