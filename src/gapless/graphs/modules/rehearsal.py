"""Run both passes of a module's call on copies, with gradients that are made up.

Nothing of the user's gets a gradient, and no hook is called.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from gapless.graphs.modules.gradient_paths import gradients_by_use
from gapless.graphs.modules.module_refusals import OTHER_LAYERS, OTHER_SETTINGS
from gapless.graphs.modules.stand_ins import with_stand_ins
from gapless.graphs.reads.touched import span_of
from gapless.graphs.refusal import Refused
from gapless.graphs.replay.alignment import aligned_as, clone_of, memory_at
from gapless.graphs.step_call import cannot_return, cannot_return_from_host, within_a_step
from gapless.pipeline.tree.tensor_layout import misalignment


if TYPE_CHECKING:
    from collections.abc import Callable

    from gapless.graphs.modules.forward_runs import Runs
    from gapless.graphs.modules.left_behind import LeftBehind, Outputs
    from gapless.graphs.modules.seen_calls import Given, Layout
    from gapless.pipeline.step import Call
    from gapless.pipeline.tree.flatten import Tree


@dataclass
class Passes:
    """What both passes of a call have used and left.

    Attributes:
        inputs: the tensors that the forward pass reads its arguments from.
        given: the gradients of the tensors in it that the backward pass reads, None for others.
        targets: what gets gradients: inputs first, and weights.
        gradients: of each target, what its uses gave, in the order of their arrival.
    """

    inputs: list[torch.Tensor]
    out: Outputs
    given: list[torch.Tensor | None]
    targets: list[torch.Tensor]
    gradients: list[list[torch.Tensor]]


class Rehearsal:
    """Runs both passes of a call on copies, with weights in the same memory.

    Autograd and autocast take the weights of each run for others: no hook is called, and no cast
    is found that a run before has made.
    """

    def __init__(
        self,
        runs: Runs,
        tree: Tree,
        given: Given,
        weights: list[torch.Tensor],
        *,
        needs_grad: tuple[bool, ...],
        left: LeftBehind,
    ) -> None:
        self.runs = runs
        self.left = left
        self.expected = given.settings
        self._tree = tree.map(_copy)
        self.weights = weights
        self.needs_grad = needs_grad
        self.gradients = [
            None if layout is None else _made_up(layout, runs.device.torch_device)
            for layout in given.layouts
        ]
        self.draws = False

    def memory(self) -> tuple[Tree, list[torch.Tensor | None]]:
        """Return memory for the tensors of a call, and for the gradients of its outputs."""
        given = [None if one is None else _like(one) for one in self.gradients]
        return self._tree.map(_copy), given

    def passes(
        self,
        static: Tree,
        given: list[torch.Tensor | None],
        between: Callable[[], object] = lambda: None,
        *,
        stand_ins: bool = True,
    ) -> Passes:
        """Run both passes; return what they have used and left.

        Args:
            static: the call.
            given: the gradients of its outputs.
            between: called between the passes.
            stand_ins: whether other parameters stand in the module.

        Raises:
            Refused: the call returns what no graph can.
        """
        # One that is given twice stays one.
        detached = {id(leaf): leaf.detach() for leaf in static.leaves}
        inputs = [
            detached[id(leaf)].requires_grad_(needs)
            for leaf, needs in zip(static.leaves, self.needs_grad, strict=True)
        ]
        standing = (
            with_stand_ins(self.runs.module, self.weights)
            if stand_ins
            else nullcontext(self.weights)
        )
        with within_a_step(), standing as weights, torch.enable_grad():
            call: Call = static.with_leaves(inputs).value
            out = self.left.outputs(self.runs.forward(*call.args, **call.kwargs), inputs)
            if out.unknown:
                raise Refused(cannot_return(out.unknown[0]))
            if any(map(self.runs.device.needs_copy, out.leaves)):
                raise Refused(cannot_return_from_host())
            between()
            pairs = [
                (leaf, gradient)
                for leaf, gradient in zip(out.leaves, given, strict=True)
                if gradient is not None
            ]
            targets = [leaf for leaf in inputs if leaf.requires_grad] + weights
            arrived: list[list[torch.Tensor]] = []
            if pairs:
                outputs, gradients = zip(*pairs, strict=True)
                found: list[tuple[Any, ...]] = []
                outputs[0].grad_fn.register_prehook(
                    lambda _: found.append(self.runs.settings.now())
                )
                with self.runs.settings.autocast_as(self.expected):
                    arrived = gradients_by_use(outputs, gradients, targets)
                if found != [self.expected]:
                    raise Refused(OTHER_SETTINGS if found else OTHER_LAYERS)
        return Passes(
            inputs=static.leaves, out=out, given=given, targets=targets, gradients=arrived
        )

    def memory_of_all(self) -> list[torch.Tensor]:
        """Return the tensors that a run finds in memory, beside the module's."""
        return [*self._tree.leaves, *[one for one in self.gradients if one is not None]]

    def run(self) -> Any:
        """Run both passes as written; return their results, to be compared.

        The weights are the module's own: code may find them where no other can stand.
        """
        passes = self.passes(self._tree.map(_copy), self.gradients, stand_ins=False)
        return [[leaf.detach() for leaf in passes.out.leaves], passes.gradients]

    def warm_up(self) -> None:
        """Run both passes as they are captured, and see whether they draw random numbers."""
        states = self.runs.device.random_state(), torch.get_rng_state()
        self.passes(self._tree.map(_copy), self.gradients)
        after = self.runs.device.random_state(), torch.get_rng_state()
        self.draws = any(
            one is not None and other is not None and not torch.equal(one, other)
            for one, other in zip(states, after, strict=True)
        )


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return clone_of(tensor.detach())


def _like(tensor: torch.Tensor) -> torch.Tensor:
    """Return memory of the same layout."""
    start, end = span_of(tensor)
    count = max(1, (end - start) // tensor.element_size())
    room = memory_at(count, misalignment(tensor), like=tensor)
    return room.as_strided(tensor.size(), tensor.stride())


def _made_up(layout: Layout, device: torch.device) -> torch.Tensor:
    """Return a gradient that is unlike in all places, of no generator."""
    pairs = zip(layout.size, layout.stride, strict=True)
    count = 1 + sum((size - 1) * stride for size, stride in pairs if size)
    ramp = torch.arange(count, device=device, dtype=torch.float32)
    values = ramp.remainder_(1009).sin_().to(layout.dtype)
    return aligned_as(values.as_strided(layout.size, layout.stride), layout.misalignment)
