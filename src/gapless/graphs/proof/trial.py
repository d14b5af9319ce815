"""Capture a step for one kind of call, and let the graph prove itself, in one call of the step.

The call is trained on once, by the step as written. Nothing else that happens here is left: memory,
gradients, optimizers, random numbers and kept tensors are put back to where the call found them.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from gapless.graphs.consent import Readiness
from gapless.graphs.proof.capture_failure import capture_failed, why_it_failed
from gapless.graphs.proof.device_state import DeviceState, RandomStates
from gapless.graphs.proof.python_side import PythonSide, tensors_of
from gapless.graphs.proof.same_results import NotProved, num_runs_of, prove
from gapless.graphs.proof.step_capture import StepCapture
from gapless.graphs.reads.addresses import address_of
from gapless.graphs.reads.touched import TouchWatch
from gapless.graphs.refusal import ON_ANOTHER_RANK, Refusal
from gapless.graphs.replay.alignment import copy_of
from gapless.graphs.replay.kept_tensors import KeptTensors, place_of
from gapless.graphs.replay.step_graph import StepGraph
from gapless.graphs.replay.written_memory import WrittenMemory
from gapless.graphs.side_stream import ONE_AT_A_TIME
from gapless.pipeline.tree.tensor_layout import has_address


if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gapless.graphs.callee import Callee
    from gapless.graphs.graph_pool import GraphPool
    from gapless.graphs.proof.proof_verdict import AnyVerdict, Distances, Verdict
    from gapless.graphs.reads.read_guards import ReadGuards
    from gapless.graphs.reads.weight_guards import KnownWeights
    from gapless.graphs.replay.call_graph import CallGraph
    from gapless.graphs.updates.update_outside import Updates
    from gapless.graphs.watched import Watched
    from gapless.pipeline.tree.flatten import Tree


@dataclass(slots=True)
class Tried:
    """What came of a trial.

    Attributes:
        graph: that was captured, None if that failed.
        verdict: on the graph, which arrives later; None if it is not proved.
        not_proved: why the graph is not proved, None if it is being proved.
        proof_seconds: of the host, for the proof.
        updates_as_written: why a replay calls updates of optimizers, each in a line.
        audited: the verdict of an audit, which arrives later; None if there is none.
    """

    out: Any
    graph: CallGraph | None = None
    verdict: Verdict | None = None
    refusals: list[Refusal] = field(default_factory=list)
    not_proved: str | None = None
    proof_seconds: float = 0.0
    updates_as_written: list[str] = field(default_factory=list)
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


@dataclass(frozen=True, slots=True)
class Proved:
    """A graph of the same code, for another kind of calls, whose proof has held.

    Attributes:
        exactness: of its results.
        touched: tensors that the step used in the run before it; None if that is not known.
    """

    exactness: Exactness
    touched: TouchWatch | None


@dataclass(eq=False)
class Trial:
    """Capture a step and prove its graphs.

    Attributes:
        updates: which optimizers are captured with the step, and which are called as written.
    """

    callee: Callee
    graphs: GraphPool
    weights: KnownWeights
    updates: Updates

    def __post_init__(self) -> None:
        self._device = self.callee.device
        self._capture = StepCapture(self.callee, self.graphs, self.updates)

    def run(
        self, tree: Tree, reads: ReadGuards, watched: Watched, *, like: Proved | None = None
    ) -> Tried:
        """Capture and prove the step on a batch, and train on it once.

        Args:
            tree: the batch.
            reads: what the step's code reads from Python.
            watched: what the last run as written showed.
            like: a graph of the same code; the new one is then compared with one run as written.

        Sync: Blocks the host ("capture").
        """
        with ONE_AT_A_TIME:
            return self._run(tree, reads, watched, like)

    def _run(self, tree: Tree, reads: ReadGuards, watched: Watched, like: Proved | None) -> Tried:
        side = self._side(watched)
        kept = side.kept
        found: StepGraph | list[Refusal]
        if kept.objection is not None:
            found = [_keeps_what_it_cannot(kept.objection)]
        else:
            found = self._captured_or_refused(tree, reads, watched, side)
        if isinstance(found, list):
            self.callee.consent.least(Readiness.NEVER)
            return Tried(self.callee.work(tree.value), refusals=found)
        if self.callee.consent.least(Readiness.READY) is not Readiness.READY:
            # A proof would send what the others do not wait for.
            return Tried(self.callee.work(tree.value), refusals=[ON_ANOTHER_RANK])
        tried = self._proved(tree, found, watched, side, like=like)
        tried.updates_as_written = found.updates.lines_of_outside()
        return tried

    def _side(self, watched: Watched) -> PythonSide:
        touched = watched.touched
        read = None if touched is None else set(map(address_of, touched.read))
        kept = KeptTensors(watched.kept, on_device=self.callee.is_on_device, read=read)
        gradients = self.weights.gradients()
        return PythonSide(
            gradients, self.updates.optimizers(), kept, on_device=self.callee.is_on_device
        )

    def _captured_or_refused(
        self, tree: Tree, reads: ReadGuards, watched: Watched, side: PythonSide
    ) -> StepGraph | list[Refusal]:
        random = RandomStates(self._device)
        states = random.read()
        try:
            return self._capture.run(tree, reads, watched, side)
        except Exception as error:
            return why_it_failed(error, watched.host_reads)
        finally:
            side.restore()
            random.write(states)

    # --- proof ---

    def audit(self, tree: Tree, graph: CallGraph, watched: Watched, exact: Exactness) -> Tried:
        """Compare a graph in use with the step as written, and train on a batch once."""
        assert isinstance(graph, StepGraph)
        with ONE_AT_A_TIME:
            like = Proved(exact, None)
            tried = self._proved(tree, graph, watched, self._side(watched), like=like)
            tried.audited = tried.verdict
            return tried

    def _proved(
        self,
        tree: Tree,
        graph: StepGraph,
        watched: Watched,
        side: PythonSide,
        *,
        like: Proved | None = None,
    ) -> Tried:
        """Compare a graph with the step as written: with several runs of it, or with one if it is like another."""
        touched, before, kept = watched.touched, side.gradients, side.kept
        state = self._state(graph, tree, watched, side)
        second_look = None
        if touched is not None and not self._found_the_same(like, watched, side):
            # What an audit does not see it read it compares by what comes of it.
            is_audit = like is not None and like.touched is None
            if not is_audit or watched.is_seen_in_audit():
                second_look = TouchWatch(self._device, sees_reads=not is_audit)
        # For the replay, runs that are only compared if there are any, and the run that counts.
        nondeterministic = watched.nondeterministic
        num_written = num_runs_of(nondeterministic, several_ranks=self.callee.consent.asks)
        num_written = 1 if like is not None else num_written
        compared = [tree.map(copy_of) for _ in range(num_written - 1)]
        batches = [tree, *compared, tree.map(copy_of)]

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
            with looks:
                found = left(self.callee.work(batch.value), batch)
            spoilt.level(keeps=not batches)
            return found

        # Those on the host are not put back before each run.
        spoilt = _Spoilt(filter(self.callee.is_on_device, graph.gradients.let_go_of(before)))
        start = self._device.now_ms()
        proof: tuple[Any, Verdict] | Exception
        try:
            proof = prove(
                self._device,
                state,
                replay=replay,
                as_written=as_written,
                reset=side.restore,
                memory_budget_bytes=self.graphs.limits.budget,
                consent=self.callee.consent,
                nondeterministic=nondeterministic,
                num_written=num_written,
                distances=None if like is None else like.exactness.distances,
            )
        except Exception as error:
            proof = error
        spoilt.put_back()
        seconds = (self._device.now_ms() - start) / 1000.0
        if isinstance(proof, NotProved):
            return Tried(self.callee.work(tree.value), graph, not_proved=str(proof))
        if isinstance(proof, Exception):
            return Tried(self.callee.work(tree.value), refusals=[capture_failed(proof)])
        (result, *_), verdict = proof
        refusals = []
        if second_look is not None:
            also = [
                *(leaf for one in compared or [tree] for leaf in one.leaves),
            ]
            refusals = self._touches_others(watched, second_look, side, also)
        return Tried(result, None if refusals else graph, verdict, refusals, proof_seconds=seconds)

    def _state(
        self, graph: StepGraph, tree: Tree, watched: Watched, side: PythonSide
    ) -> DeviceState:
        """Return what a run of the step may write to on the device.

        A batch in the memory of an earlier one is left out: a proof runs on copies of it, which are compared.
        """
        touched = watched.touched
        tensors = [weight for weight, _ in side.gradients]
        for optimizer in side.optimizers:
            tensors += [tensor for tensor, _ in tensors_of(optimizer, {})]
        # Compiled code shows nothing of what it writes to.
        tensors += graph.reads.tensors if touched is None else []

        batch = WrittenMemory(filter(has_address, tree.leaves))
        tensors += [tensor for tensor in watched.written if not batch.holds_any([tensor])]
        made = set(map(id, graph.gradients.made_of(side.gradients)))
        tensors += [one for _, one in side.gradients if one is not None and id(one) not in made]
        tensors += side.kept.tensors()
        on_device = list(filter(self.callee.is_on_device, tensors))
        names = graph.reads.names_by_address() if on_device else {}
        for weight, gradient in side.gradients:
            name = names.get(address_of(weight))
            if name and gradient is not None:
                names.setdefault(address_of(gradient), f"the gradient of {name}")
        for optimizer in side.optimizers:
            for tensor, name in tensors_of(optimizer, names):
                names.setdefault(address_of(tensor), name)
        return DeviceState(
            on_device,
            self._device,
            names=[names.get(address_of(tensor), "") for tensor in on_device],
            generators=watched.generators,
        )

    def _touches_others(
        self,
        watched: Watched,
        second_look: TouchWatch,
        side: PythonSide,
        also: Sequence[torch.Tensor],
    ) -> list[Refusal]:
        """Return a refusal if the step uses other tensors than in the run before, but for `also`."""
        assert watched.touched is not None
        anew = used_anew(watched.touched, second_look, _known_to(watched, side, also))
        if not anew:
            return []
        return [
            Refusal(
                "replaced_tensor",
                f"the step uses a tensor ({anew[0].dtype}, shape {tuple(anew[0].shape)}) that "
                "is another one in each call; pass it as an argument, or fill one tensor in "
                "place",
            )
        ]

    def _found_the_same(self, like: Proved | None, watched: Watched, side: PythonSide) -> bool:
        """Return whether the step was seen to use the same tensors in two runs, of two kinds of calls."""
        if like is None or like.touched is None or watched.touched is None:
            return False
        return not used_anew(like.touched, watched.touched, _known_to(watched, side, []))


def _known_to(watched: Watched, side: PythonSide, also: Sequence[torch.Tensor]) -> set[int]:
    """Return addresses that are others in each run, or are guarded."""
    known = {address_of(gradient) for _, gradient in side.gradients if gradient is not None}
    known |= set(map(address_of, [*side.kept.tensors(), *also])) | watched.known
    # Guarded, and made by the run before if it was their first update.
    for optimizer in side.optimizers:
        known |= {address_of(tensor) for tensor, _ in tensors_of(optimizer, {})}
    return known


def used_anew(first: TouchWatch, second: TouchWatch, known: set[int]) -> list[torch.Tensor]:
    """Return the tensors that a run has used, and a run before has not, but for those at known addresses."""
    before = known | first.addresses
    if second.storages() <= before:
        return []
    return [one for one in [*second.read, *second.written] if address_of(one) not in before]


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


def _keeps_what_it_cannot(path: Any) -> Refusal:
    return Refusal(
        "keeps_unknown",
        f"{place_of(path)} keeps something else than tensors on the device from call to call; "
        "keep tensors alone",
    )
