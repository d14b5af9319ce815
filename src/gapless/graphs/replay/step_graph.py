"""One graph of a step: how it is launched, and what has to hold before."""

from __future__ import annotations

from bisect import bisect_right
from itertools import repeat
from operator import attrgetter, contains, itemgetter, mod
from typing import TYPE_CHECKING, Any

import torch

from gapless.graphs.reads.addresses import share_memory


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gapless.device.base import Graph
    from gapless.graphs.reads.read_guards import ReadGuards
    from gapless.graphs.replay.batch_changes import BatchChanges
    from gapless.graphs.replay.graph_gradients import GraphGradients
    from gapless.graphs.replay.kept_tensors import KeptTensors
    from gapless.graphs.replay.results import Results
    from gapless.graphs.replay.step_guards import StepGuards
    from gapless.graphs.replay.written_memory import WrittenMemory
    from gapless.graphs.updates.update_outside import CapturedUpdates
    from gapless.pipeline.tree.flatten import Tree


# Of these torch copies all tensors of one dtype in one launch.
_FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
_COPIED_TOGETHER = frozenset((*_FLOATS, *_INTEGERS))

_requires_grad = attrgetter("requires_grad")
_address_of = torch.Tensor.data_ptr

# Second arguments, as many as are asked for.
_TWOS, _STEPS = repeat(2), repeat("step")


class StepGraph:
    """A step that is captured for one kind of call.

    Args:
        graph: the captured work.
        inputs: the tensors that it reads a batch from.
        batch: the tensors that those are copies of.
        results: what the step returned in the capture; if it keeps tensors, with what it kept.
        gradients: what the capture did with them.
        updates: of the optimizers that the step calls.
        kept: tensors that the step keeps from call to call.
        changes: what the step does to its batch.
        guards: what has to hold before a replay.
        reads: what the step's code reads.
        held: tensors that the graph reads or writes, whose memory must stay.
        written: the memory among them that it writes.
        counted: tensors whose versions a run of the step counts up, each as often as it does.

    Attributes:
        gradients: as given.
        changes_batch: whether the step changes its batch, or returns a part of it that can be changed.
    """

    def __init__(
        self,
        graph: Graph,
        *,
        inputs: list[torch.Tensor],
        batch: list[torch.Tensor],
        results: Results,
        gradients: GraphGradients,
        updates: CapturedUpdates,
        kept: KeptTensors,
        changes: BatchChanges,
        guards: StepGuards,
        reads: ReadGuards,
        held: Sequence[torch.Tensor],
        written: WrittenMemory,
        counted: list[torch.Tensor],
    ) -> None:
        self.guards = guards
        self.reads = reads
        self._graph = graph
        self._inputs = StaticInputs(inputs, batch)
        self._results = results
        self.gradients = gradients
        self.updates = updates
        self._kept = kept
        self._changes = changes
        self._held = held
        self._written = written
        self._counted = counted
        self.changes_batch = bool(changes)
        self._writes_batch = changes.writes_tensors
        self._keeps = bool(kept)
        self._puts = bool(changes.put)
        self._plain_result = None if self._keeps or self._puts else results.plain
        # What `can_take` has found, for the launch behind it.
        self._gradients_are_left = False

    def why_not(self, tree: Tree) -> str | None:
        """Return why a replay would not do to what others hold what the step does; None if it would.

        The graph's own tensors share no memory, so what the step writes into one of them does not
        show in another. Nobody can ask a replay for gradients of its batch.
        """
        if any(map(_requires_grad, tree.leaves)):
            return "a tensor of the batch requires gradients, which a replay does not pass on"
        if self.changes_batch and not self._changes.can_apply(tree):
            return "the step changes its batch in a way that cannot be done again for this one"
        if self._writes_batch and share_memory(tree.leaves):
            return "the step writes into its batch, of which two tensors share memory"
        return self._why_not_on(tree.leaves)

    def can_take(self, leaves: Sequence[torch.Tensor]) -> bool:
        """Return whether a replay on these tensors overwrites nothing that is needed.

        Sync: Does not block the host.
        """
        self._gradients_are_left = self.gradients.are_as_left()
        try:
            # As `WrittenMemory.holds_any`: nearly no batch lies in the storage of anything else.
            places = map(bisect_right, repeat(self._written.bounds), map(_address_of, leaves))
            if self._gradients_are_left and 1 not in map(mod, places, _TWOS):
                return True
        except (RuntimeError, NotImplementedError):  # of sparse tensors
            pass
        return self._why_not_on(leaves) is None

    def _why_not_on(self, leaves: Sequence[torch.Tensor]) -> str | None:
        if not self.gradients.may_overwrite():
            return "views of its gradients are kept, which a replay would overwrite"
        if self._written.holds_any(leaves):
            return "a tensor of the batch lies in memory that the step writes"
        return None

    def replay(self, tree: Tree, *, is_own: bool) -> Any:
        """Launch the step on a batch; return what it returns.

        Args:
            tree: the batch.
            is_own: whether to return copies, which no replay overwrites; otherwise the result
                is valid until the next replay.

        Sync: Does not block the host.
        """
        self._gradients_are_left = False
        self._launch(tree.leaves)
        put: Sequence[torch.Tensor] = ()
        if is_own or self._keeps or self._puts or self._results.has_gradients:
            out, put = self._own_results(tree.leaves)
        else:
            out = self._results.in_place
        return self._changes.apply(tree, put, out) if self.changes_batch else out

    def replay_on(self, leaves: list[torch.Tensor]) -> Any:
        """Launch a step that does not change its batch on the tensors of one, which it can take.

        Returns:
            What the step returns; no replay overwrites it.

        Sync: Does not block the host.
        """
        self._launch(leaves)
        if self._plain_result is not None and not torch.is_inference_mode_enabled():
            # As `Results.own`, which makes the same of it.
            return self._plain_result.clone()
        out, _ = self._own_results(leaves)
        return out

    def _launch(self, leaves: list[torch.Tensor]) -> None:
        self._inputs.fill(leaves)
        gradients_are_left, self._gradients_are_left = self._gradients_are_left, False
        if not gradients_are_left:
            self.gradients.let_go()
        if self._keeps:
            self._kept.fill()
        # A scheduler puts a `step` among the attributes.
        if any(map(contains, self.updates.attributes, _STEPS)):
            self.updates.before_replay()
        self._graph.replay()
        if not gradients_are_left:
            self.gradients.hand_out()
        if self._counted:
            torch.autograd.graph.increment_version(self._counted)

    def _own_results(self, leaves: list[torch.Tensor]) -> tuple[Any, Sequence[torch.Tensor]]:
        """Return what the step returns, and what it puts into its batch; hand out what it keeps."""
        found = self._results.own(leaves)
        if not (self._keeps or self._puts):
            return found, ()
        out, kept, put = found
        if self._keeps:
            self._kept.hand_out(kept)
        return out, put


class StaticInputs:
    """The memory that a graph reads a batch from.

    Args:
        tensors: in that memory.
        batch: those that they are copies of; all batches of the kind have the same strides.
    """

    def __init__(self, tensors: list[torch.Tensor], batch: list[torch.Tensor]) -> None:
        # A step may have made its input require gradients, and autograd is not to keep batches.
        targets = [tensor.detach() for tensor in tensors]
        self._as_floats = _seen_as_floats(targets, batch)
        for number in self._as_floats:
            targets[number] = targets[number].view(torch.float32)
        alike: dict[torch.dtype, list[int]] = {}
        for number, target in enumerate(targets):
            if _is_plain(target) and target.dtype in _COPIED_TOGETHER:
                alike.setdefault(target.dtype, []).append(number)
        groups = [group for group in alike.values() if len(group) > 1]
        # One call for what is alone of its dtype: it is copied one by one, but not by Python.
        rest = [number for group in alike.values() if len(group) == 1 for number in group]
        groups += [rest] if rest else []
        together = {number for group in groups for number in group}
        self._groups = [(_several(group)(targets), _several(group)) for group in groups]
        self._alone = [pair for pair in enumerate(targets) if pair[0] not in together]

    def fill(self, sources: list[torch.Tensor]) -> None:
        """Copy the tensors of a batch there."""
        if self._as_floats:
            sources = sources.copy()
            for number in self._as_floats:
                sources[number] = sources[number].view(torch.float32)
        for number, target in self._alone:
            target.copy_(sources[number])
        for targets, sources_of in self._groups:
            torch._foreach_copy_(targets, sources_of(sources))


def _several(numbers: list[int]) -> Callable[[list[torch.Tensor]], Any]:
    """Return a function that picks these of some tensors."""
    if len(numbers) == 1:
        return lambda tensors: [tensors[numbers[0]]]
    return itemgetter(*numbers)


def _seen_as_floats(targets: list[torch.Tensor], batch: list[torch.Tensor]) -> list[int]:
    """Return which int64 tensors can be copied, bit by bit, in one launch with others of float32.

    A copy of float32 keeps all bits. One of float16 or bfloat16 may not: it goes by float32.
    """
    if not any(_is_plain(target) and target.dtype is torch.float32 for target in targets):
        return []
    return [
        number
        for number, pair in enumerate(zip(targets, batch, strict=True))
        if all(
            _is_plain(tensor)
            and tensor.dtype is torch.int64
            and tensor.dim() > 0
            and tensor.stride(-1) == 1
            for tensor in pair
        )
    ]


def _is_plain(tensor: torch.Tensor) -> bool:
    is_dense = tensor.layout is torch.strided and not tensor.is_nested
    return type(tensor) is torch.Tensor and is_dense
