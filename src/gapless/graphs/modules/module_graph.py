"""Both passes of a module as one graph: how they are launched, each in its turn.

Autograd sees one node, whose inputs are the module's and its weights. It sums and accumulates the
gradients itself, and calls hooks, as in a loop as written. So a tensor that is used several times
is an input as often, and gets what each use gives.

The forward pass leaves activations in the memory of the graph, which the backward pass reads and
uses up. If another forward pass came in between, or a backward pass is asked for that was not
captured, the call runs again as written from the inputs that were kept. It has to return what the
replay has returned: `.data` and fused optimizers change tensors and count no version.
"""

from __future__ import annotations

from itertools import chain, compress
from typing import TYPE_CHECKING, Any

import torch

from gapless.graphs.modules.forward_runs import Run
from gapless.graphs.modules.gradient_paths import CapturedPaths, repeated
from gapless.graphs.modules.module_refusals import CREATE_GRAPH, OTHER_GRADIENTS, SECOND_BACKWARD
from gapless.graphs.modules.run_again import RunAgain
from gapless.graphs.modules.seen_calls import Layout
from gapless.graphs.proof.device_state import RandomStates
from gapless.graphs.reads.addresses import share_memory
from gapless.graphs.replay.step_graph import StaticInputs
from gapless.graphs.replay.step_guards import StepGuards
from gapless.graphs.replay.tensor_copies import TensorCopies
from gapless.graphs.replay.versions import count_up
from gapless.graphs.replay.written_memory import WrittenMemory


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gapless.device.base import Graph
    from gapless.graphs.modules.backward_settings import Settings
    from gapless.graphs.modules.rehearsal import Passes, Rehearsal
    from gapless.graphs.reads.read_guards import ReadGuards
    from gapless.graphs.reads.weight_guards import Guard
    from gapless.graphs.refusal import Refusal
    from gapless.pipeline.tree.flatten import Tree


# Backward passes of another kind in a row, each of which runs the forward pass again.
_MOST_OTHERS = 3


class ModuleGraph:
    """Both passes of a module, captured for one kind of call.

    Args:
        graph: of two segments, one for each pass.
        written: tensors that the forward pass changes and that were there before.
        generators: of random numbers that are drawn from, beside the device's own.
        memory: guards on other weights.
        held: tensors that the graph reads or writes, whose memory must stay.
        repeats: whether a call gives the same bits twice.

    Attributes:
        counted: tensors whose versions a call counts up, each as often as it does.
        nondeterministic: operators of both passes that may give other bits each time.
    """

    changes_batch = False

    def __init__(
        self,
        graph: Graph,
        passes: Passes,
        call: Tree,
        rehearsal: Rehearsal,
        *,
        written: list[torch.Tensor],
        generators: Sequence[torch.Generator],
        reads: ReadGuards,
        memory: Sequence[Guard],
        held: Sequence[torch.Tensor],
        repeats: bool,
    ) -> None:
        leaves = passes.out.leaves
        outputs = passes.out.detached()
        outs = outputs.leaves
        weights, runs = rehearsal.weights, rehearsal.runs
        self.reads = reads
        self.guards = StepGuards(reads, memory)
        self.written = written
        self.generators = generators
        self.counted: list[torch.Tensor] = []
        self.nondeterministic: Sequence[str] = ()
        self.paths = CapturedPaths(
            leaves, passes.targets, weights=weights, needs_grad=rehearsal.needs_grad
        )
        self.backward_pass = BackwardPass(
            passes, self.paths.uses, runs.settings, rehearsal.expected
        )
        self._graph = graph
        self._written_memory = WrittenMemory(written)
        draws = bool(generators) or rehearsal.draws
        self._random = RandomStates(runs.device, generators, of_graphs=True) if draws else None
        self._held = held
        self._runs = runs
        self._is_refused = False
        self._inputs = StaticInputs(passes.inputs, passes.inputs)
        self._outs = TensorCopies(outs, apart=True)
        self._outputs, self.left = outputs, rehearsal.left
        self.again = RunAgain(
            call,
            runs,
            reads=reads,
            paths=self.paths,
            inputs=passes.inputs,
            outs=outs,
            written=written,
            held=held,
            generators=generators,
            random=self._random,
            repeats=repeats,
            left=self.left,
        )

    def can_take(self, leaves: Sequence[torch.Tensor]) -> bool:
        """Return whether a replay may come.

        No backward pass may read the graph's memory as it is, and no argument lie where the module writes.
        """
        return self._why_not_on(leaves) is None

    def _why_not_on(self, leaves: Sequence[torch.Tensor]) -> str | None:
        if self._is_refused or not self._runs.is_free():
            return "a replay would overwrite what the backward pass of an earlier call needs"
        if self._written_memory.holds_any(leaves):
            return "an argument lies in memory that the module writes"
        return None

    def why_not(self, tree: Tree) -> str | None:
        """Return why a replay would not do what the call as written does; None if it would."""
        wanted = [leaf for leaf in tree.leaves if leaf.requires_grad]
        if len(wanted) > 1 and share_memory(wanted):
            return "two arguments that require gradients share memory"
        return self._why_not_on(tree.leaves)

    def replay(self, tree: Tree, *, is_own: bool) -> Any:
        """Launch the forward pass on the arguments of a call; return what the call returns."""
        del is_own
        return self.replay_on(tree.leaves)

    def replay_on(self, inputs: list[torch.Tensor]) -> Any:
        """Launch the forward pass on the tensors of a call; return what the call returns."""
        before = TensorCopies(self.written).make() if self.written else []
        random = None if self._random is None else self._random.read()
        count_up(self.counted)
        paths = self.paths
        run = Run(inputs, self.again.versions_of_unsaved, random=random, written=before)
        edges = repeated(compress(inputs, paths.needs_grad), paths.uses) + paths.weight_edges
        if edges and torch.is_grad_enabled():
            outs = _apply(self, run, *edges)
            run.note_outs(outs)
        else:
            outs = self.launch_forward(run)
        return self.left.put(self._outputs.made_of(outs, inputs))

    def rehearse(self, inputs: list[torch.Tensor], given: Sequence[torch.Tensor | None]) -> Any:
        """Launch both passes; return their results in the graph's memory."""
        self._inputs.fill(inputs)
        self._graph.replay_segment(0)
        outs = self._outs.make()
        self.backward_pass.given.fill([_each_once(one) for one in given if one is not None])
        self._graph.replay_segment(1)
        return [outs, self.backward_pass.gradients]

    def launch_forward(self, run: Run) -> list[torch.Tensor]:
        """Launch the forward pass; return copies of what it leaves."""

        def launch() -> list[torch.Tensor]:
            self._inputs.fill([leaf.detach() for leaf in run.inputs])
            self._runs.begin(run)
            # Nobody needs the memory of a call without a backward pass.
            run.is_done = not self.backward_pass.places
            self._graph.replay_segment(0)
            return self._outs.make()

        return self._runs.side.launch(launch)

    # --- audits ---

    def audited_forward(self, run: Run) -> Any:
        """Launch the forward pass; return what the call returns and leaves, without gradients."""
        return self._outputs.made_of(self.launch_forward(run), run.inputs)

    def audited_backward(
        self, run: Run, given: Sequence[torch.Tensor | None]
    ) -> list[list[torch.Tensor]] | None:
        """Launch the backward pass; return what the uses of each target give, None if it cannot come.

        Random numbers are where they were.
        """
        if not self.backward_pass.is_for(given) or not self._runs.holds(run):
            return None
        states = None if self._random is None else self._random.read()
        try:
            return self.backward_pass.by_target(self._launch_backward(run, given))
        finally:
            if self._random is not None and states is not None:
                self._random.write(states)

    def all_read(self, call: Tree) -> list[torch.Tensor]:
        """Return the tensors that a call is known to read beside what was seen of the last watched one."""
        return [*call.leaves, *self._held, *self.reads.tensors, *self.paths.weights]

    def names_of_outs(self) -> list[str]:
        """Return names of the outputs."""
        return self._outputs.names()

    # --- what autograd is told ---

    def backward(
        self, run: Run, given: Sequence[torch.Tensor | None]
    ) -> Sequence[torch.Tensor | None]:
        """Return a gradient for each use of each target.

        Raises:
            RuntimeError: the call has to run again, and something that it reads has changed.

        Sync: Does not block the host, unless the call has to run again ("run_again").
        """
        if torch.is_grad_enabled():
            self._refuse(CREATE_GRAPH)
            return self._run_again(run, given, create_graph=True)
        if run.num_backwards:
            self._refuse(SECOND_BACKWARD)
        run.num_backwards += 1
        backward_pass = self.backward_pass
        if not backward_pass.is_for(given):
            backward_pass.num_others += 1
            if backward_pass.num_others > _MOST_OTHERS:
                self._refuse(OTHER_GRADIENTS)
            return self._run_again(run, given)
        backward_pass.num_others = 0
        if not self._runs.holds(run):
            return self._run_again(run, given)
        gradients = self._launch_backward(run, given)
        if backward_pass.gives_each_use:
            return gradients
        return self.paths.each_use(backward_pass.by_target(gradients))

    def _launch_backward(
        self, run: Run, given: Sequence[torch.Tensor | None]
    ) -> list[torch.Tensor]:
        def launch() -> list[torch.Tensor]:
            backward_pass = self.backward_pass
            backward_pass.given.fill([_each_once(one) for one in given if one is not None])
            run.is_done = True
            self._graph.replay_segment(1)
            return backward_pass.copies.make()

        return self._runs.side.launch_again(launch)

    def _run_again(
        self, run: Run, given: Sequence[torch.Tensor | None], *, create_graph: bool = False
    ) -> list[torch.Tensor | None]:
        is_newest = self._runs.is_newest(run)
        return self.paths.each_use(
            self.again.gradients(run, given, is_newest=is_newest, create_graph=create_graph)
        )

    def _refuse(self, refusal: Refusal) -> None:
        self._is_refused = True
        self._runs.report.refuse(refusal)


class BackwardPass:
    """What the captured backward pass reads, and what it gives.

    Attributes:
        places: numbers of the outputs that get a gradient.
        given: the gradients of outputs in the graph's memory, each element once.
        gradients: of each target, what its uses gave, in the graph's memory.
        gives_each_use: whether these are all of its uses.
        num_others: backward passes of another kind in a row.
    """

    def __init__(
        self,
        passes: Passes,
        uses: Sequence[int],
        settings: Settings,
        expected: tuple[Any, ...] | None,
    ) -> None:
        self._settings = settings
        self._expected = expected
        self.places = [number for number, one in enumerate(passes.given) if one is not None]
        given = [one for one in passes.given if one is not None]
        bases = list(map(_each_once, given))
        self.given = StaticInputs(bases, bases)
        self._layouts = list(map(Layout.of, given))
        # Without a backward pass, none for each target.
        self.gradients = passes.gradients
        self.num_arrived = list(map(len, passes.gradients)) or [0] * len(uses)
        self.gives_each_use = self.num_arrived == uses
        self.num_others = 0
        self.copies = TensorCopies(
            [gradient.detach() for gradient in chain.from_iterable(passes.gradients)], apart=True
        )

    @property
    def num_bytes(self) -> int:
        """Device memory of a copy of the gradients."""
        return sum(one.nbytes for some in self.gradients for one in some)

    def is_for(self, given: Sequence[torch.Tensor | None]) -> bool:
        """Return whether it was captured for such gradients of the outputs, and such settings."""
        if [number for number, one in enumerate(given) if one is not None] != self.places:
            return False
        if self._settings.now() != self._expected:
            return False
        found = [one for one in given if one is not None]
        layouts = list(map(Layout.of, found))
        return layouts == self._layouts and all(type(one) is torch.Tensor for one in found)

    def by_target(self, copies: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
        """Return copies as what the uses of each target give."""
        left = iter(copies)
        return [[next(left) for _ in range(num)] for num in self.num_arrived]


class _Replayed(torch.autograd.Function):
    """The node that stands for both passes."""

    @staticmethod
    def forward(
        ctx: Any, graph: ModuleGraph, run: Run, *targets: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """Launch the forward pass."""
        del targets
        outs = graph.launch_forward(run)
        ctx.graph, ctx.run = graph, run
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*graph.paths.without_gradient(outs))
        return tuple(outs)

    @staticmethod
    def backward(ctx: Any, *given: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        """Launch the backward pass."""
        return (None, None, *ctx.graph.backward(ctx.run, given))


# What `Function.apply` calls where no transform of torch.func is around.
_apply: Callable[..., Any] = super(torch.autograd.Function, _Replayed).apply


def _each_once(tensor: torch.Tensor) -> torch.Tensor:
    """Return a view of a tensor without the elements that lie where others lie, as `expand` lays them."""
    if 0 not in tensor.stride():
        return tensor
    pairs = zip(tensor.size(), tensor.stride(), strict=True)
    size = [min(size, 1) if stride == 0 else size for size, stride in pairs]
    return tensor.as_strided(size, tensor.stride())
