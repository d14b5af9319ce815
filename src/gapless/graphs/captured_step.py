"""Launch a whole training step as one piece: a captured graph for each kind of call.

The first calls of a kind run as written, and are watched: what a graph could not repeat refuses the
step. Then the step is captured, which runs nothing, and the graph proves itself: from one state the
graph is replayed, and the step runs as written, twice. What the last run did is what training goes
on with. The graph is used once the comparison has arrived from the device, without a wait.
`capture_ahead` does the same ahead of a run, on batches that are not trained on, and puts back all
that the step writes.

A graph reads its batch from memory that stays where it is. Each batch is copied there on the
device, in order with the step before. What the step returns lies in the graph's memory, and has
to be copied out of it before the next replay overwrites it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gapless.graphs.ahead import AheadOfRun
from gapless.graphs.audit import Audits
from gapless.graphs.audited_calls import AuditedCalls
from gapless.graphs.entries import Entries
from gapless.graphs.fast_path import FastPath
from gapless.graphs.graph_learning import Learning
from gapless.graphs.graph_limits import GraphLimits
from gapless.graphs.graph_pool import GraphPool
from gapless.graphs.interludes import note_interlude
from gapless.graphs.passing_kinds import PassingKinds
from gapless.graphs.ranks.calls_of_ranks import CallsOfRanks
from gapless.graphs.ranks.consent_of_ranks import ConsentOfRanks
from gapless.graphs.reads.batch_reads import BatchReads
from gapless.graphs.refusal import does_not_pay
from gapless.graphs.states import State
from gapless.graphs.step_run import StepRun
from gapless.records.replay_times import loss_text


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gapless.graphs.callee import Callee
    from gapless.graphs.entry import Entry, Variant
    from gapless.graphs.proof.snapshot import Snapshot
    from gapless.graphs.refusal import Refusal
    from gapless.pipeline.tree.flatten import Tree
    from gapless.records.replay_times import PairTimes


DEFAULT_NUM_WARMUP = 2

# Calls that a graph does not take, before it is said.
_MANY_NOT_TAKEN = 20


class CapturedStep:
    """A step that is captured for each kind of batches and then launched as one piece.

    Everything the step does on the device is captured; what it does on the host is not done
    again. Whoever runs the step calls its method `on_host(batch)`, if it has one, before every
    batch. Plain values in a batch are part of its kind, and plain values that the step returns
    stay as they were when it was captured.

    What else the step reads from Python is watched by guards: see `gapless.graphs.reads.read_guards`.

    Keys are captured in the order in which their warm-up ends, so what the limits leave out are
    the keys that come last, usually the rare ones.

    Args:
        num_warmup: eager runs of each kind before its capture, at least 2: the first makes the
            optimizer's state, the second shows whether the step makes it anew.
        limits: for its graphs, and those of others; None: limits of its own.
        audit_every: replays of a graph from one audit to the next; None: see `gapless.graphs.audit`.

    Attributes:
        report: what is captured, and why nothing more is.
        newest_entry: of the last call, but for those that `fast_path` took; they are of the same kind.
    """

    def __init__(
        self,
        callee: Callee,
        *,
        num_warmup: int = DEFAULT_NUM_WARMUP,
        limits: GraphLimits | None = None,
        audit_every: int | None = None,
    ) -> None:
        self.step, self.report = callee.step, callee.report
        self.callee = callee
        self._limits = GraphLimits(callee.device) if limits is None else limits
        self.audits = Audits(self.report, every=audit_every, account=callee.account)
        self.fast_path = FastPath(
            launch=callee.launch, side=callee.side, report=self.report, audits=self.audits
        )
        device, host_waits = callee.device, callee.host_waits
        pool = GraphPool(device, host_waits, self._limits)
        batch_reads = BatchReads(host_waits, device)
        callee.order.add(self.fast_path)
        self.entries = Entries(self.report, pool, batch_reads, self.fast_path)
        self._limits.count(self.entries)
        self._passing = PassingKinds(callee.step, self.report)
        self.learning = Learning(callee, self.entries, pool, batch_reads, num_warmup=num_warmup)
        self.audited = AuditedCalls(callee, self.audits, self.entries, self.learning)
        self.newest_entry: Entry | None = None
        # What runs calls together with those of other ranks, None if this process is alone.
        ranks = callee.consent
        self._ranks = ranks if isinstance(ranks, ConsentOfRanks | CallsOfRanks) else None
        if self._ranks is not None:
            self._ranks.join(self, num_warmup=num_warmup)
        self._num_not_taken = 0

    # --- the way of a call ---

    def run(self, tree: Tree) -> StepRun:
        """Train on a batch, by a graph if there is or can be one.

        Sync: Does not block the host, except where a graph is captured ("capture"), and for values
            of the batch on which it depends what the step does ("batch_value").
        """
        self.audits.begin_call()
        try:
            entry = self.newest_entry = self.entries.of_call(tree)
            self._passing.note(entry, tree)
            done = (self if self._ranks is None else self._ranks).take(entry, tree)
        except BaseException:
            self.audits.forget_call()
            raise
        # Ranks decide together, and by no clock.
        self.audits.end_call(entry.times, "plain" if self.callee.consent.asks else done.what)
        return done

    def take(self, entry: Entry, tree: Tree) -> StepRun:
        """Run a call of a kind, without other ranks: by its graph, or one state further."""
        known = None if self.callee.order.is_open else entry.find()
        variant = None if known is None else self._taking(known, tree)
        if variant is not None and self.audited.may_replay(entry, variant):
            return self.replay(entry, variant, tree)
        self.fast_path.forget()
        if variant is not None:
            with self.callee.on_side_stream():
                return self.audited.run(entry, variant, tree)
        objection = self.callee.objection_to(tree)
        if objection is not None:
            return StepRun(self.run_refused(tree.value, objection), "plain", None)
        with self.callee.on_side_stream():
            # Its graph cannot take this call: there is nothing to learn.
            return self._learn(entry, tree) if known is None else self.learning.run_plain(tree)

    def _learn(self, entry: Entry, tree: Tree) -> StepRun:
        """Run a call as written, and bring its kind one state further: see `gapless.graphs.states`."""
        if self.callee.order.is_open:
            return self.learning.run_plain(tree)
        if self.report.is_rest_over:
            self.lift_refusal()
        if entry.state is State.REFUSED:
            return self.learning.run_refused(tree)
        if not entry.variants:
            return self.learning.run_watched(entry, tree)
        if self.learning.take_verdicts(entry):
            variant = entry.find()
            if variant is not None and variant.graph and variant.graph.why_not(tree) is None:
                if self.audited.may_replay(entry, variant):
                    return self._launch(variant, tree)
                return self.audited.run(entry, variant, tree)
        if self.report.forbids_all:
            return self.learning.run_plain(tree)
        return self.learning.run_and_learn(entry, tree)

    def find(self, entry: Entry, tree: Tree) -> Variant | None:
        """Return a variant whose graph can take a call, None if there is none."""
        variant = entry.find()
        return None if variant is None else self._taking(variant, tree)

    def _taking(self, variant: Variant, tree: Tree) -> Variant | None:
        """Return a variant whose guards hold if its graph can take a call, else None."""
        assert variant.graph is not None
        why_not = variant.graph.why_not(tree)
        if why_not is None:
            return variant
        # It is said once, after some calls.
        self._num_not_taken += 1
        if self._num_not_taken == _MANY_NOT_TAKEN and self.report.note is None:
            self.report.note = f"calls ran as written beside their graph: {why_not}"
        return None

    def replay(self, entry: Entry, variant: Variant, tree: Tree) -> StepRun:
        """Run a call by the graph of a variant, which the next call may try first."""
        assert variant.graph is not None
        self.fast_path.offer(entry, variant, variant.graph, tree)
        return self._launch(variant, tree)

    def _launch(self, variant: Variant, tree: Tree) -> StepRun:
        graph, is_own = variant.graph, self.callee.side is not None
        assert graph is not None
        out = self.callee.launch(lambda: graph.replay(tree, is_own=is_own))
        self.report.num_replays += 1
        return StepRun(out, "replay", tree.key())

    # --- other ways ---

    def run_eagerly(self, tree: Tree, *, may_come_again: bool = True) -> StepRun:
        """Train on a batch by the step itself.

        Args:
            tree: the batch, on the device.
            may_come_again: count it as a warm-up run of its kind.
        """
        objection = self.callee.objection_to(tree)
        if objection is not None:
            return StepRun(self.run_refused(tree.value, objection), "plain", None)
        entry = self.entries.of_call(tree)
        # A watched run takes longer than others.
        is_watched = may_come_again and not self.learning.has_seen(entry)
        self.callee.order.hold()
        out = self.learning.run_eagerly(entry if may_come_again else None, tree)
        return StepRun(out, "watch" if is_watched else "plain", tree.key())

    def run_refused(self, batch: Any, refusal: Refusal) -> Any:
        """Train eagerly on a batch that no graph can take; return what the step returns."""
        self.report.num_eager += 1
        self.report.refuse(refusal)
        with self.callee.on_side_stream():
            return self.learning.as_written(batch)

    def capture_ahead(
        self,
        batches: Iterable[Tree],
        *,
        snapshot: Snapshot,
        on_batch: Callable[[int], None] | None = None,
    ) -> None:
        """Capture the step for the keys of these batches, and train on none of them.

        If that cannot be put back, nothing is done; the report has a note.

        Args:
            batches: on the device, one of each kind; the first are captured first, the last are
                what the limits leave out.
            snapshot: of what the step changes, which is put back afterwards.
            on_batch: called with the number of batches done so far.

        Sync: Blocks the host ("capture").
        """
        AheadOfRun(self, snapshot).capture(batches, on_batch)

    def begin_epoch(self) -> None:
        """Let graphs be audited, and ranks ask each other again about what one of them cannot replay.

        Sync: With several ranks, blocks the host until all are here ("agreement").
        """
        note_interlude()
        if self._ranks is not None:
            self._ranks.begin_epoch()

    # --- graphs there are ---

    @property
    def has_graphs(self) -> bool:
        """Whether there are graphs now, or one that waits for the verdict on it."""
        return self.entries.num_graphs > 0

    @property
    def is_refused(self) -> bool:
        """Whether calls were refused for good, and there are no graphs."""
        are_final = (one.is_refused_for_good for one in self.entries.refused())
        return (self.report.forbids_all_for_good or any(are_final)) and not self.has_graphs

    def drop_graphs(self) -> None:
        """Let go of all graphs and their memory; kinds that had their warm-up need no other."""
        self.entries.drop_graphs()

    def forget(self) -> None:
        """Let go of all graphs, and of all that is known of calls."""
        self.drop_graphs()
        self.learning.forget()

    def lift_refusal(self) -> None:
        """Try again what was refused, if the reason may be gone."""
        self.report.lift_refusals()
        self.entries.lift_refusals()

    def give_up_replays(self, entry: Entry, pairs: list[PairTimes], *, is_final: bool) -> None:
        """Let go of the graphs of a kind, whose replays take longer than calls as written."""
        self.fast_path.forget()
        self.entries.forget(entry)
        self.entries.refuse(entry, [does_not_pay(loss_text(pairs), is_final=is_final)])

    def take_up_replays(self, entry: Entry) -> None:
        """Let a kind have graphs again that was given up."""
        if entry.refusal is not None:
            self.report.withdraw(entry.refusal)
        entry.lift_refusal()
        self.learning.once_more(entry)
