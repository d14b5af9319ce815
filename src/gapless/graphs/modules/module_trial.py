"""Capture the forward and the backward pass of a module for one kind of call, and prove them.

Calls as written are watched first, with the backward passes that follow: which outputs get a
gradient, and how these lie in memory. Then both passes are rehearsed on copies of a call: captured,
and proved with gradients that are made up. All that a rehearsal changes is put back, and the call
itself runs as written.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from gapless.device.torch_private import next_sequence_number
from gapless.graphs.modules.forward_runs import Run
from gapless.graphs.modules.gradient_paths import uses_of
from gapless.graphs.modules.left_behind import LeftBehind
from gapless.graphs.modules.module_audit import BackwardHalf, VerdictOnCall
from gapless.graphs.modules.module_graph import ModuleGraph
from gapless.graphs.modules.module_refusals import (
    OTHER_WEIGHTS,
    REPLACED,
    RETURNS_OTHERS,
    objections_to_call,
    objections_to_memory,
    objections_to_weights,
)
from gapless.graphs.modules.rehearsal import Rehearsal
from gapless.graphs.modules.seen_calls import CallsSeen, Given
from gapless.graphs.proof.capture_failure import why_it_failed
from gapless.graphs.proof.device_state import DeviceState, RandomStates
from gapless.graphs.proof.same_results import Comparison, NotProved, prove
from gapless.graphs.proof.snapshot import FirstWrites
from gapless.graphs.proof.trial import Tried, used_anew
from gapless.graphs.reads.addresses import address_of, have_elements_in_common
from gapless.graphs.reads.beside_compiled import AtomicKernels
from gapless.graphs.reads.touched import TouchWatch
from gapless.graphs.reads.weight_guards import WeightsInPlace
from gapless.graphs.refusal import Refused
from gapless.graphs.replay.versions import VersionsBefore
from gapless.graphs.side_stream import ONE_AT_A_TIME
from gapless.pipeline.tree.tensor_layout import has_address


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gapless.device.base import Cut, Stream
    from gapless.graphs.graph_pool import GraphPool
    from gapless.graphs.modules.forward_runs import Runs
    from gapless.graphs.modules.left_behind import Outputs
    from gapless.graphs.modules.rehearsal import Passes
    from gapless.graphs.modules.seen_calls import SeenCalls
    from gapless.graphs.proof.proof_verdict import Verdict
    from gapless.graphs.proof.trial import Exactness
    from gapless.graphs.reads.host_watch import HostWatch
    from gapless.graphs.reads.read_guards import ReadGuards
    from gapless.graphs.replay.call_graph import CallGraph
    from gapless.graphs.watched import Watched
    from gapless.pipeline.tree.flatten import Tree


# Calls without a backward pass, as those that act in an environment, after which a graph has none: where backward
# passes follow calls of other kinds, and where nothing was trained so far.
_MANY_UNHEARD, _MANY_UNTRAINED = 8, 200

_NO_BACKWARD = (
    "calls with gradients that no backward pass follows run as written; call them under "
    "torch.no_grad()"
)


@dataclass(eq=False)
class ModuleTrial:
    """Capture a module and prove its graphs.

    Attributes:
        may_be_differentiated: says whether gradients of the call of now may be; then there is no graph.
    """

    runs: Runs
    graphs: GraphPool
    watch: HostWatch
    needs_grad: tuple[bool, ...]
    may_be_differentiated: Callable[[], bool]

    def __post_init__(self) -> None:
        self._module, self._device = self.runs.module, self.runs.device
        self.seen = CallsSeen(self.runs, self.watch)
        # Why there are no audits any more, "" if there are.
        self._no_room = ""

    def run(self, tree: Tree, reads: ReadGuards, watched: Watched) -> Tried:
        """Rehearse both passes on a copy of a call, and run the call as written.

        Sync: Blocks the host ("capture").
        """
        seen = self.seen.of(tree)
        if seen.is_stale:
            return Tried(self.seen.observed(tree))
        if not seen.left.are(watched.kept):
            seen.left, seen.given, seen.form = LeftBehind(tuple(watched.kept)), None, None
            return Tried(self.seen.observed(tree))
        weights = [weight for ref in seen.weights if (weight := ref()) is not None]
        if watched.touched is None and seen.given is not None and self.runs.is_free():
            try:
                self._touch_eagerly(tree, watched, seen, weights)
            except Exception as error:
                failed = why_it_failed(error, watched.host_reads)
                return Tried(self.seen.observed(tree), refusals=failed)
        refusals = [*seen.objections, *objections_to_call(watched, self.watch)]
        refusals += objections_to_weights(self._module, weights, self._device)
        refusals += objections_to_memory(tree, [*reads.tensors, *weights], watched)
        if seen.given is None:
            self._expect_no_backward(seen)
        may_not = refusals or not self.runs.is_free()
        if may_not or seen.given is None or self.may_be_differentiated():
            if refusals:
                seen.watched = self.watch.num_runs
            return Tried(self.seen.observed(tree), refusals=refusals)
        with ONE_AT_A_TIME, self.runs.side.use() as caller, seen.left.unchanged():
            tried = self._rehearsed(tree, reads, watched, seen, weights, caller)
        seen.watched = self.watch.num_runs
        versions = VersionsBefore(reads.tensors)
        tried.out = self.seen.observed(tree)
        if isinstance(tried.graph, ModuleGraph):
            tried.graph.counted = versions.counted()
        return tried

    def _expect_no_backward(self, seen: SeenCalls) -> None:
        """Let a graph have no backward pass, if none has followed many calls; one that comes runs the call again."""
        report = self.runs.report
        most = _MANY_UNHEARD if self.seen.have_backward() else _MANY_UNTRAINED
        if seen.num_unheard < most:
            report.note = _NO_BACKWARD
            return
        seen.given = Given((None,) * len(seen.form), None)
        if report.note == _NO_BACKWARD:
            report.note = None

    def audit(self, tree: Tree, graph: CallGraph, watched: Watched, exact: Exactness) -> Tried:
        """Compare the passes of a graph in use with those as written, and run the call once.

        The verdict arrives when the backward pass has come, or can come no more.
        """
        assert isinstance(graph, ModuleGraph)
        if self._no_room:
            return Tried(self._plain(tree), graph, not_proved=self._no_room)
        with ONE_AT_A_TIME:
            self.runs.side.come_after_runs()
            return self._audited(tree, graph, watched, exact)

    def _audited(
        self, tree: Tree, graph: ModuleGraph, watched: Watched, exact: Exactness
    ) -> Tried:
        of_gradients = self._names_of_gradients(graph)
        versions = graph.again.versions_of_unsaved
        run = Run(tree.leaves, versions, random=None, written=[])
        look = TouchWatch(self._device, sees_reads=False) if watched.is_seen_in_audit() else None
        since = next_sequence_number()
        out: Outputs | None = None

        def as_written() -> Any:
            nonlocal out
            with look or nullcontext():
                out = graph.left.outputs(self._plain(tree), tree.leaves)
            return out.made_of([leaf.detach() for leaf in out.leaves])

        start = self._device.now_ms()
        try:
            verdict = self._compare(
                graph,
                lambda: graph.audited_forward(run),
                as_written,
                nondeterministic=graph.nondeterministic,
                num_written=1,
                distances=exact.distances,
                beside_bytes=2 * graph.backward_pass.num_bytes,
            )
        except NotProved as error:
            return Tried(self._plain(tree), graph, not_proved=str(error))
        except Exception:
            # A graph without a verdict is let go of, and a new one is proved.
            return Tried(self._plain(tree))
        assert out is not None
        seconds = (self._device.now_ms() - start) / 1000.0
        if look is not None and watched.touched is not None:
            known = watched.known | set(map(address_of, filter(has_address, graph.all_read(tree))))
            if used_anew(watched.touched, look, known):
                return Tried(out.returned, refusals=[REPLACED], proof_seconds=seconds)
        leads_elsewhere = bool(out.unknown) or graph.paths.lead_elsewhere(
            out.leaves, tree.leaves, since=since
        )
        if leads_elsewhere:
            # A new graph is captured by what is seen of later calls.
            seen = self.seen.of(tree)
            seen.watched, seen.is_stale = -1, True
        half = None
        if graph.backward_pass.places and not leads_elsewhere:
            comparison = Comparison(
                self._device,
                names=of_gradients,
                nondeterministic=graph.nondeterministic,
                distances=exact.distances,
            )
            half = BackwardHalf(graph, run, comparison, out_of_memory=self._note_no_room)
        audited = VerdictOnCall(verdict, leads_elsewhere=leads_elsewhere, backward=half)
        value = out.returned if half is None else graph.left.put(half.watch(out, tree.leaves))
        return Tried(value, graph, audited=audited, proof_seconds=seconds)

    def _compare(
        self,
        graph: ModuleGraph,
        replay: Callable[[], Any],
        as_written: Callable[[], Any],
        **options: Any,
    ) -> Verdict:
        """Compare a graph with runs as written, from the state of now; the other options are those of `prove`."""
        _, verdict = prove(
            self._device,
            self._state_of(graph.written, graph.generators),
            replay=replay,
            as_written=as_written,
            reset=lambda: None,
            memory_budget_bytes=self.graphs.limits.budget,
            names=[*graph.names_of_outs(), *self._names_of_gradients(graph)],
            **options,
        )
        return verdict

    def _plain(self, tree: Tree) -> Any:
        """Run a call as written, with nothing watched."""
        return self.runs.as_written(tree.value.args, tree.value.kwargs)

    def _note_no_room(self) -> None:
        self._no_room = "no memory for a copy of the gradients"
        self.runs.report.note = f"no further audits: {self._no_room}"

    def _state_of(
        self, written: Sequence[torch.Tensor], generators: Sequence[torch.Generator]
    ) -> DeviceState:
        """Return what a call changes and was there before."""
        names = {address_of(one): name for name, one in self._module.named_buffers()}
        return DeviceState(
            written,
            self._device,
            names=[names.get(address_of(one), "") for one in written],
            generators=generators,
        )

    def _names_of_gradients(self, graph: ModuleGraph) -> list[str]:
        names = {id(one): name for name, one in self._module.named_parameters()}
        return graph.paths.names_of_gradients(
            [
                names.get(id(one), f"weight {number}")
                for number, one in enumerate(graph.paths.weights, start=1)
            ],
            graph.backward_pass.num_arrived,
        )

    # --- rehearsal ---

    def _touch_eagerly(
        self, tree: Tree, watched: Watched, seen: SeenCalls, weights: list[torch.Tensor]
    ) -> None:
        """See what code that is compiled touches: by an eager run of both passes on copies, which is undone."""
        assert seen.given is not None
        kept, random = FirstWrites(), RandomStates(self._device)
        states, look = random.read(), TouchWatch(self._device, first_uses=kept)
        with ONE_AT_A_TIME, seen.left.unchanged():
            rehearsal = Rehearsal(
                self.runs, tree, seen.given, weights, needs_grad=self.needs_grad, left=seen.left
            )
            copy, _ = rehearsal.memory()
            try:
                with torch.compiler.set_stance("force_eager"), seen.left.unread(look), look:
                    rehearsal.passes(copy, rehearsal.gradients, stand_ins=False)
            finally:
                kept.restore()
                random.write(states)
        watched.known |= set(map(address_of, [*copy.leaves, *rehearsal.memory_of_all()]))
        watched.touched, watched.touched_eagerly = look, True

    def _rehearsed(
        self,
        tree: Tree,
        reads: ReadGuards,
        watched: Watched,
        seen: SeenCalls,
        weights: list[torch.Tensor],
        caller: Stream,
    ) -> Tried:
        touched = watched.touched
        assert touched is not None
        written = [tensor for tensor in touched.written if not self._device.needs_copy(tensor)]
        before = self._state_of(written, touched.generators)
        before.save()
        try:
            assert seen.given is not None
            rehearsal = Rehearsal(
                self.runs, tree, seen.given, weights, needs_grad=self.needs_grad, left=seen.left
            )
            graph, known = self._captured(tree, reads, watched, rehearsal, written)
            return self._proved(
                graph,
                tree,
                rehearsal,
                touched,
                known=known,
                caller=caller,
                is_compiled=watched.touched_eagerly,
            )
        except Exception as error:
            return Tried(None, refusals=why_it_failed(error, watched.host_reads))
        finally:
            before.restore()
            before.forget()

    def _captured(
        self,
        tree: Tree,
        reads: ReadGuards,
        watched: Watched,
        rehearsal: Rehearsal,
        written: list[torch.Tensor],
    ) -> tuple[ModuleGraph, set[int]]:
        """Return a graph of both passes, and addresses of memory that may be another in each run."""
        touched, weights = watched.touched, rehearsal.weights
        assert touched is not None
        beside = [one for one in touched.read if address_of(one) not in watched.known]
        rehearsal.warm_up()
        # Its copies are not part of the graph.
        static, gradients = rehearsal.memory()

        def work(cut: Cut) -> Passes:
            return rehearsal.passes(static, gradients, lambda: cut(lambda: None))

        graph, passes = self.graphs.capture(work, watched, keeps_casts=True)
        if not all(uses_of(passes.out.leaves, passes.targets)):
            raise Refused(OTHER_WEIGHTS)
        others = [tensor for tensor in [*reads.tensors, *weights] if has_address(tensor)]
        passes.out.check_each_once()
        _check_outs(passes, others)
        memory = [weight for weight in weights if not reads.compares(weight)]
        anew = [one for one in touched.written if address_of(one) not in watched.known]
        captured = ModuleGraph(
            graph,
            passes,
            tree,
            rehearsal,
            written=written,
            generators=touched.generators,
            reads=reads,
            memory=[WeightsInPlace(memory)] if memory else [],
            held=[*others, *beside, *anew],
            repeats=not touched.nondeterministic,
        )
        places = map(address_of, [*tree.leaves, *rehearsal.memory_of_all(), *others])
        return captured, watched.known | set(places)

    def _proved(
        self,
        graph: ModuleGraph,
        tree: Tree,
        rehearsal: Rehearsal,
        touched: TouchWatch,
        *,
        known: set[int],
        caller: Stream,
        is_compiled: bool,
    ) -> Tried:
        """Compare a graph with both passes as written."""
        start = self._device.now_ms()
        second_look = TouchWatch(self._device)
        # What an eager run shows of operators is known; kernels are the compiled code's own.
        looks: list[TouchWatch | AtomicKernels] = [AtomicKernels() if is_compiled else second_look]
        # Those of the forward pass, and of a run of both passes once it was seen.
        nondeterministic = list(touched.nondeterministic)

        def as_written() -> Any:
            if not looks:
                with self.runs.side.leave(caller):
                    return rehearsal.run()
            look = looks.pop()
            with rehearsal.left.unread(second_look), self.runs.side.leave(caller), look:
                found = rehearsal.run()
            seen = look.nondeterministic
            nondeterministic.extend(one for one in seen if one not in nondeterministic)
            graph.again.repeats &= not (is_compiled and seen)
            return found

        try:
            verdict = self._compare(
                graph,
                lambda: graph.rehearse(tree.leaves, rehearsal.gradients),
                as_written,
                nondeterministic=nondeterministic,
            )
        except NotProved as error:
            return Tried(None, graph, not_proved=str(error))
        graph.nondeterministic = nondeterministic
        if used_anew(touched, second_look, known):
            raise Refused(REPLACED)
        seconds = (self._device.now_ms() - start) / 1000.0
        return Tried(None, graph, verdict, proof_seconds=seconds)


def _check_outs(passes: Passes, others: Sequence[torch.Tensor]) -> None:
    """Check that what a module returns is memory of its own, and that no two of it overlap.

    Raises:
        Refused: it is not.
    """
    known = {address_of(other) for other in [*others, *passes.inputs]}
    outs = passes.out.leaves
    if any(address_of(leaf) in known for leaf in outs) or have_elements_in_common(outs):
        raise Refused(RETURNS_OTHERS)
