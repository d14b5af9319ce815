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

import weakref
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, compress, count, repeat
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import torch

from gapless.device.torch_modes import outside_watching_modes
from gapless.device.torch_private import current_graph_task
from gapless.graphs.modules.gradient_paths import (
    GradientPaths,
    gradients_by_use,
    nodes_behind,
    uses_of,
)
from gapless.graphs.proof.device_state import DeviceState, DrawnFrom
from gapless.graphs.proof.same_results import has_bits_of
from gapless.graphs.reads.addresses import address_of, share_memory
from gapless.graphs.reads.guard_rows import GuardRows
from gapless.graphs.refusal import Refusal
from gapless.graphs.replay.alignment import clone_of
from gapless.graphs.replay.results import rebuilt
from gapless.graphs.replay.step_graph import StaticInputs
from gapless.graphs.replay.step_guards import Failure, failure_of_reads
from gapless.graphs.replay.tensor_copies import TensorCopies
from gapless.graphs.replay.versions import count_up, version_of
from gapless.graphs.replay.written_memory import WrittenMemory
from gapless.graphs.step_call import within_a_step
from gapless.pipeline.tree.flatten import flatten
from gapless.pipeline.tree.tensor_layout import has_address, misalignment


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gapless.device.base import Device, Graph
    from gapless.graphs.capture_report import CaptureReport
    from gapless.graphs.modules.backward_settings import Settings
    from gapless.graphs.reads.guards import Guard
    from gapless.graphs.reads.read_guards import ReadGuards
    from gapless.graphs.side_stream import SideStream
    from gapless.pipeline.host_waits import HostWaits
    from gapless.pipeline.step import Call
    from gapless.pipeline.tree.flatten import Tree


CREATE_GRAPH = Refusal(
    "create_graph",
    "a backward pass with create_graph=True differentiates gradients, which no graph brings along: gradients "
    "of this one step are added up in another order than as written, and later calls run as written",
    name="create_graph",
)
SECOND_BACKWARD = Refusal(
    "retain_graph",
    "a second backward pass of one forward pass (retain_graph=True) reads what the first has used up",
    name="retain_graph",
)


_OTHER_GRADIENTS = Refusal(
    "gradient_outside",
    "backward passes are not those that the calls before the capture had: of other outputs, of "
    "other strides, or in autocast; keep to one kind, or capture the step",
    name="other gradients",
    is_of_call=True,
)

_version_of = attrgetter("_version")

# Backward passes of another kind in a row, each of which runs the forward pass again.
_MOST_OTHERS = 3


@dataclass
class Passes:
    """What both passes of a call have used and left.

    Attributes:
        inputs: the tensors that the forward pass reads its arguments from.
        out: what it returned.
        given: the gradients of the tensors in it that the backward pass reads, None for others.
        targets: what gets gradients: inputs first, and weights.
        gradients: of each target, what its uses gave, in the order of their arrival.
    """

    inputs: list[torch.Tensor]
    out: Tree
    given: list[torch.Tensor | None]
    targets: list[torch.Tensor]
    gradients: list[list[torch.Tensor]]


@dataclass
class Saved:
    """What autograd saves of a call as written for its backward pass, and so guards.

    Attributes:
        inputs: numbers of arguments.
        outs: numbers of outputs.
        tensors: weights and others that were there before.
    """

    inputs: list[int]
    outs: list[int]
    tensors: list[torch.Tensor]


class Runs:
    """The forward passes of all graphs of a module, which share their memory.

    Args:
        side: launches replays in order with captures.
        report: of the module.

    Attributes:
        side: as given.
    """

    def __init__(self, side: SideStream, report: CaptureReport) -> None:
        self.side = side
        self._report = report
        self._newest: weakref.ref[Run] | None = None

    def refuse(self, refusal: Refusal) -> None:
        """Add a reason to the report."""
        self._report.refuse(refusal)

    def note(self, text: str) -> None:
        """Add what else is worth knowing to the report."""
        self._report.note = text

    def is_free(self) -> bool:
        """Return whether no backward pass can come that reads the memory as it is now."""
        run = self._newest_run()
        return run is None or run.is_done or run.is_left()

    def holds(self, run: Run) -> bool:
        """Return whether the memory is as the forward pass of a run has left it."""
        return not run.is_done and self._newest_run() is run

    def is_newest(self, run: Run) -> bool:
        """Return whether no forward pass came after that of a run."""
        return self._newest_run() is run

    def begin(self, run: Run) -> None:
        """Let a run have the memory."""
        self._newest = weakref.ref(run)

    def _newest_run(self) -> Run | None:
        return None if self._newest is None else self._newest()


class ModuleGuards:
    """All that has to hold before a replay.

    Attributes:
        rows: say whether all of it holds.
        hold: returns whether all of it holds; it does not block the host, and raises nothing.
    """

    def __init__(self, reads: ReadGuards, memory: Sequence[Guard]) -> None:
        self._reads = reads
        self._checks = [(guard.check(), guard) for guard in memory]
        self.rows = GuardRows(reads.rows.asked)
        self.rows.add_all(reads.rows)
        for check, guard in self._checks:
            self.rows.hold_too(guard.watches, [check])
        self.hold: Callable[[], bool] = self.rows.hold

    def failure(self) -> Failure | None:
        """Return the first that does not hold, None if all do.

        Sync: Does not block the host.
        """
        failure = failure_of_reads(self._reads)
        if failure is not None:
            return failure
        for check, guard in self._checks:
            if not check():
                return Failure(guard.watches, guard.is_memory, guard.advice)
        return None


class ModuleGraph:
    """Both passes of a module, captured for one kind of call.

    Args:
        graph: of two segments, one for each pass.
        passes: what they have used and left.
        call: of this kind.
        forward: of the module, as written.
        weights: that get gradients.
        saved: what autograd saves as written.
        written: tensors that the forward pass changes and that were there before.
        draws: whether random numbers are drawn.
        generators: of random numbers that they are drawn from, beside the device's own.
        reads: what the module's code reads.
        memory: guards on other weights.
        held: tensors that the graph reads or writes, whose memory must stay.
        device: where it runs.
        runs: of all graphs of the module.
        needs_grad: which inputs need gradients.
        settings: reads torch's settings.
        expected: those in the backward pass.
        host_waits: the door for the wait of a call that runs again.
        repeats: whether a call gives the same bits twice.

    Attributes:
        weights: as given.
        written: as given.
        generators: as given.
        places: numbers of the outputs that get a gradient.
        counted: tensors whose versions a call counts up, each as often as it does.
        nondeterministic: operators of both passes that may give other bits each time.
    """

    changes_batch = False

    def __init__(
        self,
        graph: Graph,
        passes: Passes,
        *,
        call: Tree,
        forward: Callable[..., Any],
        weights: list[torch.Tensor],
        saved: Saved,
        written: list[torch.Tensor],
        draws: bool,
        generators: Sequence[torch.Generator],
        reads: ReadGuards,
        memory: Sequence[Guard],
        held: Sequence[torch.Tensor],
        device: Device,
        runs: Runs,
        needs_grad: tuple[bool, ...],
        settings: Settings,
        expected: tuple[Any, ...] | None,
        host_waits: HostWaits,
        repeats: bool,
    ) -> None:
        self._settings = settings
        self._host_waits = host_waits
        self._repeats = repeats
        self._expected = expected
        self.reads = reads
        self.guards = ModuleGuards(reads, memory)
        self._graph = graph
        self._call = call.map(lambda leaf: leaf.new_empty(0))
        self._forward = forward
        self.weights = weights
        self._saved = saved
        self.written = written
        self.counted: list[torch.Tensor] = []
        self.nondeterministic: Sequence[str] = ()
        self._written_memory = WrittenMemory(written)
        self._read = reads.ids_of_tensors()
        # What is written is kept for each run.
        known = set(map(address_of, [*written, *passes.inputs]))
        read: dict[int, torch.Tensor] = {}
        for tensor in [*weights, *held]:
            if has_address(tensor) and address_of(tensor) not in known:
                read.setdefault(address_of(tensor), tensor)
        self.versions_of_unsaved = _versions_of(list(read.values()))
        self.generators = generators
        self._random = DrawnFrom(device, generators) if draws else None
        self._held = held
        self._device = device
        self._runs = runs
        self._needs_grad = needs_grad
        self._is_refused = False
        self._then = settings.now()
        self._num_others = 0
        self._passes_inputs = passes.inputs
        self._inputs = StaticInputs(passes.inputs, passes.inputs)
        leaves = passes.out.leaves
        self._differentiable = [leaf.requires_grad for leaf in leaves]
        outs = [leaf.detach() for leaf in leaves]
        self._outs = outs
        self._out_copies = TensorCopies(outs, apart=True)
        self._value = passes.out.with_leaves(outs).value
        # Each use of an input or a weight is an input of the node.
        self.uses = uses_of([leaf for leaf in leaves if leaf.requires_grad], passes.targets)
        self.nodes = [nodes_behind([leaf], passes.targets) for leaf in leaves]
        self.places = [number for number, one in enumerate(passes.given) if one is not None]
        given = [one for one in passes.given if one is not None]
        bases = list(map(_each_once, given))
        self._given = StaticInputs(bases, bases)
        self._layouts = list(map(_layout_of, given))
        self._num_arrived = [len(arrived) for arrived in passes.gradients] or [0] * len(self.uses)
        arrived = [gradient.detach() for gradient in chain.from_iterable(passes.gradients)]
        self._weight_edges = _repeated(weights, self.uses[len(passes.targets) - len(weights) :])
        self._all_arrive = self._num_arrived == self.uses
        self._gradients = passes.gradients
        self._gradient_copies = TensorCopies(arrived, apart=True)

    def can_take(self, leaves: Sequence[torch.Tensor]) -> bool:
        """Return whether a replay may come.

        No backward pass may read the graph's memory as it is, and no argument lie where the module writes. Nor may
        code that compares objects read an argument by another way as well.

        Sync: Does not block the host.
        """
        return self._why_not_on(leaves) is None

    def _why_not_on(self, leaves: Sequence[torch.Tensor]) -> str | None:
        if self._is_refused or not self._runs.is_free():
            return "a replay would overwrite what the backward pass of an earlier call needs"
        if self._written_memory.holds_any(leaves):
            return "an argument lies in memory that the module writes"
        if not self._read.isdisjoint(map(id, leaves)):
            return "a tensor is both an argument and elsewhere, and the module compares it by `is`"
        return None

    def why_not(self, tree: Tree) -> str | None:
        """Return why a replay would not do what the call as written does; None if it would."""
        wanted = [leaf for leaf in tree.leaves if leaf.requires_grad]
        if len(wanted) > 1 and share_memory(wanted):
            return "two arguments that require gradients share memory"
        return self._why_not_on(tree.leaves)

    def replay(self, tree: Tree, *, is_own: bool) -> Any:
        """Launch the forward pass on the arguments of a call; return what the call returns.

        Sync: Does not block the host.
        """
        del is_own
        return self.replay_on(tree.leaves)

    def replay_on(self, inputs: list[torch.Tensor]) -> Any:
        """Launch the forward pass on the tensors of a call; return what the call returns.

        Sync: Does not block the host.
        """
        before = TensorCopies(self.written).make() if self.written else []
        random = None if self._random is None else self._random.read()
        count_up(self.counted)
        run = Run(self, inputs, random=random, written=before)
        targets = list(compress(inputs, self._needs_grad))
        edges = _repeated(targets, self.uses) + self._weight_edges
        if edges and torch.is_grad_enabled():
            outs = _apply(run, *edges)
            run.note_outs(outs)
        else:
            outs = self.launch_forward(run)
        return rebuilt(self._value, iter(outs))

    def rehearse(self, inputs: list[torch.Tensor], given: Sequence[torch.Tensor | None]) -> Any:
        """Launch both passes; return their results in the graph's memory.

        Sync: Does not block the host.
        """
        self._inputs.fill(inputs)
        self._graph.replay_segment(0)
        outs = self._out_copies.make()
        self._given.fill([_each_once(one) for one in given if one is not None])
        self._graph.replay_segment(1)
        return [outs, self._gradients]

    def launch_forward(self, run: Run) -> list[torch.Tensor]:
        """Launch the forward pass; return copies of what it leaves.

        Sync: Does not block the host.
        """

        def launch() -> list[torch.Tensor]:
            self._inputs.fill([leaf.detach() for leaf in run.inputs])
            self._runs.begin(run)
            self._graph.replay_segment(0)
            return self._out_copies.make()

        return self._runs.side.launch(launch)

    # --- audits ---

    def audited_forward(self, run: Run) -> Any:
        """Launch the forward pass; return what the call returns, without gradients.

        Sync: Does not block the host.
        """
        return rebuilt(self._value, iter(self.launch_forward(run)))

    def audited_backward(
        self, run: Run, given: Sequence[torch.Tensor | None]
    ) -> list[list[torch.Tensor]] | None:
        """Launch the backward pass; return what the uses of each target give, None if it cannot come.

        Random numbers are where they were.

        Sync: Does not block the host.
        """
        if not self._is_captured_for(given) or not self._runs.holds(run):
            return None
        states = None if self._random is None else self._random.read()
        try:
            copies = iter(self._launch_backward(run, given))
            return [[next(copies) for _ in range(num)] for num in self._num_arrived]
        finally:
            if self._random is not None and states is not None:
                self._random.write(states)

    @property
    def num_gradients(self) -> int:
        """How many gradients a backward pass gives, each use of a target counted."""
        return sum(self._num_arrived)

    @property
    def gradient_bytes(self) -> int:
        """Device memory of a copy of these."""
        return sum(one.nbytes for some in self._gradients for one in some)

    def all_read(self, call: Tree) -> list[torch.Tensor]:
        """Return the tensors that a call is known to read beside what was seen of the last watched one."""
        return [*call.leaves, *self._held, *self.reads.tensors, *self.weights]

    def targets_of(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return what gets gradients in a call."""
        return [*compress(inputs, self._needs_grad), *self.weights]

    def leads_elsewhere(
        self, outs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], *, since: int
    ) -> bool:
        """Return whether gradients of a call as written take other ways than those of the graph.

        Args:
            outs: of the call.
            inputs: of it.
            since: the number of its first node.
        """
        if [one.requires_grad for one in outs] != self._differentiable:
            return True
        wanted, targets = list(compress(inputs, self._needs_grad)), self.targets_of(inputs)
        leaves = [one for one in outs if one.requires_grad]
        paths = GradientPaths.of(leaves, wanted, since=since)
        if paths.objection or not set(map(id, paths.weights)) <= set(map(id, self.weights)):
            return True
        return uses_of(leaves, targets) != self.uses

    def name_results(self, names: Sequence[str]) -> list[str]:
        """Return names of the outputs, and of what the uses of each target give.

        Args:
            names: of the weights.
        """
        num_inputs = len(self.uses) - len(self.weights)
        numbers = compress(count(1), self._needs_grad)
        targets = [*(f"argument {number}" for number in numbers), *names]
        assert len(targets) == num_inputs + len(self.weights)
        outs = [f"output {number}" for number in range(1, len(self._outs) + 1)]
        return outs + [
            f"the gradient of {name}" + (f" by use {use}" if num > 1 else "")
            for name, num in zip(targets, self._num_arrived, strict=True)
            for use in range(1, num + 1)
        ]

    # --- what autograd is told ---

    def saved_of(self, run: Run, outs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the tensors that autograd saves as written, and guards so."""
        saved = self._saved
        return [
            *[run.inputs[number] for number in saved.inputs],
            *[outs[number] for number in saved.outs],
            *saved.tensors,
        ]

    def outs_without_gradient(self, outs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return those of the outputs that need no gradient."""
        return [out for out, needs in zip(outs, self._differentiable, strict=True) if not needs]

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
            return self._flat(self._as_written(run, given, create_graph=True))
        if run.num_backwards:
            self._refuse(SECOND_BACKWARD)
        run.num_backwards += 1
        if not self._is_captured_for(given):
            self._num_others += 1
            if self._num_others > _MOST_OTHERS:
                self._refuse(_OTHER_GRADIENTS)
            return self._flat(self._as_written(run, given))
        self._num_others = 0
        if not self._runs.holds(run):
            return self._flat(self._as_written(run, given))
        gradients = self._launch_backward(run, given)
        if self._all_arrive:
            return gradients
        copies = iter(gradients)
        return self._flat([[next(copies) for _ in range(num)] for num in self._num_arrived])

    def _launch_backward(
        self, run: Run, given: Sequence[torch.Tensor | None]
    ) -> list[torch.Tensor]:
        def launch() -> list[torch.Tensor]:
            self._given.fill([_each_once(one) for one in given if one is not None])
            run.is_done = True
            self._graph.replay_segment(1)
            return self._gradient_copies.make()

        return self._runs.side.launch_again(launch)

    def _is_captured_for(self, given: Sequence[torch.Tensor | None]) -> bool:
        if [number for number, one in enumerate(given) if one is not None] != self.places:
            return False
        if self._settings.now() != self._expected:
            return False
        found = [one for one in given if one is not None]
        layouts = list(map(_layout_of, found))
        return layouts == self._layouts and all(type(one) is torch.Tensor for one in found)

    def _flat(self, arrived: Sequence[Sequence[torch.Tensor]]) -> list[torch.Tensor | None]:
        found: list[torch.Tensor | None] = []
        for num, some in zip(self.uses, arrived, strict=True):
            found += [*some, *[None] * (num - len(some))]
        return found

    def _refuse(self, refusal: Refusal) -> None:
        self._is_refused = True
        self._runs.refuse(refusal)

    def _as_written(
        self, run: Run, given: Sequence[torch.Tensor | None], *, create_graph: bool = False
    ) -> list[list[torch.Tensor]]:
        """Run the call again as written, from what was kept, and its backward pass."""
        is_newest = self._runs.is_newest(run)
        run.is_done = True
        inputs, changed = run.inputs, run.changed()
        if changed == "an argument" and is_newest and not create_graph:
            # The graph still has them.
            kept = self._passes_inputs
            inputs, changed = list(map(clone_of, kept)), ""
        if changed:
            raise _cannot_run_again(f"{changed} has been modified by an inplace operation")
        if not create_graph:
            inputs = [
                leaf.detach().requires_grad_(needs)
                for leaf, needs in zip(inputs, self._needs_grad, strict=True)
            ]
        with outside_watching_modes():
            leaves = self._run_again(run, inputs)
            if self._repeats:
                # After a later replay the memory has other outputs.
                outs = self._outs if is_newest else run.outs()
                wanted_outs = [
                    None if one is None else out for out, one in zip(outs, given, strict=True)
                ]
                self._check_outs(leaves, wanted_outs)
        pairs = [(leaf, one) for leaf, one in zip(leaves, given, strict=True) if one is not None]
        wanted = [leaf for leaf, needs in zip(inputs, self._needs_grad, strict=True) if needs]
        outputs, gradients = zip(*pairs, strict=True)
        with within_a_step(), _without_hooks(self.weights):
            return gradients_by_use(
                outputs, gradients, [*wanted, *self.weights], create_graph=create_graph
            )

    def _run_again(self, run: Run, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """Run the call again as it was, and return what it returns."""
        with (
            within_a_step(),
            torch.enable_grad(),
            self._as_then(run),
            self._settings.autocast_as(self._then),
        ):
            # Autograd leaves modes before it runs a node.
            failure = failure_of_reads(self.reads, in_environment=False)
            if failure is not None:
                raise _cannot_run_again(failure.text)
            call: Call = self._call.with_leaves(inputs).value
            return flatten(self._forward(*call.args, **call.kwargs)).leaves

    def _check_outs(
        self, leaves: Sequence[torch.Tensor], outs: Sequence[torch.Tensor | None]
    ) -> None:
        """Check that a run as written returns what the replay has returned, as far as that is known."""
        pairs = [(leaf, out) for leaf, out in zip(leaves, outs, strict=True) if out is not None]
        with self._host_waits.blocking("run_again"), torch.no_grad():
            is_alike = all(has_bits_of(leaf, out) for leaf, out in pairs)
        if not is_alike:
            raise _cannot_run_again(
                "a weight, buffer or argument has been modified in a way that torch does not count, such "
                "as by `.data` or a fused optimizer,"
            )

    @contextmanager
    def _as_then(self, run: Run) -> Iterator[None]:
        """Let random numbers and what the call writes be in the body as they were before it."""
        now = DeviceState(self.written, self._device, generators=self.generators)
        now.save()
        try:
            with torch.no_grad():
                for tensor, value in zip(self.written, run.written, strict=True):
                    tensor.detach().copy_(value)
            if self._random is not None and run.random is not None:
                self._random.write(run.random)
            yield
        finally:
            now.restore()
            now.forget()


def _cannot_run_again(text: str) -> RuntimeError:
    return RuntimeError(
        f"{text} before a backward pass of a captured module that has to run its forward pass "
        "again; release the module, or do so after the backward pass"
    )


class Run:
    """One forward pass by a graph, whose backward pass may come.

    Attributes:
        inputs: the arguments' tensors.
        random: the state of random numbers before it, None if it draws none.
        written: copies of what it has changed, from before.
        is_done: whether its memory is used up.
        pass_number: of the backward pass that an audit sees, None before it.
        num_backwards: backward passes so far.
        nodes: numbers of the operations in them.
    """

    def __init__(
        self,
        graph: ModuleGraph,
        inputs: list[torch.Tensor],
        *,
        random: list[Any] | None,
        written: list[torch.Tensor],
    ) -> None:
        self.graph = graph
        self.inputs = inputs
        self.random = random
        self.written = written
        self.is_done = False
        self.pass_number: int | None = None
        self.num_backwards = 0
        self.nodes: set[int] = set()
        self._outs: list[tuple[weakref.ref[torch.Tensor], int]] = []
        self._versions_now = _versions_of(inputs)
        self._versions = self._versions_now()
        self._versions_of_unsaved = graph.versions_of_unsaved()

    def is_left(self) -> bool:
        """Return whether the backward pass that an audit sees is over in this thread."""
        return self.pass_number not in (None, current_graph_task())

    def is_apart(self, given: Sequence[torch.Tensor | None]) -> bool:
        """Return whether a further backward pass has no operation in common with those before."""
        nodes: set[int] = set()
        for number, one in enumerate(given):
            if one is not None:
                nodes |= self.graph.nodes[number]
        is_apart = self.num_backwards > 0 and not nodes & self.nodes
        self.nodes |= nodes
        return is_apart

    def note_outs(self, outs: Sequence[torch.Tensor]) -> None:
        """Remember what it has returned, as long as somebody else holds that."""
        self._outs = [(weakref.ref(out), version_of(out)) for out in outs]

    def outs(self) -> list[torch.Tensor | None]:
        """Return what it has returned; None for what is gone or was changed in place."""
        pairs = [(reference(), version) for reference, version in self._outs]
        return [
            out if out is not None and version_of(out) == version else None
            for out, version in pairs
        ]

    def changed(self) -> str:
        """Return what was changed since, "" if nothing."""
        if self._versions_now() != self._versions:
            return "an argument"
        if self.graph.versions_of_unsaved() != self._versions_of_unsaved:
            return "a weight or buffer"
        return ""


class _Replayed(torch.autograd.Function):
    """The node that stands for both passes."""

    @staticmethod
    def forward(ctx: Any, run: Run, *targets: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Launch the forward pass."""
        del targets
        outs = run.graph.launch_forward(run)
        ctx.run = run
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*run.graph.outs_without_gradient(outs))
        # Torch then tells whoever changes them before the backward pass, as it does as written.
        ctx.save_for_backward(*run.graph.saved_of(run, outs))
        return tuple(outs)

    @staticmethod
    def backward(ctx: Any, *given: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        """Launch the backward pass."""
        run: Run = ctx.run
        if not run.is_apart(given):
            ctx.saved_tensors  # noqa: B018  # raises if one was changed, or the pass was run before
        return (None, *run.graph.backward(run, given))


# What `Function.apply` calls where no transform of torch.func is around.
_apply: Callable[..., Any] = super(torch.autograd.Function, _Replayed).apply


def _repeated(tensors: Sequence[torch.Tensor], counts: Sequence[int]) -> list[torch.Tensor]:
    """Return each tensor as many times as it counts."""
    return list(chain.from_iterable(map(repeat, tensors, counts)))


@contextmanager
def _without_hooks(weights: Sequence[torch.Tensor]) -> Iterator[None]:
    """Let nobody call hooks of weights in the body: autograd does so later, with the sums."""
    hooks = [(weight, weight._backward_hooks) for weight in weights if weight._backward_hooks]
    for weight, _ in hooks:
        weight._backward_hooks = None
    try:
        yield
    finally:
        for weight, known in hooks:
            weight._backward_hooks = known


def _layout_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tuple(tensor.size()), tensor.stride(), tensor.dtype, misalignment(tensor)


def _each_once(tensor: torch.Tensor) -> torch.Tensor:
    """Return a view of a tensor without the elements that lie where others lie, as `expand` lays them."""
    if 0 not in tensor.stride():
        return tensor
    pairs = zip(tensor.size(), tensor.stride(), strict=True)
    size = [min(size, 1) if stride == 0 else size for size, stride in pairs]
    return tensor.as_strided(size, tensor.stride())


def _versions_of(tensors: Sequence[torch.Tensor]) -> Callable[[], list[int]]:
    """Return a function that returns the versions of tensors; those of inference mode have none."""
    counted = [tensor for tensor in tensors if not tensor.is_inference()]
    return lambda: list(map(_version_of, counted))
