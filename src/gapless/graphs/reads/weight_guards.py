"""The weights that a step trains: where they lie, and the gradients that a graph finds."""

from __future__ import annotations

from itertools import repeat
from operator import attrgetter, is_not
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias

import torch
from torch.utils.weak import TensorWeakRef

from gapless.graphs.reads.addresses import lie_as_now, lie_where
from gapless.graphs.reads.same_tensors import are_the_same
from gapless.pipeline.tree.tensor_layout import has_address


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


class Guard(Protocol):
    """A guard on memory or numbers that a graph bakes in, and that the step's own code does not name.

    Its functions run before every replay: they have to be quick, and must never make the host wait.

    Attributes:
        watches: what the guard watches, in one line.
        is_memory: whether a graph reads memory that is not used any more after a change.
        advice: what to do if it changes too often.
    """

    watches: ClassVar[str]
    is_memory: ClassVar[bool]
    advice: ClassVar[str]

    def check(self) -> Callable[[], bool]:
        """Return a function that says whether all is still as it is now.

        Sync: The function does not block the host.
        """


# Weights, each with its gradient at one moment.
Gradients: TypeAlias = "list[tuple[torch.Tensor, torch.Tensor | None]]"


class KnownWeights:
    """The weights of a step's optimizers, those behind its backward passes, and others that get gradients.

    Args:
        optimizers: returns those that the step calls.
    """

    def __init__(self, optimizers: Callable[[], Iterable[torch.optim.Optimizer]]) -> None:
        self._optimizers = optimizers
        self._leaves: dict[int, TensorWeakRef] = {}

    def add_leaves_behind(self, tensors: Any) -> None:
        """Know the weights to which a backward pass from these tensors adds gradients."""
        self.add(_leaves_behind(tensors))

    def add(self, weights: Iterable[torch.Tensor]) -> None:
        """Know weights for as long as they are there."""
        for weight in weights:
            self._leaves[id(weight)] = TensorWeakRef(weight)

    def gradients(self) -> Gradients:
        """Return every weight with the gradient that it has now."""
        groups = [group for one in self._optimizers() for group in one.param_groups]
        weights = {id(weight): weight for group in groups for weight in group["params"]}
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
