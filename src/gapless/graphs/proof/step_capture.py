"""Capture a step for one kind of call: what its graph has to do beside the launch, and what refuses it.

Nothing runs on the device but copies. What the step does to Python is put back by whoever calls this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.errors import BatchError
from gapless.graphs.proof.python_side import tensors_of
from gapless.graphs.reads.addresses import address_of, share_memory
from gapless.graphs.reads.weight_guards import GradientsInPlace, WeightsInPlace
from gapless.graphs.refusal import Refusal, Refused
from gapless.graphs.replay.alignment import clone_of
from gapless.graphs.replay.batch_changes import BatchWatch, has_container_twice
from gapless.graphs.replay.gradient_graph import is_used_up
from gapless.graphs.replay.graph_gradients import GraphGradients
from gapless.graphs.replay.results import (
    Results,
    are_unlike_in_one_memory,
    has_own_gradient,
    not_made_anew,
)
from gapless.graphs.replay.step_graph import StepGraph
from gapless.graphs.replay.step_guards import StepGuards
from gapless.graphs.replay.versions import VersionsBefore
from gapless.graphs.replay.written_memory import WrittenMemory
from gapless.graphs.step_call import cannot_return, cannot_return_from_host
from gapless.pipeline.tree.flatten import flatten
from gapless.pipeline.tree.tensor_layout import has_address


if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import torch

    from gapless.device.base import Cut
    from gapless.graphs.callee import Callee
    from gapless.graphs.graph_pool import GraphPool
    from gapless.graphs.proof.python_side import PythonSide
    from gapless.graphs.reads.read_guards import ReadGuards
    from gapless.graphs.reads.weight_guards import Guard
    from gapless.graphs.replay.batch_changes import BatchChanges
    from gapless.graphs.updates.update_outside import CapturedUpdates, Updates
    from gapless.graphs.watched import Watched
    from gapless.pipeline.tree.flatten import Tree


class StepCapture:
    """Captures a step.

    Args:
        updates: which optimizers are captured with the step, and which are called as written.
    """

    def __init__(self, callee: Callee, graphs: GraphPool, updates: Updates) -> None:
        self._callee = callee
        self._graphs = graphs
        self._updates = updates

    def run(self, tree: Tree, reads: ReadGuards, watched: Watched, side: PythonSide) -> StepGraph:
        """Capture the step on a batch.

        Raises:
            Refused: no graph can do what the step does.
            Exception: whatever the step raises in a capture.

        Sync: Blocks the host ("capture").
        """
        kept = side.kept
        static = tree.map(clone_of)
        batch = BatchWatch(static)
        weights = [weight for weight, _ in side.gradients]
        states = [part for each in side.optimizers for part, _ in tensors_of(each, {})]

        def work(cut: Cut) -> tuple[Tree, CapturedUpdates, list[torch.Tensor]]:
            versions = VersionsBefore([*reads.tensors, *weights, *states])
            with self._updates.during_capture(cut) as captured:
                out = flatten(self._callee.work(static.value))
                counted = versions.counted()
                kept.end_capture(captured.outside)
            captured.on_update = kept.fill_updated
            if out.unknown:
                raise Refused(cannot_return(out.unknown[0]))
            if not all(map(self._callee.is_on_device, out.leaves)):
                raise Refused(cannot_return_from_host())
            _check_backward(out.leaves)
            return out, captured, counted

        # Its copies are not part of the graph.
        kept.begin_capture()
        graph, (out, updates, counted) = self._graphs.capture(work, watched)
        found = watched.found
        gradients = GraphGradients(
            side.gradients,
            # Those of an update alone are its batch, which has places of its own.
            () if self._callee.is_update else updates.gradients,
            pool=self._graphs.gradients,
            unused=watched.unused,
            others=[*reads.tensors, *found],
        )
        # What the step's code reaches is compared where its reads are.
        in_place = [weight for weight in weights if not reads.compares(weight)]
        memory: list[Guard] = [WeightsInPlace(in_place)] if in_place else []
        if gradients.expected and not self._callee.is_update:
            memory.append(GradientsInPlace(gradients.expected))
        others = [*reads.tensors, *weights]
        others += [one for one in found if address_of(one) not in watched.known]
        written = _written_apart(watched, others)
        if written.holds_any(tree.leaves):
            raise Refused(_WRITES_BEHIND_ITS_BATCH)
        changes = _changes_of(batch, tree, out, others, watched)
        return StepGraph(
            graph,
            inputs=static.leaves,
            batch=tree.leaves,
            results=_results(out, static, others, side=side, put=changes.put),
            gradients=gradients,
            kept=kept,
            changes=changes,
            updates=updates,
            guards=StepGuards(reads, memory, updates, kept),
            reads=reads,
            held=others,
            written=written,
            counted=counted,
        )


def _written_apart(watched: Watched, others: Iterable[torch.Tensor]) -> WrittenMemory:
    """Return the memory that a step writes by another name than as a part of its batch."""
    places = set(map(address_of, others))
    written = [] if watched.touched is None else watched.touched.written
    return WrittenMemory([one for one in written if address_of(one) in places])


def _changes_of(
    batch: BatchWatch, tree: Tree, out: Tree, others: Sequence[torch.Tensor], watched: Watched
) -> BatchChanges:
    """Return what a step does to its batch.

    Raises:
        Refused: that cannot be done again for a replay.
    """
    is_known = watched.touched is not None
    changes = batch.changes(
        others, written=_of_batch(watched) if is_known else None, out=out.value
    )
    if changes.unsupported is not None:
        raise Refused(_changes_batch(changes.unsupported))
    if changes.puts_gradients:
        raise Refused(_HAS_A_GRADIENT)
    if changes.changes_containers and has_container_twice(tree.value):
        raise Refused(_CHANGES_WHAT_STANDS_TWICE)
    _check_backward(changes.put)
    if changes.writes_tensors and share_memory(tree.leaves):
        raise Refused(_WRITES_INTO_ONE_MEMORY)
    return changes


def _check_backward(tensors: Iterable[torch.Tensor]) -> None:
    """Refuse a step that hands out a tensor whose backward pass is still to come."""
    if any(one.grad_fn is not None and not is_used_up(one) for one in tensors):
        raise Refused(_BACKWARD_IS_OUTSIDE)


def _results(
    out: Tree,
    static: Tree,
    others: Sequence[torch.Tensor],
    *,
    side: PythonSide,
    put: Sequence[torch.Tensor],
) -> Results:
    gradients, kept = [(weight, weight.grad) for weight, _ in side.gradients], side.kept
    try:
        part = not_made_anew(out, others)
        if part is not None:
            raise Refused(cannot_return(part))
        _check_gradients([*out.leaves, *flatten(kept.left()).leaves], others)
        # Together, so that what shares memory shares it after a replay.
        everything = flatten((out.value, kept.left(), put) if kept or put else out.value)
        there = {address_of(other) for other in others if has_address(other)}
        made = [leaf for leaf in everything.leaves if address_of(leaf) not in there]
        if are_unlike_in_one_memory(made, static.leaves):
            raise Refused(_UNLIKE_IN_ONE_MEMORY)
        return Results(everything, inputs=static.leaves, others=others, gradients=gradients)
    except BatchError as error:  # a container that cannot be made anew
        raise Refused(cannot_return(out.value)) from error


def _check_gradients(leaves: Iterable[torch.Tensor], others: Sequence[torch.Tensor]) -> None:
    """Refuse a step that hands out a tensor of its own together with the gradient of that."""
    there = set(map(id, others))
    for leaf in leaves:
        if id(leaf) not in there and has_own_gradient(leaf):
            raise Refused(_HAS_A_GRADIENT)


def _of_batch(watched: Watched) -> frozenset[int]:
    """Return the numbers of the batch's tensors whose memory the last run wrote into."""
    assert watched.touched is not None
    written = WrittenMemory(watched.touched.surely_written)
    return frozenset(n for n, spans in enumerate(watched.batch) if any(map(written.holds, spans)))


def _changes_batch(what: str) -> Refusal:
    return Refusal(
        "changes_batch",
        f"the step changes {what} of its batch, which cannot be done again for a replay; "
        "change a copy",
    )


_HAS_A_GRADIENT = Refusal(
    "result",
    "the step returns or keeps a tensor that has a gradient of its own, which a replay cannot make "
    "anew; return the gradient",
    name="a tensor with a gradient",
)
_UNLIKE_IN_ONE_MEMORY = Refusal(
    "result",
    "the step returns or keeps one memory as tensors of two dtypes, as a conjugate and not, or in "
    "inference mode and not, which a replay cannot make anew; return a clone",
    name="unlike tensors of one memory",
)
_BACKWARD_IS_OUTSIDE = Refusal(
    "backward_outside",
    "the step returns a tensor that still needs its backward pass, or puts one into its batch, which "
    "a graph does not bring along; call backward() in the step",
)


_WRITES_BEHIND_ITS_BATCH = Refusal(
    "changes_batch",
    "a tensor of the batch is a view of memory that the step also writes by another name, which cannot "
    "be done again for a replay; pass a copy",
)


_WRITES_INTO_ONE_MEMORY = Refusal(
    "changes_batch",
    "the step may write into tensors of its batch, of which two share memory, which cannot be done "
    "again for a replay; pass copies",
)


_CHANGES_WHAT_STANDS_TWICE = Refusal(
    "changes_batch",
    "the step changes a batch in which one container stands twice, which cannot be done again for a "
    "replay; pass copies",
)
