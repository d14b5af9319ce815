"""How the outputs of a call lead back to weights and inputs: the nodes that autograd has recorded.

A captured module takes part in a backward pass as one node, which is right only if nothing but the
call's own operations lies between its outputs and what it was given. So the nodes of a call as
written are looked at before it is captured.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from itertools import chain, compress, count, repeat
from typing import TYPE_CHECKING, Any

import torch

from gapless.graphs.reads.code_kinds import is_foreign
from gapless.graphs.reads.code_reads import reads_of


if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Sequence

    from torch.utils.hooks import RemovableHandle


@dataclass
class GradientPaths:
    """The nodes between the outputs of a call and what it was given.

    Attributes:
        weights: leaves that get a gradient, beside the inputs, in the order in which they are found.
        objection: why the call cannot be one node, "" if it can.
    """

    weights: list[torch.Tensor] = field(default_factory=list)
    objection: str = ""

    @classmethod
    def of(
        cls, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], *, since: int
    ) -> GradientPaths:
        """Follow the nodes of a call."""
        found = cls()
        leaves = {id(tensor) for tensor in inputs if tensor.grad_fn is None}
        edges = {(tensor.grad_fn, tensor.output_nr) for tensor in inputs if tensor.grad_fn}
        todo = [(tensor.grad_fn, tensor.output_nr) for tensor in outputs if tensor.grad_fn]
        if any(edge in edges or not is_new(edge[0], since) for edge in todo):
            found.objection = "it returns a tensor that it did not make"
            return found
        nodes: dict[Any, None] = dict.fromkeys(node for node, _ in todo)
        for node, _, edge in edges_behind(list(nodes), edges, since=since):
            nodes[node] = None
            weight = getattr(edge[0], "variable", None)
            if weight is not None and edge not in edges:
                if id(weight) not in leaves:
                    found.weights.append(weight)
                    leaves.add(id(weight))
            elif not (edge in edges or is_new(edge[0], since)):
                found.objection = (
                    "it uses a tensor that was computed outside of it, and is no argument: "
                    "a gradient goes there as well"
                )
        objections = filter(None, map(_objection_to_code_of, nodes))
        found.objection = found.objection or next(objections, "")
        return found


def gradients_by_use(
    outputs: Sequence[torch.Tensor],
    given: Sequence[torch.Tensor],
    targets: Sequence[torch.Tensor],
    *,
    create_graph: bool = False,
) -> list[list[torch.Tensor]]:
    """Run the backward pass of a call; return what autograd sums to the gradient of each target.

    Autograd sums what the uses of a tensor give in the order in which it arrives. Elsewhere it may
    be used as well, so it is not summed here.

    Returns:
        For each target what was given to it, in the order of its arrival.
    """
    arrived: list[list[torch.Tensor]] = [[] for _ in targets]
    handles = watch_uses(
        outputs, targets, lambda target, gradient: arrived[target].append(gradient)
    )
    try:
        torch.autograd.grad(outputs, targets, given, allow_unused=True, create_graph=create_graph)
    finally:
        for handle in handles:
            handle.remove()
    return arrived


def watch_uses(
    outputs: Sequence[torch.Tensor],
    targets: Sequence[torch.Tensor],
    take: Callable[[int, torch.Tensor], None],
) -> list[RemovableHandle]:
    """Call a function with the number of a target and each gradient that a use of it gives.

    It is called within backward passes, as the gradients arrive. Torch's nodes hold it, so it must not
    hold outputs of the call.

    Returns:
        What ends this.
    """
    return [
        node.register_hook(partial(_take, take, places))
        for node, places in _nodes_before(outputs, targets).items()
    ]


def uses_of(outputs: Sequence[torch.Tensor], targets: Sequence[torch.Tensor]) -> list[int]:
    """Return how many gradients are summed to that of each target, if all outputs have one."""
    found = [0] * len(targets)
    for places in _nodes_before(outputs, targets).values():
        for target in places.values():
            found[target] += 1
    return found


def _take(
    take: Callable[[int, torch.Tensor], None],
    places: dict[int, int],
    gradients: tuple[torch.Tensor | None, ...],
    _: Any,
) -> None:
    for place, target in places.items():
        gradient = gradients[place]
        if gradient is not None:
            take(target, gradient)


def _nodes_before(
    outputs: Sequence[torch.Tensor], targets: Sequence[torch.Tensor]
) -> dict[Any, dict[int, int]]:
    """Return the nodes that give gradients to targets: which of theirs goes to which target."""
    leaves = {id(tensor): number for number, tensor in enumerate(targets) if not tensor.grad_fn}
    edges: dict[Any, int] = {
        (tensor.grad_fn, tensor.output_nr): number
        for number, tensor in enumerate(targets)
        if tensor.grad_fn
    }
    found: dict[Any, dict[int, int]] = {}
    for node, place, edge in edges_behind(_nodes_of(outputs), edges):
        weight = getattr(edge[0], "variable", None)
        target = edges.get(edge) if weight is None else leaves.get(id(weight))
        if target is not None:
            found.setdefault(node, {})[place] = target
    return found


def _nodes_of(tensors: Iterable[torch.Tensor]) -> list[Any]:
    return [tensor.grad_fn for tensor in tensors if tensor.grad_fn]


def edges_behind(
    nodes: Iterable[Any], ends: Container[Any] = (), *, since: int | None = None
) -> Iterator[tuple[Any, int, Any]]:
    """Yield the edges of nodes and of all nodes behind them, each with its node and its place there.

    Args:
        nodes: to begin with.
        ends: edges behind which nothing is looked at.
        since: a number; nor is anything behind nodes with lower ones.
    """
    todo, seen = list(nodes), set[Any]()
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        for place, edge in enumerate(node.next_functions):
            if edge[0] is None:
                continue
            yield node, place, edge
            is_end = edge in ends or hasattr(edge[0], "variable")
            if not is_end and (since is None or is_new(edge[0], since)):
                todo.append(edge[0])


def is_new(node: Any, since: int) -> bool:
    """Return whether a node was recorded when the next one had this number, or later."""
    return bool(node._sequence_nr() >= since)


def _objection_to_code_of(node: Any) -> str:
    """Return what the user's own backward code changes in Python, "" if nothing."""
    kind = getattr(type(node), "_forward_cls", None)
    if kind is None or is_foreign(kind):
        return ""
    for name in ("backward", "vjp"):
        code = getattr(getattr(kind, name, None), "__code__", None)
        if code is None:
            continue
        own = code.co_varnames[:1]
        for store in reads_of(code).stores:
            roots = {chain.root for chain in store.bases if chain.kind == "argument"}
            if not (roots and roots <= set(own)):
                return (
                    f"the backward pass of {kind.__name__} changes {store.key} in Python, which a "
                    "replay would skip"
                )
    return ""


class CapturedPaths:
    """The ways that gradients take through a captured call, from its outputs to inputs and weights.

    Args:
        outs: outputs of the captured call, with their graph.
        targets: what gets gradients: its inputs first, and weights.
        weights: the module's own, in the place of these.

    Attributes:
        weight_edges: the weights, each as often as it is used.
        uses: how many gradients are summed to that of each target.
    """

    def __init__(
        self,
        outs: Sequence[torch.Tensor],
        targets: Sequence[torch.Tensor],
        *,
        weights: list[torch.Tensor],
        needs_grad: tuple[bool, ...],
    ) -> None:
        self.weights = weights
        self.uses = uses_of([leaf for leaf in outs if leaf.requires_grad], targets)
        self.needs_grad = needs_grad
        self._differentiable = [leaf.requires_grad for leaf in outs]
        self.weight_edges = repeated(weights, self.uses[len(targets) - len(weights) :])

    def targets_of(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return what gets gradients in a call."""
        return [*compress(inputs, self.needs_grad), *self.weights]

    def detached(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the inputs of a call as leaves."""
        pairs = zip(inputs, self.needs_grad, strict=True)
        return [leaf.detach().requires_grad_(needs) for leaf, needs in pairs]

    def without_gradient(self, outs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return those of the outputs that need no gradient."""
        return [out for out, needs in zip(outs, self._differentiable, strict=True) if not needs]

    def each_use(self, arrived: Sequence[Sequence[torch.Tensor]]) -> list[torch.Tensor | None]:
        """Return a gradient for each use of each target, None where none has arrived."""
        found: list[torch.Tensor | None] = []
        for num, some in zip(self.uses, arrived, strict=True):
            found += [*some, *[None] * (num - len(some))]
        return found

    def lead_elsewhere(
        self, outs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], *, since: int
    ) -> bool:
        """Return whether gradients of a call as written take other ways than these."""
        if [one.requires_grad for one in outs] != self._differentiable:
            return True
        leaves = [one for one in outs if one.requires_grad]
        paths = GradientPaths.of(leaves, list(compress(inputs, self.needs_grad)), since=since)
        if paths.objection or not set(map(id, paths.weights)) <= set(map(id, self.weights)):
            return True
        return uses_of(leaves, self.targets_of(inputs)) != self.uses

    def names_of_gradients(self, names: Sequence[str], numbers: Sequence[int]) -> list[str]:
        """Return names of the gradients that a backward pass gives."""
        places = compress(count(1), self.needs_grad)
        targets = [*(f"argument {place}" for place in places), *names]
        return [
            f"the gradient of {name}" + (f" by use {use}" if num > 1 else "")
            for name, num in zip(targets, numbers, strict=True)
            for use in range(1, num + 1)
        ]


def repeated(tensors: Iterable[torch.Tensor], counts: Sequence[int]) -> list[torch.Tensor]:
    """Return each tensor as many times as it counts."""
    return list(chain.from_iterable(map(repeat, tensors, counts)))


class PassedOn(torch.autograd.Function):
    """A node behind an output of a call as written: it passes gradients on as they are, and tells of them."""

    @staticmethod
    def forward(ctx: Any, note_given: Callable[[torch.Tensor | None], None], out: Any) -> Any:
        """Return the output: the same memory, whose versions are counted together."""
        ctx.note_given = note_given
        ctx.set_materialize_grads(False)
        return out.detach()

    @staticmethod
    def backward(ctx: Any, *given: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        """Note the gradient, and return it."""
        ctx.note_given(given[0])
        return None, given[0]
