"""Capture a step for one kind of call, and let the graph prove itself, in one call of the step.

The call is trained on once, by the step as written. Nothing else that happens here is left: memory,
gradients, optimizers, random numbers and kept tensors are put back to where the call found them.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from gapless.errors import BatchError
from gapless.graphs.one_at_a_time import ONE_AT_A_TIME
from gapless.graphs.proof.capture_failure import capture_failed, reads_for_a_scaler
from gapless.graphs.proof.consent import Alone, Readiness
from gapless.graphs.proof.device_state import DeviceState, RandomStates
from gapless.graphs.proof.fingerprints import KeptFingerprints
from gapless.graphs.proof.python_side import PythonSide
from gapless.graphs.proof.same_results import NotProved, num_runs_of, prove
from gapless.graphs.reads.addresses import address_of, share_memory
from gapless.graphs.reads.touched import TouchWatch
from gapless.graphs.reads.weight_guards import (
    GradientsInPlace,
    WeightsInPlace,
)
from gapless.graphs.refusal import ON_ANOTHER_RANK, Refusal, Refused, host_read, read_elsewhere
from gapless.graphs.replay.alignment import aligned_as, clone_of
from gapless.graphs.replay.batch_changes import BatchWatch, has_container_twice
from gapless.graphs.replay.gradient_graph import is_used_up
from gapless.graphs.replay.graph_gradients import GraphGradients
from gapless.graphs.replay.inference_mode import inference_mode
from gapless.graphs.replay.kept_tensors import KeptTensors, place_of
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
from gapless.pipeline.tree.tensor_layout import has_address, misalignment


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gapless.device.base import Cut, Device, Graph
    from gapless.graphs.graph_pool import GraphPool
    from gapless.graphs.proof.consent import Consent
    from gapless.graphs.proof.same_results import AnyVerdict, Distances, Verdict
    from gapless.graphs.reads.guards import Guard
    from gapless.graphs.reads.known_optimizers import KnownOptimizers
    from gapless.graphs.reads.read_guards import ReadGuards
    from gapless.graphs.reads.weight_guards import Gradients, KnownWeights
    from gapless.graphs.replay.call_graph import CallGraph
    from gapless.graphs.updates.update_outside import CapturedUpdates, Updates
    from gapless.graphs.watched import Watched
    from gapless.pipeline.host_waits import HostWaits
    from gapless.pipeline.tree.flatten import Tree


@dataclass(slots=True)
class Tried:
    """What came of a trial.

    Attributes:
        out: what the step as written returned.
        graph: that was captured, None if that failed.
        verdict: on the graph, which arrives later; None if it is not proved.
        refusals: why there is no graph.
        not_proved: why the graph is not proved, None if it is being proved.
        proof_seconds: of the host, for the proof.
        updates_as_written: why a replay calls updates of optimizers, each in a line.
        reads_rates: whether the graph reads rates on the device.
        audited: the verdict of an audit, which arrives later; None if there is none.
    """

    out: Any
    graph: CallGraph | None = None
    verdict: Verdict | None = None
    refusals: list[Refusal] = field(default_factory=list)
    not_proved: str | None = None
    proof_seconds: float = 0.0
    updates_as_written: list[str] = field(default_factory=list)
    reads_rates: bool = False
    audited: AnyVerdict | None = None


@dataclass(frozen=True, slots=True)
class Exactness:
    """How equal a graph's results are to those of the step as written.

    Attributes:
        repeats_bits: whether the step gives the same bits each time, as far as is known.
        distances: of two runs as written, relative to their norms; None if they had the same bits.
    """

    repeats_bits: bool = True
    distances: Distances | None = None


class Trial:
    """Capture a step and prove its graphs.

    Args:
        work: the step.
        device: where it runs.
        host_waits: the door for the waits that captures are.
        graphs: the graphs there are, and their limits.
        weights: that the step trains.
        optimizers: that it calls.
        updates: which optimizers are captured with the step, and which are called as written.
        gradients_are_given: whether the step finds the gradients of its weights in its batch.
        consent: of the ranks that try the same step.
    """

    def __init__(
        self,
        work: Callable[[Any], Any],
        *,
        device: Device,
        host_waits: HostWaits,
        graphs: GraphPool,
        weights: KnownWeights,
        optimizers: KnownOptimizers,
        updates: Updates,
        gradients_are_given: bool = False,
        consent: Consent | None = None,
    ) -> None:
        self._work = work
        self._device = device
        self._host_waits = host_waits
        self._graphs = graphs
        self._weights = weights
        self._optimizers = optimizers
        self._updates = updates
        self._gradients_are_given = gradients_are_given
        self._consent = Alone() if consent is None else consent
        self._fingerprints = KeptFingerprints()
        graphs.on_leave = self._fingerprints.forget

    def run(self, tree: Tree, reads: ReadGuards, watched: Watched) -> Tried:
        """Capture and prove the step on a batch, and train on it once.

        Args:
            tree: the batch.
            reads: what the step's code reads from Python.
            watched: what the last run as written showed.

        Raises:
            Exception: whatever the step raises as written.

        Sync: Blocks the host ("capture").
        """
        with ONE_AT_A_TIME:
            return self._run(tree, reads, watched)

    def _run(self, tree: Tree, reads: ReadGuards, watched: Watched) -> Tried:
        kept = KeptTensors(watched.kept, on_device=self._is_on_device)
        before = self._weights.gradients()
        side = PythonSide(before, list(self._optimizers), kept, on_device=self._is_on_device)
        found: StepGraph | list[Refusal]
        name = None if self._gradients_are_given else reads.name_of_any(tree.leaves)
        is_kept = reads.compares_objects and not kept.ids().isdisjoint(map(id, tree.leaves))
        if name is None and is_kept:
            name = "one that the step keeps"
        if kept.objection is not None:
            found = [_keeps_what_it_cannot(kept.objection)]
        elif name is not None:
            found = [read_elsewhere(name)]
        else:
            found = self._captured_or_refused(
                tree, reads, watched, before=before, side=side, kept=kept
            )
        if isinstance(found, list):
            self._consent.least(Readiness.NEVER)
            return Tried(self._work(tree.value), refusals=found)
        if self._consent.least(Readiness.READY) is not Readiness.READY:
            # A proof would send what the others do not wait for.
            return Tried(self._work(tree.value), refusals=[ON_ANOTHER_RANK])
        tried = self._proved(tree, found, watched, before=before, side=side, kept=kept)
        tried.updates_as_written = found.updates.lines_of_outside()
        tried.reads_rates = bool(found.updates.rate_tensors())
        return tried

    # --- capture ---

    def _captured_or_refused(
        self,
        tree: Tree,
        reads: ReadGuards,
        watched: Watched,
        *,
        before: Gradients,
        side: PythonSide,
        kept: KeptTensors,
    ) -> StepGraph | list[Refusal]:
        random = RandomStates(self._device)
        states = random.read()
        try:
            return self._capture(tree, reads, watched, before=before, kept=kept)
        except Exception as error:
            return why_it_failed(error, watched.host_reads)
        finally:
            side.restore()
            random.write(states)

    def _capture(
        self,
        tree: Tree,
        reads: ReadGuards,
        watched: Watched,
        *,
        before: Gradients,
        kept: KeptTensors,
    ) -> StepGraph:
        static = tree.map(clone_of)
        batch = BatchWatch(static)
        outs: list[Tree] = []
        reserved_before: list[int] = []
        updates: list[CapturedUpdates] = []
        counted: list[torch.Tensor] = []
        states = [part for each in self._optimizers for part, _ in _tensors_of(each, {})]
        there = [*reads.tensors, *[weight for weight, _ in before], *states]

        def queue(cut: Cut) -> None:
            # Read here: torch gives back free memory before a capture begins.
            reserved_before.append(self._device.reserved_memory_bytes())

            versions = VersionsBefore(there)
            with self._updates.during_capture(cut) as captured:
                updates.append(captured)
                out = flatten(self._work(static.value))
                counted.extend(versions.counted())
                kept.end_capture(captured.outside)
            captured.on_update = kept.fill_updated
            if out.unknown:
                raise Refused(cannot_return(out.unknown[0]))
            if not all(map(self._is_on_device, out.leaves)):
                raise Refused(cannot_return_from_host())
            if any(leaf.grad_fn is not None and not is_used_up(leaf) for leaf in out.leaves):
                raise Refused(_BACKWARD_IS_OUTSIDE)
            outs.append(out)

        # Its copies are not part of the graph.
        kept.begin_capture()
        with self._host_waits.blocking("capture"):
            graph = self._device.capture(
                queue, like=self._graphs.newest, generators=watched.generators_on(self._device)
            )
        self._graphs.limits.note_memory(self._device.reserved_memory_bytes() - reserved_before[0])
        self._graphs.newest = graph
        return self._step_graph(
            graph,
            gradients=GraphGradients(
                before,
                updates[0].gradients,
                pool=self._graphs.gradients,
                unused=watched.unused,
                others=_found_by(reads, watched),
            ),
            updates=updates[0],
            tree=tree,
            static=static,
            out=outs[0],
            reads=reads,
            watched=watched,
            batch=batch,
            before=before,
            kept=kept,
            counted=counted,
        )

    def _step_graph(
        self,
        graph: Graph,
        *,
        gradients: GraphGradients,
        updates: CapturedUpdates,
        tree: Tree,
        static: Tree,
        out: Tree,
        reads: ReadGuards,
        watched: Watched,
        batch: BatchWatch,
        before: Gradients,
        kept: KeptTensors,
        counted: list[torch.Tensor],
    ) -> StepGraph:
        # What the step's code reaches is compared where its reads are.
        weights = [weight for weight, _ in before if not reads.compares(weight)]
        memory: list[Guard] = [WeightsInPlace(weights)] if weights else []
        if gradients.expected and not self._gradients_are_given:
            memory.append(GradientsInPlace(gradients.expected))
        touched = watched.touched
        others = [*reads.tensors, *[weight for weight, _ in before]]
        if touched is not None:
            found = [*touched.read, *touched.written]
            others += [tensor for tensor in found if address_of(tensor) not in watched.known]
        # What the step writes only as a part of its batch lies in `known` alone.
        places = set(map(address_of, others))
        all_written = [] if touched is None else touched.written
        written = WrittenMemory([one for one in all_written if address_of(one) in places])
        if written.holds_any(tree.leaves):
            raise Refused(_WRITES_BEHIND_ITS_BATCH)
        changes = batch.changes(
            others,
            written=None if touched is None else _of_batch(watched),
            out=out.value,
        )
        if changes.unsupported is not None:
            raise Refused(_changes_batch(changes.unsupported))
        if changes.puts_gradients:
            raise Refused(_HAS_A_GRADIENT)
        if changes.changes_containers and has_container_twice(tree.value):
            raise Refused(_CHANGES_WHAT_STANDS_TWICE)
        if any(one.grad_fn is not None and not is_used_up(one) for one in changes.put):
            raise Refused(_BACKWARD_IS_OUTSIDE)
        if changes.writes_tensors and share_memory(tree.leaves):
            raise Refused(_WRITES_INTO_ONE_MEMORY)
        return StepGraph(
            graph,
            inputs=static.leaves,
            batch=tree.leaves,
            results=_results(out, static, others, before=before, kept=kept, put=changes.put),
            gradients=gradients,
            kept=kept,
            changes=changes,
            updates=updates,
            guards=StepGuards(reads, memory, updates, kept),
            reads=reads,
            held=others,
            written=written,
            read=frozenset() if self._gradients_are_given else reads.ids_of_tensors(),
            counted=counted,
        )

    # --- proof ---

    def audit(self, tree: Tree, graph: CallGraph, watched: Watched, exact: Exactness) -> Tried:
        """Compare a graph in use with the step as written, and train on a batch once.

        Args:
            tree: the batch.
            graph: that would be replayed; its guards hold.
            watched: what the last watched run showed.
            exact: how equal its results were in its proof.

        Raises:
            Exception: whatever the step raises as written.

        Sync: Does not block the host, unless the step does.
        """
        assert isinstance(graph, StepGraph)
        with ONE_AT_A_TIME:
            kept = KeptTensors(watched.kept, on_device=self._is_on_device)
            before = self._weights.gradients()
            side = PythonSide(before, list(self._optimizers), kept, on_device=self._is_on_device)
            tried = self._proved(
                tree, graph, watched, before=before, side=side, kept=kept, audited=exact
            )
            tried.audited = tried.verdict
            return tried

    def _proved(
        self,
        tree: Tree,
        graph: StepGraph,
        watched: Watched,
        *,
        before: Gradients,
        side: PythonSide,
        kept: KeptTensors,
        audited: Exactness | None = None,
    ) -> Tried:
        """Compare a graph with the step as written: a new one with several runs of it, else with one."""
        touched = watched.touched
        changed = self._changed_tensors(graph, tree, watched, before, kept)
        state = DeviceState(
            [tensor for tensor, _ in changed],
            self._device,
            names=[name for _, name in changed],
            generators=() if touched is None else touched.generators,
            fingerprints=self._fingerprints,
        )
        second_look = None if touched is None else TouchWatch(self._device)
        # For the replay, runs that are only compared if there are any, and the run that counts.
        nondeterministic = () if touched is None else touched.nondeterministic
        num_written = num_runs_of(nondeterministic, several_ranks=self._consent.asks)
        num_written = 1 if audited is not None else num_written
        compared = [tree.map(_copy_of) for _ in range(num_written - 1)]
        batches = [tree, *compared, tree.map(_copy_of)]

        def left(out: Any, batch: Tree) -> list[Any]:
            """Return all that a run leaves behind, beside the memory that it found."""
            gradients = [weight.grad for weight, _ in before]
            of_batch = [leaf.grad for leaf in batch.leaves if leaf.is_leaf]
            return [out, gradients, of_batch, [path.get() for path in kept.paths], batch.leaves]

        def replay() -> Any:
            batch = batches.pop()
            spoilt.spoil()
            found = left(graph.replay(batch, is_own=True), batch)
            spoilt.level()
            return found

        def as_written() -> Any:
            is_first = len(batches) == 1 + len(compared)
            batch = batches.pop()
            looks = second_look if is_first and second_look is not None else nullcontext()
            with looks, graph.updates.rates_in_place():
                found = left(self._work(batch.value), batch)
            spoilt.level(keeps=not batches)
            return found

        # Those on the host are not put back before each run.
        spoilt = _Spoilt(filter(self._is_on_device, graph.gradients_let_go_of(before)))
        start = self._device.now_ms()
        proof: tuple[Any, Verdict] | Exception
        try:
            proof = prove(
                self._device,
                state,
                replay=replay,
                as_written=as_written,
                reset=side.restore,
                memory_budget_bytes=self._graphs.limits.budget,
                consent=self._consent,
                nondeterministic=nondeterministic,
                num_written=num_written,
                distances=None if audited is None else audited.distances,
            )
        except Exception as error:
            proof = error
        spoilt.put_back()
        seconds = (self._device.now_ms() - start) / 1000.0
        if isinstance(proof, NotProved):
            return Tried(self._work(tree.value), graph, not_proved=str(proof))
        if isinstance(proof, Exception):
            return Tried(self._work(tree.value), refusals=[capture_failed(proof)])
        (result, *_), verdict = proof
        refusals = []
        if second_look is not None:
            also = [
                *(leaf for one in compared or [tree] for leaf in one.leaves),
                *graph.updates.rate_tensors(),
            ]
            refusals = self._touches_others(watched, second_look, before, kept, also)
        return Tried(result, None if refusals else graph, verdict, refusals, proof_seconds=seconds)

    def _changed_tensors(
        self,
        graph: StepGraph,
        tree: Tree,
        watched: Watched,
        before: Gradients,
        kept: KeptTensors,
    ) -> list[tuple[torch.Tensor, str]]:
        """Return the tensors on the device that a run of the step may write to, with names.

        The name is "" where none is known. A batch in the memory of an earlier one is left out: a proof
        runs on copies of it, which are compared.
        """
        names = graph.reads.names_by_address()

        def named(tensors: Iterable[torch.Tensor]) -> list[tuple[torch.Tensor, str]]:
            return [(tensor, names.get(address_of(tensor), "")) for tensor in tensors]

        found = named(weight for weight, _ in before)
        made = set(map(id, graph.gradients_made_of(before)))
        for weight, gradient in before:
            if gradient is not None and id(gradient) not in made:
                name = names.get(address_of(weight))
                found.append((gradient, f"the gradient of {name}" if name else ""))
        found += named(kept.tensors())
        for optimizer in self._optimizers:
            found += _tensors_of(optimizer, names)
        # Compiled code shows nothing of what it writes to.
        if watched.touched is None:
            found += named(graph.reads.tensors)
        else:
            batch = WrittenMemory(filter(has_address, tree.leaves))
            written = watched.touched.written
            found += named(tensor for tensor in written if not batch.holds_any([tensor]))
        return [(tensor, name) for tensor, name in found if self._is_on_device(tensor)]

    def _touches_others(
        self,
        watched: Watched,
        second_look: TouchWatch,
        before: Gradients,
        kept: KeptTensors,
        also: Sequence[torch.Tensor],
    ) -> list[Refusal]:
        """Return a refusal if the step uses other tensors than in the run before, but for `also`."""
        assert watched.touched is not None
        known = {address_of(gradient) for _, gradient in before if gradient is not None}
        known |= set(map(address_of, [*kept.tensors(), *also])) | watched.known
        # Guarded, and made by the run before if it was their first update.
        for optimizer in self._optimizers:
            known |= {address_of(tensor) for tensor, _ in _tensors_of(optimizer, {})}
        some, others = (
            {address_of(tensor): tensor for tensor in [*look.read, *look.written]}
            for look in (watched.touched, second_look)
        )
        for address in others.keys() - some.keys() - known:
            tensor = others[address]
            return [
                Refusal(
                    "replaced_tensor",
                    f"the step uses a tensor ({tensor.dtype}, shape {tuple(tensor.shape)}) that "
                    "is another one in each call; pass it as an argument, or fill one tensor in "
                    "place",
                )
            ]
        return []

    def _is_on_device(self, tensor: torch.Tensor) -> bool:
        return not self._device.needs_copy(tensor)


def _found_by(reads: ReadGuards, watched: Watched) -> list[torch.Tensor]:
    """Return the tensors that a run as written is known to have found, beside its batch."""
    touched = watched.touched
    return [*reads.tensors, *(() if touched is None else [*touched.read, *touched.written])]


class _Spoilt:
    """Gradients that a step lets go of, spoilt for a proof: a graph must not read them.

    After each run they are made alike, since all that was there before is compared. No version is counted:
    a backward pass that is still to come may need them, and they are put back.
    """

    def __init__(self, gradients: Iterable[torch.Tensor]) -> None:
        self._gradients = [
            gradient.detach()
            for gradient in gradients
            if has_address(gradient) and not torch._debug_has_internal_overlap(gradient)
        ]
        self._kept: list[torch.Tensor] = []

    def spoil(self) -> None:
        self._fill(float("nan"))

    def level(self, *, keeps: bool = False) -> None:
        """Make them alike; if asked, keep what they are, since the loop may hold them."""
        if keeps:
            self._kept = [gradient.clone() for gradient in self._gradients]
        self._fill(0.0)

    def put_back(self) -> None:
        """Put back what was kept."""
        with torch.no_grad(), torch.inference_mode(mode=False):
            for gradient, kept in zip(self._gradients, self._kept, strict=False):
                gradient.data.copy_(kept)
        self._gradients, self._kept = [], []

    def _fill(self, value: float) -> None:
        with torch.no_grad(), torch.inference_mode(mode=False):
            for gradient in self._gradients:
                gradient.data.fill_(value)


def _results(
    out: Tree,
    static: Tree,
    others: Sequence[torch.Tensor],
    *,
    before: Gradients,
    kept: KeptTensors,
    put: Sequence[torch.Tensor],
) -> Results:
    gradients = [(weight, weight.grad) for weight, _ in before]
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


def why_it_failed(error: Exception, host_reads: Sequence[str]) -> list[Refusal]:
    """Return the reasons why a capture failed, all lines that read on the host among them."""
    if isinstance(error, Refused):
        return [error.refusal]
    advice = _UNFUSED if reads_for_a_scaler(error) else ""
    sites = () if isinstance(error, torch.OutOfMemoryError) else dict.fromkeys(host_reads)
    reads = [host_read(site, advice=advice) for site in sites]
    return reads or [capture_failed(error)]


_UNFUSED = "GradScaler reads for an optimizer that is not fused; give it fused=True"


def _keeps_what_it_cannot(path: Any) -> Refusal:
    return Refusal(
        "keeps_unknown",
        f"{place_of(path)} keeps something else than tensors on the device from call to call; "
        "keep tensors alone",
    )


def _copy_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy with the same strides and alignment, of inference mode if the tensor is."""
    with inference_mode(is_on=tensor.is_inference()):
        return aligned_as(_with_strides(tensor), misalignment(tensor))


def _with_strides(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy with the same strides; a clone has others if the tensor leaves out memory."""
    copy = tensor.clone()
    if type(tensor) is not torch.Tensor or tensor.layout is not torch.strided:
        return copy
    if copy.stride() == tensor.stride():
        return copy
    once = tensor
    for dim, stride in enumerate(tensor.stride()):
        if stride == 0 and tensor.size(dim) > 1:
            once = once.narrow(dim, 0, 1)
    copy = torch.empty_strided(
        once.size(), once.stride(), dtype=tensor.dtype, device=tensor.device
    )
    return copy.copy_(once).expand(tensor.size())


def _tensors_of(
    optimizer: torch.optim.Optimizer, names: dict[int, str]
) -> list[tuple[torch.Tensor, str]]:
    """Return the tensors of an optimizer's state and settings, with names."""
    found: list[tuple[Any, str]] = []
    for weight, state in optimizer.state.items():
        if isinstance(state, dict):
            name = names.get(address_of(weight))
            found += [(part, f"{key} of {name}" if name else "") for key, part in state.items()]
    found += [(part, "") for group in optimizer.param_groups for part in group.values()]
    return [(part, name) for part, name in found if isinstance(part, torch.Tensor)]
