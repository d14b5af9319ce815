"""Run a call of a module again as written, from what was kept of its replay, for the sake of its backward pass."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from gapless.device.torch_modes import outside_watching_modes
from gapless.graphs.modules.forward_runs import versions_of
from gapless.graphs.modules.gradient_paths import gradients_by_use
from gapless.graphs.proof.device_state import DeviceState
from gapless.graphs.proof.proof_verdict import has_bits_of
from gapless.graphs.reads.addresses import address_of
from gapless.graphs.replay.alignment import clone_of
from gapless.graphs.replay.step_guards import failure_of_reads
from gapless.graphs.step_call import within_a_step
from gapless.pipeline.tree.tensor_layout import has_address


if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gapless.graphs.modules.forward_runs import Run, Runs
    from gapless.graphs.modules.gradient_paths import CapturedPaths
    from gapless.graphs.modules.left_behind import LeftBehind
    from gapless.graphs.proof.device_state import RandomStates
    from gapless.graphs.reads.read_guards import ReadGuards
    from gapless.pipeline.step import Call
    from gapless.pipeline.tree.flatten import Tree


@dataclass(eq=False)
class RunAgain:
    """Runs calls of one kind again.

    Attributes:
        written: tensors that the forward pass changes and that were there before.
        held: other tensors that the graph reads or writes.
        generators: of random numbers that it draws from, beside the device's own.
        random: the states of all generators that it draws from, None if it draws no numbers.
        repeats: whether a call gives the same bits twice.
        versions_of_unsaved: returns the versions of what the graph reads and nobody keeps for a run.
    """

    call: Tree
    runs: Runs
    reads: ReadGuards
    paths: CapturedPaths
    inputs: list[torch.Tensor]
    outs: list[torch.Tensor]
    written: list[torch.Tensor]
    held: Sequence[torch.Tensor]
    generators: Sequence[torch.Generator]
    random: RandomStates | None
    repeats: bool
    left: LeftBehind

    def __post_init__(self) -> None:
        self._forward, self._then = self.runs.forward, self.runs.settings.now()
        self.call = self.call.map(lambda leaf: leaf.new_empty(0))
        # What is written is kept for each run.
        known = set(map(address_of, [*self.written, *self.inputs]))
        read: dict[int, torch.Tensor] = {}
        for tensor in [*self.paths.weights, *self.held]:
            if has_address(tensor) and address_of(tensor) not in known:
                read.setdefault(address_of(tensor), tensor)
        self.versions_of_unsaved = versions_of(list(read.values()))

    def gradients(
        self,
        run: Run,
        given: Sequence[torch.Tensor | None],
        *,
        is_newest: bool,
        create_graph: bool = False,
    ) -> list[list[torch.Tensor]]:
        """Run a call again, and its backward pass; return what the uses of each target give.

        Args:
            run: the replay of its forward pass.
            given: the gradients of its outputs.
            is_newest: whether the graph's memory is as that replay has left it.
            create_graph: whether the gradients can be differentiated.

        Raises:
            RuntimeError: something that it reads has changed.

        Sync: Blocks the host ("run_again").
        """
        run.is_done = True
        inputs, changed = run.inputs, run.changed()
        if changed == "an argument" and is_newest and not create_graph:
            # The graph still has them.
            inputs, changed = list(map(clone_of, self.inputs)), ""
        if changed:
            raise _cannot_run_again(f"{changed} has been modified by an inplace operation")
        if not create_graph:
            inputs = self.paths.detached(inputs)
        with outside_watching_modes():
            leaves = self._run(run, inputs)
            if self.repeats:
                # After a later replay the memory has other outputs.
                outs = self.outs if is_newest else run.outs()
                pairs = zip(leaves, outs, given, strict=True)
                self._check_outs([(leaf, out) for leaf, out, one in pairs if one is not None])
        asked = [(leaf, one) for leaf, one in zip(leaves, given, strict=True) if one is not None]
        outputs, gradients = zip(*asked, strict=True)
        with within_a_step(), _without_hooks(self.paths.weights):
            return gradients_by_use(
                outputs, gradients, self.paths.targets_of(inputs), create_graph=create_graph
            )

    def _run(self, run: Run, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """Run the call as it was, and return what it returns."""
        with (
            within_a_step(),
            torch.enable_grad(),
            self._as_then(run),
            self.left.unchanged(),
            self.runs.settings.autocast_as(self._then),
        ):
            # Autograd leaves modes before it runs a node.
            failure = failure_of_reads(self.reads, in_environment=False)
            if failure is not None:
                raise _cannot_run_again(failure.text)
            call: Call = self.call.with_leaves(inputs).value
            return self.left.outputs(self._forward(*call.args, **call.kwargs), inputs).leaves

    def _check_outs(self, pairs: Sequence[tuple[torch.Tensor, torch.Tensor | None]]) -> None:
        """Check that a run as written returns what the replay has returned, as far as that is known."""
        with self.runs.host_waits.blocking("run_again"), torch.no_grad():
            is_alike = all(has_bits_of(leaf, out) for leaf, out in pairs if out is not None)
        if not is_alike:
            raise _cannot_run_again(
                "a weight, buffer or argument has been modified in a way that torch does not count, such "
                "as by `.data` or a fused optimizer,"
            )

    @contextmanager
    def _as_then(self, run: Run) -> Iterator[None]:
        """Let random numbers and what the call writes be in the body as they were before it."""
        now = DeviceState(self.written, self.runs.device, generators=self.generators)
        now.save()
        try:
            with torch.no_grad():
                for tensor, value in zip(self.written, run.written, strict=True):
                    tensor.detach().copy_(value)
            if self.random is not None and run.random is not None:
                self.random.write(run.random)
            yield
        finally:
            now.restore()
            now.forget()


def _cannot_run_again(text: str) -> RuntimeError:
    return RuntimeError(
        f"{text} before a backward pass of a captured module that has to run its forward pass "
        "again; release the module, or do so after the backward pass"
    )


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
