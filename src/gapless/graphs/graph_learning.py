"""The runs as written of a step, in which its graphs are learnt: plain, watched, captured and proved."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any

import torch

from gapless.errors import BatchError
from gapless.graphs.entry import Pending, Variant
from gapless.graphs.objections import objection_to_profiler
from gapless.graphs.proof.trial import Exactness, Trial
from gapless.graphs.reads.failed_look import Look
from gapless.graphs.reads.host_watch import HostWatch
from gapless.graphs.reads.weight_guards import KnownWeights
from gapless.graphs.refusal import proved_wrong, skipped_read, unreadable
from gapless.graphs.replay.batch_changes import BatchWatch, returns_part_of
from gapless.graphs.replay.gradient_graph import is_used_up, used_up
from gapless.graphs.sharded import refusal_of_step, refusal_of_weights
from gapless.graphs.states import Event
from gapless.graphs.step_run import StepRun
from gapless.graphs.updates.update_outside import Updates
from gapless.graphs.value_changes import ValueChanges
from gapless.graphs.warm_ups import WarmUps
from gapless.pipeline.tree.flatten import flatten
from gapless.ranks import drop_before_groups_end


if TYPE_CHECKING:
    from collections.abc import Sequence

    from gapless.graphs.callee import Callee
    from gapless.graphs.entries import Entries
    from gapless.graphs.entry import Entry
    from gapless.graphs.graph_limits import GraphLimits
    from gapless.graphs.graph_pool import GraphPool
    from gapless.graphs.modules.module_trial import ModuleTrial
    from gapless.graphs.proof.trial import Proved, Tried
    from gapless.graphs.reads.batch_reads import BatchRead, BatchReads
    from gapless.graphs.reads.touched import FirstUses
    from gapless.graphs.watched import Watched
    from gapless.pipeline.tree.flatten import Tree


# Proofs of a step that does not repeat itself, before it is refused.
_MAX_PROOFS = 3


class Learning:
    """Learns the graphs of one object."""

    def __init__(
        self,
        callee: Callee,
        entries: Entries,
        pool: GraphPool,
        batch_reads: BatchReads,
        *,
        num_warmup: int,
    ) -> None:
        self._callee = callee
        self._entries = entries
        self._batch_reads = batch_reads
        self._report = callee.report
        self._device = device = callee.device
        self._limits: GraphLimits = pool.limits
        updates = Updates(device, may_cut=not callee.is_update)
        self._weights = KnownWeights(updates.optimizers)
        self._host_watch = HostWatch(
            callee.step,
            on_device=callee.is_on_device,
            device=device.torch_device,
            torch_random=device.random_state() is not None,
        )
        self.changes = ValueChanges(callee.report, entries, updates)
        self._warm_ups = WarmUps(
            num_warmup,
            device=device,
            updates=updates,
            host_watch=self._host_watch,
            weights=self._weights,
            order=callee.order,
        )
        self.trial: Trial | ModuleTrial = (
            callee.make_trial(pool, self._host_watch)
            if callee.make_trial is not None
            else Trial(callee, pool, weights=self._weights, updates=updates)
        )

    def forget(self) -> None:
        """Let go of all that is known of calls."""
        self._entries.forget_all()
        self._host_watch.forget()

    # --- runs as written ---

    def run_refused(self, tree: Tree) -> StepRun:
        """Run a call whose kind is refused."""
        self._report.num_eager += 1
        return StepRun(self.as_written(tree.value), "plain", tree.key())

    def run_plain(self, tree: Tree) -> StepRun:
        """Run a call of which nothing is learnt."""
        return StepRun(self.run_eagerly(None, tree), "plain", tree.key())

    def run_watched(self, entry: Entry, tree: Tree) -> StepRun:
        """Run a call, and watch it if there is something to see and room for that."""
        if self.has_seen(entry) or self._report.forbids_all:
            return StepRun(self.run_eagerly(entry, tree), "plain", tree.key())
        if entry.times.is_new or not self._callee.account.may_learn(
            entry.times, has_begun=entry.num_watched > 0, num_calls=self._report.num_steps
        ):
            return self.run_plain(tree)
        return StepRun(self.run_eagerly(entry, tree), "watch", tree.key())

    def run_eagerly(self, entry: Entry | None, tree: Tree) -> Any:
        """Run a call and return its result; watch it if its kind is given and has to be."""
        self._report.num_eager += 1
        if self._report.forbids_all:
            return self.as_written(tree.value)
        with self._callee.consent.watch():
            if entry is None:
                return self.result(self.as_written(tree.value), tree)
            if self.has_seen(entry):
                return self.result(self._callee.work(tree.value), tree)
            return self.warm_up(entry, tree)

    def as_written(self, batch: Any) -> Any:
        """Run a call of which nothing is learnt, and tell the account what the work alone takes."""
        account = self._callee.account
        order = self._callee.order
        with order.look() if order.is_open else nullcontext():
            account.begin_work()
            out = self._callee.plain_work(batch)
            account.end_work()
        return out

    def has_seen(self, entry: Entry) -> bool:
        """Return whether a kind had all of its watched runs."""
        return self._warm_ups.are_done(entry)

    def once_more(self, entry: Entry) -> None:
        """Ask for another watched run of a kind."""
        self._warm_ups.once_more(entry)

    def result(self, out: Any, tree: Tree) -> Any:
        """Return what a run as written returned, without graphs of gradients that are used up.

        They would hold on to memory, and a replay makes none. Until a backward pass was seen, the
        loop may need them. What holds a part of the batch stays as it is: it is the caller's.
        """
        if not (self._callee.side and self._warm_ups.ran_backward):
            return out
        found = flatten(out)
        if not any(map(is_used_up, found.leaves)) or returns_part_of(tree.value, out):
            return out
        try:
            return found.map(lambda one: used_up(one.detach()) if is_used_up(one) else one).value
        except BatchError:  # a container that cannot be made anew, which refuses the step
            return out

    def warm_up(self, entry: Entry, tree: Tree, *, first_uses: FirstUses | None = None) -> Any:
        """Watch a run, and keep what the last one of its kind shows.

        Args:
            entry: its kind.
            tree: the batch.
            first_uses: ahead of a run, is told what the run is about to write.
        """
        work = self._callee.work
        # What ranks do they do together, and each has numbers of its own.
        self._callee.order.is_given_up |= self._callee.consent.asks
        weights = [weight for weight, _ in self._weights.gradients()]
        sharded = refusal_of_weights(weights) or refusal_of_step(self._callee.step)
        objection = sharded or objection_to_profiler()
        if objection is not None:
            self._report.refuse(objection)
            return self.result(work(tree.value), tree)
        # Compiled code tells views from tensors of their own, and nothing can be compiled during
        # a capture.
        if self._warm_ups.use_compiled_code and self._warm_ups.is_last(entry):
            copy = tree.map(torch.clone)
            batch = BatchWatch(copy)
            out, refusals, watched = self._warm_ups.run(entry, copy, work, first_uses=first_uses)
            with suppress(BatchError):  # such a step is refused when it is captured
                out = batch.done_to(tree, out)
        else:
            out, refusals, watched = self._warm_ups.run(entry, tree, work, first_uses=first_uses)
        left_out = self._callee.order.fast_paths[self._entries.fast_path]
        left_out.by_replay = self._warm_ups.num_nodes
        self._entries.refuse(entry, refusals)
        if not refusals:
            self._let_belong(entry, tree, self._batch_reads.skipped(watched.batch_reads))
        if self.has_seen(entry) and not refusals:
            with Look(self._callee.step) as look:
                reads = self._host_watch.guards(carried=watched.kept)
                self._entries.add(entry, tree.key(), Variant(watched, reads))
            if look.failure is not None:
                self._entries.refuse(entry, [unreadable(look.failure)])
        return out if refusals else self.result(out, tree)

    # --- captures ---

    def run_and_learn(self, entry: Entry, tree: Tree) -> StepRun:
        """Capture a call whose kind was watched, or watch it again if the step reads other values."""
        # Where nothing is waited for and there is no room, what the step reads is not compared.
        if any(one.pending is not None for one in entry.variants):
            variant = self.variant_now(entry)
            if variant is not None and variant.pending is not None:
                return self.run_plain(tree)
        if not self._callee.account.has_room_for(entry.times, "capture"):
            return self.run_plain(tree)
        variant = self.variant_now(entry)
        if variant is None or variant.graph is not None or not self.may_capture(entry):
            return self.run_watched(entry, tree)
        self._report.num_eager += 1
        with self._callee.order.counted(self._entries.fast_path):
            return StepRun(self.capture(entry, variant, tree), "capture", tree.key())

    def variant_now(self, entry: Entry) -> Variant | None:
        """Return what was seen with the values that the step reads now, None if nothing was.

        The kind is then to be watched again.
        """
        variant = entry.fitting()
        if variant is None and entry.variants and self.has_seen(entry):
            self.changes.note(entry.variants[0])
            self.once_more(entry)
        return variant

    def may_capture(self, entry: Entry) -> bool:
        """Return whether a graph may be captured for a kind now; a limit that forbids it is told."""
        # A verdict that has just arrived may have refused it.
        if entry.is_refused or self._report.forbids_all or not self.has_seen(entry):
            return False
        limit = self._limits.reached()
        if limit is not None:
            self._report.refuse(limit)
        return limit is None

    def capture(
        self, entry: Entry, variant: Variant, tree: Tree, *, like: Proved | None = None
    ) -> Any:
        """Capture a call and begin to prove its graph; return what the call returns.

        Args:
            entry: the kind of the call.
            variant: what is known of it.
            tree: the call.
            like: a graph of the same step that was proved before; None: the proof is a whole one.

        Sync: Blocks the host ("capture").
        """
        if variant.has_graph:
            self._entries.drop(entry, [variant])
        start, num_bytes = self._device.now_ms(), self._limits.captured_bytes
        try:
            if like is None:
                tried = self.trial.run(tree, variant.reads, variant.watched)
            else:
                assert isinstance(self.trial, Trial)
                tried = self.trial.run(tree, variant.reads, variant.watched, like=like)
        finally:
            self._report.seconds += (self._device.now_ms() - start) / 1000.0
            self._report.captured_bytes += self._limits.captured_bytes - num_bytes
        self._report.proof_seconds += tried.proof_seconds
        # In the meantime another thread may have captured the call.
        if tried.graph is not None and (
            variant.has_graph or not self._knows_reads_of(entry, tree, variant.watched, tried)
        ):
            tried.graph = None
        self._entries.refuse(entry, tried.refusals)
        if tried.graph is not None:
            self._report.num_graphs += 1
            variant.move(Event.CAPTURED)
            variant.pending = Pending(tried.graph, tried.verdict, like is not None)
            drop_before_groups_end(self._entries)
            variant.num_steps = self._report.num_steps
            self._report.note_updates_as_written(tried.updates_as_written)
            if tried.not_proved is not None:
                self._report.not_proved += 1
                self._report.note = f"not proved: {tried.not_proved}"
        return tried.out if tried.refusals else self.result(tried.out, tree)

    def _knows_reads_of(self, entry: Entry, tree: Tree, watched: Watched, tried: Tried) -> bool:
        """Return whether the kind of a call says all that the step reads, unlike its capture.

        If not, the step is refused, or values of its batches are part of their kinds from now on. That of
        this call is watched once more: its runs may have had other values.
        """
        if watched.other_reads:
            tried.refusals += [skipped_read(site) for site in dict.fromkeys(watched.other_reads)]
            return False
        sites = [read.site for read in watched.batch_reads]
        refusals = self._callee.consent.refusals_of_reads(sites)
        if refusals:
            tried.refusals += refusals
            return False
        if not self._let_belong(entry, tree, watched.batch_reads):
            return True
        entry.variants = []
        self.once_more(entry)
        return False

    def _let_belong(self, entry: Entry, tree: Tree, reads: Sequence[BatchRead]) -> bool:
        """Let values of a batch belong to its kind from now on; return whether any did not before."""
        kind = self._batch_reads.add(tree.key(), reads)
        if kind is tree.key():
            return False
        self._entries.change_kind(entry, kind)
        tree.known_key = kind
        self._report.note_batch_reads(read.site for read in reads)
        self._entries.forget_fast_path()
        return True

    # --- verdicts ---

    def take_verdicts(self, entry: Entry) -> bool:
        """Use graphs whose verdict has arrived and is good; return whether there are any."""
        waiting = [one for one in entry.variants if one.pending is not None]
        taken = [self.take_verdict(entry, variant) for variant in waiting]
        return any(taken)

    def take_verdict(self, entry: Entry, variant: Variant) -> bool:
        """Use the graph of a variant if its verdict has arrived and is good; return whether it is used."""
        assert variant.pending is not None
        graph, verdict = variant.pending.graph, variant.pending.verdict
        if verdict is not None:
            if not verdict.arrived():
                return False
            if not verdict.holds:
                is_like_another = variant.pending.is_like_another
                variant.drop_graph()
                if is_like_another:
                    return False
                variant.num_failed += 1
                # What does not repeat itself may be out of bounds by chance.
                if verdict.repeats or variant.num_failed >= _MAX_PROOFS:
                    self._entries.refuse(entry, [proved_wrong(verdict.text)])
                return False
            self._report.proved += 1
            if not verdict.repeats:
                self._report.note = verdict.text
            else:
                entry.times.may_compare = True
            repeats = verdict.repeats and not verdict.is_nondeterministic
            variant.exactness = Exactness(repeats, verdict.distances)
        self._entries.use(entry, variant, graph)
        return True
