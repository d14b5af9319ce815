"""Audits of a module that is captured in place: both of its passes, each as it comes.

The forward half is closed within the call: what the module writes is saved, the graph's forward pass
runs, all is put back, and the module runs as written, once. What that returns is handed out, each
output through a node of autograd of its own.

The backward half needs the gradients that really arrive. When the last of them has come to these
nodes, the graph's backward pass runs into copies, and autograd goes on with the call as written,
which is run once. The gradients that its uses of inputs and weights give are copied as they arrive, and
compared when there are as many as the graph gives. Nothing is put back between lines of the user's.

There is no verdict on the backward half if no backward pass comes, one of another kind, one that computes less or
a graph of gradients, or one in two parts.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from gapless.device.torch_private import current_graph_task
from gapless.graphs.modules.gradient_paths import PassedOn, watch_uses


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gapless.graphs.modules.forward_runs import Run
    from gapless.graphs.modules.left_behind import Outputs
    from gapless.graphs.modules.module_graph import ModuleGraph
    from gapless.graphs.proof.proof_verdict import Verdict
    from gapless.graphs.proof.same_results import Comparison


@dataclass(eq=False)
class BackwardHalf:
    """The backward pass of an audited call.

    Torch's nodes hold it, and it holds none of them: what it has found outlives it in `Found`.

    Attributes:
        run: its forward pass in the audit, whose memory the graph's backward pass reads.
        out_of_memory: called if there is no memory to compare them.
    """

    graph: ModuleGraph
    run: Run
    comparison: Comparison
    out_of_memory: Callable[[], None]
    found: Found = field(default_factory=lambda: Found())
    _given: dict[int, torch.Tensor] = field(default_factory=dict)
    _arrived: list[list[torch.Tensor]] = field(default_factory=list)
    _num_outs: int = 0
    _num_left: int = 0

    def watch(self, out: Outputs, inputs: Sequence[torch.Tensor]) -> Any:
        """Return what a call as written has returned and left, with its backward pass watched."""
        self._num_outs = len(out.leaves)
        leaves = [leaf for leaf in out.leaves if leaf.requires_grad]
        watch_uses(leaves, self.graph.paths.targets_of(inputs), self._take)
        outs = [
            PassedOn.apply(partial(self.note_given, number), leaf) if leaf.requires_grad else leaf
            for number, leaf in enumerate(out.leaves)
        ]
        return out.made_of(outs)

    def is_over(self) -> bool:
        """Return whether nothing more comes of it, as far as this thread can tell."""
        return self.found.is_over or self.run.is_left()

    def note_given(self, number: int, gradient: torch.Tensor | None) -> None:
        """Take the gradient of an output; launch the graph's backward pass behind the last of them."""
        if self.found.is_over:
            return
        if self.run.pass_number is None:
            self.run.pass_number = current_graph_task()
        is_another = self.run.is_left() or number in self._given or bool(self._arrived)
        if gradient is None or is_another or torch.is_grad_enabled():
            self._end()
            return
        self._given[number] = gradient
        if sorted(self._given) == self.graph.backward_pass.places:
            self._at_once(self._launch)

    def _launch(self) -> None:
        given = [self._given.get(number) for number in range(self._num_outs)]
        gradients = self.graph.audited_backward(self.run, given)
        if gradients is None:
            self._end()
            return
        self._given = {}
        self.comparison.take_replayed(gradients)
        self._arrived = [[] for _ in gradients]
        self._num_left = sum(self.graph.backward_pass.num_arrived)
        self._compare_the_last()

    def _take(self, target: int, gradient: torch.Tensor) -> None:
        """Take what a use of an input or a weight gives."""
        if self.found.is_over or not self._arrived or self.run.is_left():
            return

        def take() -> None:
            self._arrived[target].append(gradient.detach().clone())
            self._num_left -= 1
            self._compare_the_last()

        self._at_once(take)

    def _compare_the_last(self) -> None:
        if not self._num_left:
            self.found.verdict = self.comparison.verdict_on(self._arrived)
            self._end()

    def _at_once(self, part: Callable[[], None]) -> None:
        """Do a part of it, which must not raise for want of memory: it is not the user's."""
        try:
            part()
        except torch.OutOfMemoryError:
            self._end()
            self.out_of_memory()

    def _end(self) -> None:
        self.found.is_over = self.run.is_done = True
        self.run.inputs, self._given, self._arrived = [], {}, []


@dataclass
class Found:
    """What has come of a backward half: whether nothing more does, and the verdict on its gradients."""

    is_over: bool = False
    verdict: Verdict | None = None


class VerdictOnCall:
    """What the audit of a module's call has shown, once both halves have come.

    Args:
        leads_elsewhere: whether gradients of the call as written take other ways.
        backward: the backward half; None if the call has none.
    """

    def __init__(
        self, forward: Verdict, *, leads_elsewhere: bool, backward: BackwardHalf | None
    ) -> None:
        self._forward = forward
        self._leads_elsewhere = leads_elsewhere
        self._half = None if backward is None else weakref.ref(backward)
        self._found = None if backward is None else backward.found

    def arrived(self) -> bool:
        """Return whether the verdict is known."""
        if not self._forward.arrived():
            return False
        if self._found is None:
            return True
        half = None if self._half is None else self._half()
        # It dies with the nodes that would tell it of a backward pass.
        if not (self._found.is_over or half is None or half.is_over()):
            return False
        self._found.is_over = True
        return self._found.verdict is None or self._found.verdict.arrived()

    @property
    def holds(self) -> bool:
        """Whether the graph does what the module does, as far as it was compared."""
        return not self._leads_elsewhere and all(one.holds for one in self._verdicts())

    @property
    def is_whole(self) -> bool:
        """Whether the backward pass was compared, if there is one."""
        return self._found is None or self._found.verdict is not None

    @property
    def text(self) -> str:
        """What differs, in one line; empty if nothing does."""
        texts = [one.text for one in self._verdicts() if one.text]
        ways = ["gradients take other ways through the module as written than through a replay"]
        return "; ".join(texts + ways * self._leads_elsewhere)

    def _verdicts(self) -> list[Verdict]:
        found = None if self._found is None else self._found.verdict
        return [self._forward, *([] if found is None else [found])]
