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

import inspect
import re
from collections import Counter, deque
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch

from gapless.errors import BatchError
from gapless.graphs.account import account_of
from gapless.graphs.audit import Audits
from gapless.graphs.call_windows import CallWindows
from gapless.graphs.capture_report import CaptureReport
from gapless.graphs.entries import Entries
from gapless.graphs.entry import Pending, Variant
from gapless.graphs.graph_limits import GraphLimits
from gapless.graphs.graph_pool import GraphPool
from gapless.graphs.interludes import note_interlude
from gapless.graphs.passing_kinds import PassingKinds
from gapless.graphs.proof.consent import Alone, Readiness
from gapless.graphs.proof.trial import Exactness, Trial
from gapless.graphs.quick_call import quick_call
from gapless.graphs.ranks.agreed_kinds import AgreedKinds
from gapless.graphs.ranks.calls_of_ranks import CallsOfRanks
from gapless.graphs.ranks.consent_of_ranks import ConsentOfRanks
from gapless.graphs.reads.batch_reads import BatchReads, has_values, without_values
from gapless.graphs.reads.host_watch import HostWatch
from gapless.graphs.reads.known_optimizers import KnownOptimizers
from gapless.graphs.reads.observation import Observer
from gapless.graphs.reads.weight_guards import KnownWeights
from gapless.graphs.refusal import (
    ON_ANOTHER_RANK,
    Refusal,
    objection_to_autocast,
    objection_to_batch,
    objection_to_modes,
    objection_to_profiler,
    skipped_read,
    unlike_values,
    value_of_one_rank,
)
from gapless.graphs.replay.batch_changes import BatchWatch, returns_part_of
from gapless.graphs.replay.gradient_graph import is_used_up, used_up
from gapless.graphs.replay.step_graph import StepGraph
from gapless.graphs.sharded import refusal_of_step, refusal_of_weights
from gapless.graphs.step_call import work_of_batch
from gapless.graphs.updates.update_outside import Updates
from gapless.graphs.warm_ups import WarmUps
from gapless.pipeline.tree.flatten import OF_SHAPE, flatten
from gapless.ranks import drop_before_groups_end
from gapless.records.replay_times import loss_text


if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable
    from contextlib import AbstractContextManager

    from gapless.device.base import Device
    from gapless.graphs.account import What
    from gapless.graphs.entry import Entry
    from gapless.graphs.modules.module_trial import ModuleTrial
    from gapless.graphs.proof.consent import Consent
    from gapless.graphs.proof.snapshot import Snapshot
    from gapless.graphs.proof.trial import Tried
    from gapless.graphs.quick_call import QuickCall
    from gapless.graphs.ranks.audits_of_ranks import AuditsOfRanks
    from gapless.graphs.reads.weight_guards import Gradients
    from gapless.graphs.replay.call_graph import CallGraph
    from gapless.graphs.replay.step_guards import Failure
    from gapless.graphs.watched import Watched
    from gapless.pipeline.host_waits import HostWaits
    from gapless.pipeline.step import SplitStep, WholeStep
    from gapless.pipeline.tree.flatten import Tree
    from gapless.records.replay_times import PairTimes


DEFAULT_NUM_WARMUP = 2

# Every change of a guarded value costs a capture. Allow 3; beyond that at most one per 20 steps.
_MAX_CHANGES = 3
_MIN_STEPS_PER_CHANGE = 20

# Of so many the one that came most often is named.
_NUM_NEWEST = 32

# A number of an optimizer may change in each epoch, and the first epochs may be short.
_MAX_NUMBER_CHANGES = 10

# A number of an optimizer that changes after fewer steps is not captured again.
_OFTEN = 50

# Where it cannot be read anew: beyond so many graphs, so many replays of each are too few to be
# worth their captures.
_TOO_FEW = ((3, 3), (10, 20))

# Kinds of calls that are refused before no other is tried: if none was captured, and in any case.
_MAX_REFUSED = 3
_MOST_REFUSED = 100

_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)

# On several ranks: calls of a kind after its warm-up in which all may become ready.
_MAX_ASKED = 8

# Calls that a graph does not take, before it is said.
_MANY_NOT_TAKEN = 20

# Proofs of a step that does not repeat itself, before it is refused.
_MAX_PROOFS = 3


@dataclass(slots=True)
class StepRun:
    """What happened to one batch.

    Attributes:
        out: what the step returned, valid until the next batch.
        way: how it ran: eagerly, as a graph (`replay`), or eagerly while it was watched or a graph
            was captured for it (`capture`), which takes longer.
        kind: what the batch shares with others that the same graph can take; None if no graph can
            take it.
    """

    out: Any
    way: Literal["eager", "replay", "capture"]
    kind: Hashable | None
    action: Literal["watch", "capture", "audit"] | None = None

    @property
    def what(self) -> What:
        """What it is to the account."""
        if self.way == "replay":
            return "replay"
        return self.action or "plain"


def _call(replay: Callable[..., Any], *args: Any) -> Any:
    return replay(*args)


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
        step: takes a batch on the device, trains on it and returns its loss.
        device: where it runs.
        host_waits: the door for the waits that captures are.
        num_warmup: eager runs of each kind before its capture, at least 2: the first makes the
            optimizer's state, the second shows whether the step makes it anew.
        limits: for its graphs, and those of others; None: limits of its own.
        on_side_stream: returns a context for what is no replay: eager runs and captures.
        launch: calls a function that launches a graph, with the arguments that follow, and
            returns what it returns.
        work: takes the value of a tree and does the step on it; None: the step takes the value
            as its batch.
        plain_work: the same in calls of which nothing is learnt; None: as `work`.
        rates: what becomes of rates that change: see `gapless.capture`.
        may_cut: whether a graph may be cut at an update: see `Updates`.
        returns_copies: whether replays return tensors that no later replay overwrites.
        gradients_are_given: as of `Trial`.
        report: to write to; None: a new one.
        make_trial: returns what captures and proves; None: for graphs of the whole step.
        objection: says why no graph can take a batch; None: as for a whole step.
        compares_replays: whether calls run as written where replays do not pay.
        audit_every: replays of a graph from one audit to the next; None: see `gapless.graphs.audit`.
        consent: of the ranks that run the same steps. With several of them each kind is captured
            once or never, and the host waits for the proof.

    Attributes:
        step: the step itself.
        report: what is captured, and why nothing more is.
        quick_call: replays the graph that the last two calls of `run` replayed, on calls like
            them; None if they were of two graphs, or of none.
    """

    def __init__(
        self,
        step: SplitStep | WholeStep | Callable[[Any], Any],
        *,
        device: Device,
        host_waits: HostWaits,
        num_warmup: int = DEFAULT_NUM_WARMUP,
        limits: GraphLimits | None = None,
        on_side_stream: Callable[[], AbstractContextManager[None]] = nullcontext,
        launch: Callable[..., Any] = _call,
        work: Callable[[Any], Any] | None = None,
        plain_work: Callable[[Any], Any] | None = None,
        rates: Literal["exact", "tensor"] = "exact",
        may_cut: bool = True,
        returns_copies: bool = False,
        gradients_are_given: bool = False,
        report: CaptureReport | None = None,
        make_trial: Callable[[GraphPool, HostWatch], ModuleTrial] | None = None,
        objection: Callable[[Tree], Refusal | None] | None = None,
        compares_replays: bool = False,
        consent: Consent | None = None,
        audit_every: int | None = None,
    ) -> None:
        self.step = step
        self.report = CaptureReport() if report is None else report
        self.quick_call: QuickCall | None = None
        self._newest: CallGraph | None = None
        self._device = device
        self._host_waits = host_waits
        self._consent = Alone() if consent is None else consent
        self._calls = consent if isinstance(consent, CallsOfRanks) else None
        self._of_ranks = consent if isinstance(consent, ConsentOfRanks) else None
        self._on_side_stream = on_side_stream
        self._launch = launch
        self._returns_copies = returns_copies
        self._work = work or work_of_batch(step)
        self._plain_work = plain_work or self._work
        self._optimizers = KnownOptimizers()
        self._weights = KnownWeights(self._optimizers)
        self._host_watch = HostWatch(
            step,
            on_device=lambda tensor: not device.needs_copy(tensor),
            device=device.torch_device,
            torch_random=device.random_state() is not None,
        )
        self._updates = Updates(device, rates=rates, may_cut=may_cut)
        self._warm_ups = WarmUps(
            num_warmup,
            device=device,
            observer=Observer(
                device,
                optimizers=self._optimizers,
                weights=self._weights,
                is_updating=lambda: self._updates.is_updating,
            ),
            updates=self._updates,
            host_watch=self._host_watch,
            weights=self._weights,
        )
        self._limits = GraphLimits(device) if limits is None else limits
        self._limits.count(self)
        pool = GraphPool(self._limits)
        self._entries = Entries(self.report.spent, pool)
        self._takes_only_expected = False
        self._objection = objection
        self._trial: Trial | ModuleTrial = (
            make_trial(pool, self._host_watch)
            if make_trial is not None
            else Trial(
                self._work,
                device=device,
                host_waits=host_waits,
                graphs=pool,
                weights=self._weights,
                optimizers=self._optimizers,
                updates=self._updates,
                gradients_are_given=gradients_are_given,
                consent=self._consent,
            )
        )
        self._batch_reads = BatchReads(host_waits, device)
        self._passing = PassingKinds()
        self._former: Tree | None = None
        self._num_not_taken = 0
        self._num_changes = 0
        self._newest_changes: deque[Failure] = deque(maxlen=_NUM_NEWEST)
        self._agreed = AgreedKinds(num_warmup)
        self._ahead: Snapshot | None = None
        self._num_warmup = num_warmup
        self._account = account_of(device)
        self._windows = (
            CallWindows(
                device,
                self._account,
                has_room=self._limits.have_room,
                give_up=self._give_up_replays,
            )
            if compares_replays
            else None
        )
        self._audits = Audits(self.report, every=audit_every, account=self._account)

    def run(self, tree: Tree) -> StepRun:
        """Train on a batch, by a graph if there is or can be one.

        Sync: Does not block the host, except where a graph is captured ("capture"), and for values
            of the batch on which it depends what the step does ("batch_value").
        """
        self._audits.begin_call()
        try:
            entry = self._entry_of(tree)
            done = self._run(entry, tree)
        except BaseException:
            self._audits.forget_call()
            raise
        if self._windows is not None:
            self._windows.end_call(entry, done.what)
        # Ranks decide together, and by no clock.
        self._audits.end_call(entry.times, "plain" if self._consent.asks else done.what)
        return done

    def _run(self, entry: Entry, tree: Tree) -> StepRun:
        self._note_kind(entry, tree)
        variant = entry.find() if self._may_replay(entry) else None
        graph = None if variant is None else variant.graph
        why_not = None if graph is None else graph.why_not(tree)
        if why_not is not None:
            self._note_not_taken(why_not)
            variant = graph = None
        if self._calls is not None and self._calls.asks and not self._calls.is_over:
            return self._run_at_call(self._calls, entry, tree, variant)
        if self._of_ranks is not None and self._is_audit_of_ranks(self._of_ranks, variant):
            return self._audit_with_others(self._of_ranks, entry, tree, variant)
        has_to_be_plain = (
            self._windows is not None and self._windows.begin_call(entry, graph) == "plain"
        )
        if variant is not None and not (has_to_be_plain or self._may_not_replay(entry, variant)):
            self._try_first(entry, variant, tree)
            return self._replay(variant, tree)
        self._try_none_first()
        if variant is not None:
            with self._on_side_stream():
                if has_to_be_plain:
                    return self._run_plain(tree)
                return self._audit_or_wait(entry, variant, tree)
        objection = self._objection_to(tree)
        asks = self._consent.asks and self._calls is None
        if objection is not None and not asks:
            return StepRun(self.run_refused(tree.value, objection), "eager", None)
        with self._on_side_stream():
            if asks:
                return self._run_with_others(entry, tree, objection)
            return self._run_without_graph(entry, tree)

    def run_eagerly(self, tree: Tree, *, may_come_again: bool = True) -> StepRun:
        """Train on a batch by the step itself.

        Args:
            tree: the batch, on the device.
            may_come_again: count it as a warm-up run of its kind.

        Sync: Does not block the host, unless the step does.
        """
        objection = self._objection_to(tree)
        if objection is not None:
            return StepRun(self.run_refused(tree.value, objection), "eager", None)
        entry = self._entry_of(tree)
        # A watched run takes longer than others.
        is_watched = may_come_again and not self._warm_ups.are_done(entry)
        out = self._run_eagerly(entry if may_come_again else None, tree)
        return StepRun(out, "capture" if is_watched else "eager", tree.key())

    def run_refused(self, batch: Any, refusal: Refusal) -> Any:
        """Train eagerly on a batch that no graph can take; return what the step returns.

        Sync: Does not block the host, unless the step does.
        """
        self.report.num_eager += 1
        self.report.refuse(refusal)
        with self._on_side_stream():
            return self._work(batch)

    @property
    def num_graphs(self) -> int:
        """How many graphs there are now, those that wait for the verdict on them included."""
        return self._entries.num_graphs

    @property
    def has_graphs(self) -> bool:
        """Whether there are graphs now, or one that waits for the verdict on it."""
        return self.num_graphs > 0

    @property
    def is_refused(self) -> bool:
        """Whether calls were refused for good, and there are no graphs."""
        are_final = (one.is_refused_for_good for one in self._entries.refused())
        return (self.report.forbids_all_for_good or any(are_final)) and not self.has_graphs

    def drop_graphs(self) -> None:
        """Let go of all graphs and their memory; kinds that had their warm-up need no other.

        Sync: Does not block the host.
        """
        self._try_none_first()
        self._entries.drop_graphs()

    def forget(self) -> None:
        """Let go of all graphs, and of all that is known of calls.

        Sync: Does not block the host.
        """
        self.drop_graphs()
        self._entries.forget_all()
        self._host_watch.forget()

    def lift_refusal(self) -> None:
        """Try again what was refused, if the reason may be gone."""
        self.report.lift_refusals()
        for entry in self._entries.refused():
            entry.is_refused = entry.is_refused_for_good

    def begin_epoch(self) -> None:
        """Let graphs be audited, and ranks ask each other again about what one of them cannot replay.

        A rank loses a graph to a change, such as that of a setting of torch. It runs the step as
        written then, beside the graphs of the others: a rank that asks alone waits for ever.

        Sync: With several ranks, blocks the host until all are here ("agreement").
        """
        note_interlude()
        if self._of_ranks is None or not self._agreed:  # as on all ranks
            return
        self._of_ranks.begin_epoch()
        places = self._of_ranks.any_of(self._to_be_asked_again())
        for entry in self._agreed.open_again(places):
            entry.is_refused = entry.is_refused_for_good
        if places:
            self.report.withdraw(ON_ANOTHER_RANK)

    def _to_be_asked_again(self) -> set[int]:
        """Return the places of the settled kinds that this rank could capture, and cannot replay."""
        has_rested = self.report.is_rest_over
        if has_rested:
            self.lift_refusal()
        if self.report.forbids_all:
            return set()
        return {
            place
            for place, entry in enumerate(self._agreed)
            if (
                self._is_lost(entry)
                if entry.agreed == "captured"
                else has_rested and not entry.is_refused
            )
        }

    def _is_lost(self, entry: Entry) -> bool:
        """Return whether there is no graph of a kind, or none for what its calls do now."""
        return not entry.in_use or (entry.is_changed and entry.lost() is not None)

    def _may_replay(self, entry: Entry) -> bool:
        # As long as ranks ask each other about a kind, all of them have to.
        return self._of_ranks is None or entry.agreed is not None

    # --- parts of a run ---

    def _objection_to(self, tree: Tree) -> Refusal | None:
        # What a graph takes is asked less: its kind and guards say that nothing else has changed.
        if self._objection is not None:
            return self._objection(tree)
        return (
            objection_to_batch(tree, needs_copy=self._device.needs_copy)
            or objection_to_autocast(self._device.torch_device.type)
            or objection_to_modes()
        )

    def _entry_of(self, tree: Tree) -> Entry:
        """Return the record of the kind of a call; refuse kinds whose batches have too many values.

        Sync: Blocks the host for each value that belongs to the kind ("batch_value").
        """
        kind = tree.known_key = self._batch_reads.kind_of(tree)
        read = self._batch_reads.with_too_many_values(kind)
        if read is None:
            return self._entries.of(kind)
        base = tree.known_key = without_values(kind)
        self._batch_reads.forget(kind)
        for one in self._entries:
            if without_values(one.kind) == base:
                self._entries.forget(one)
        self._try_none_first()
        entry = self._entries.of(base)
        self._refuse(entry, [unlike_values(read.site)])
        return entry

    def _note_kind(self, entry: Entry, tree: Tree) -> None:
        """Capture nothing for a while if none of the last kinds of calls came again."""
        num_steps, num_graphs = self.report.num_steps, self.report.num_graphs
        if not self._passing.is_new(entry, num_steps=num_steps, num_graphs=num_graphs):
            return
        former, self._former = self._former, None
        if self.report.forbids_all:
            return
        if former is not None:
            difference = former.difference(tree)
            if difference != OF_SHAPE or self._passing.hardly_repeat(num_steps=num_steps):
                self.report.rest(_unlike_calls(difference, self.step))
        elif self._passing.are_passing(num_steps=num_steps, num_graphs=num_graphs):
            # To be compared with the next; its tensors are not held.
            with suppress(BatchError):  # a container that cannot be made anew
                self._former = tree.map(lambda _: torch.empty(0))

    def _note_not_taken(self, why: str) -> None:
        """Say once, after some calls, why they run as written though there is a graph."""
        self._num_not_taken += 1
        if self._num_not_taken == _MANY_NOT_TAKEN and self.report.note is None:
            self.report.note = f"calls ran as written beside their graph: {why}"

    def _try_first(self, entry: Entry, variant: Variant, tree: Tree) -> None:
        """Let the next call try a graph first, if it is the second time in a row."""
        graph = variant.graph
        assert graph is not None
        is_timed = self._windows is not None and self._windows.are_open(graph)
        if graph is not self._newest or is_timed or has_values(tree.key()):
            self._newest, self.quick_call = graph, None
            return
        found = variant.quick_call
        if found is None:
            found = quick_call(
                tree,
                graph,
                launch=self._launch,
                report=self.report,
                begin_call=self._audits.turn_of(graph).begin_call,
                end=partial(self._audits.end_call, entry.times, "replay"),
            )
            if self._calls is not None and self._calls.asks:
                # They decide together on audits, which is no turn of this graph alone.
                self._audits.end_all()
                found = self._calls.counted(tree.key(), found)
            variant.quick_call = found
        self.quick_call = found

    def _try_none_first(self) -> None:
        self._newest = self.quick_call = None

    def _replay(self, variant: Variant, tree: Tree) -> StepRun:
        graph = variant.graph
        assert graph is not None
        out = self._launch(lambda: graph.replay(tree, is_own=self._returns_copies))
        self.report.num_replays += 1
        return StepRun(out, "replay", tree.key())

    def _run_without_graph(self, entry: Entry, tree: Tree) -> StepRun:
        if self.report.is_rest_over:
            self.lift_refusal()
        if entry.is_refused:
            self.report.num_eager += 1
            return StepRun(self._plain_work(tree.value), "eager", tree.key())
        if not entry.variants:
            return self._run_watched(entry, tree)
        if self._take_verdicts(entry):
            variant = entry.find()
            if variant is not None and variant.graph and variant.graph.why_not(tree) is None:
                if self._may_not_replay(entry, variant):
                    return self._audit_or_wait(entry, variant, tree)
                return self._replay(variant, tree)
        if self.report.forbids_all:
            return self._run_plain(tree)
        return self._run_and_learn(entry, tree)

    def _run_and_learn(self, entry: Entry, tree: Tree) -> StepRun:
        """Capture a call whose kind was watched, or watch it again if the step reads other values."""
        # Where nothing is waited for and there is no room, what the step reads is not compared.
        if any(one.pending is not None for one in entry.variants):
            variant = self._variant_now(entry)
            if variant is not None and variant.pending is not None:
                return self._run_plain(tree)
        if not self._account.has_room_for(entry.times, "capture"):
            return self._run_plain(tree)
        variant = self._variant_now(entry)
        if variant is None or variant.graph is not None or not self._may_capture(entry):
            return self._run_watched(entry, tree)
        self.report.num_eager += 1
        return StepRun(self._try(entry, variant, tree), "capture", tree.key(), "capture")

    def _run_plain(self, tree: Tree) -> StepRun:
        return StepRun(self._run_eagerly(None, tree), "eager", tree.key())

    def _run_watched(self, entry: Entry, tree: Tree) -> StepRun:
        """Run a call as written, and watch it if there is something to see and room for that."""
        if self._warm_ups.are_done(entry) or self.report.forbids_all:
            return StepRun(self._run_eagerly(entry, tree), "eager", tree.key())
        has_begun = entry.num_watched > 0
        if entry.times.is_new or not self._account.may_learn(entry.times, has_begun=has_begun):
            return self._run_plain(tree)
        return StepRun(self._run_eagerly(entry, tree), "eager", tree.key(), "watch")

    # --- audits ---

    def _may_not_replay(self, entry: Entry, variant: Variant) -> bool:
        """Return whether a call that a graph could take is an audit, or waits for the verdict of one."""
        if self._consent.asks:
            return False
        if entry.has_switched:
            entry.has_switched = False
            self._audits.begin_interlude()
        self._take_audit()
        # The verdict of an audit may have dropped the graph.
        if self._audits.open is not None or variant.graph is None:
            return True
        return self._audits.turn_of(variant.graph).is_due()

    def _take_audit(self) -> None:
        """Do what the verdict of an audit asks for, if it has arrived.

        Sync: Does not block the host.
        """
        audit = self._audits.open
        if audit is None or not audit.verdict.arrived():
            return
        if audit.verdict.holds:
            self._audits.end_good(audit, is_whole=audit.verdict.is_whole)
            return
        entry = audit.entry
        assert entry is not None
        variant = next((one for one in entry.in_use if one.graph is audit.graph), None)
        if variant is None or variant.exactness.repeats_bits:
            self._note_difference(entry, self._audits.end_bad(audit))
        else:
            # It may differ by chance: a new graph is proved against two runs as written.
            self._audits.open = None
            self._let_go_of(entry, variant)

    def _audit_or_wait(self, entry: Entry, variant: Variant, tree: Tree) -> StepRun:
        graph = variant.graph
        if self._audits.open is not None or graph is None:
            return self._run_plain(tree)
        if not self._account.has_room_for(entry.times, "audit"):
            return self._run_plain(tree)
        self.report.num_eager += 1
        tried = self._trial.audit(tree, graph, variant.watched, variant.exactness)
        if tried.not_proved is not None:
            self._audits.end_all()
            self.report.note = f"no further audits: {tried.not_proved}"
        elif tried.audited is None or tried.refusals:
            # A new graph is proved, and refused if it cannot be.
            self._let_go_of(entry, variant)
        else:
            self._audits.begin(entry, graph, tried.audited)
        return StepRun(self._result(tried.out, tree), "capture", tree.key(), "audit")

    def _let_go_of(self, entry: Entry, variant: Variant) -> None:
        self._entries.drop_graph(entry, variant)
        self._try_none_first()

    def _note_difference(self, entry: Entry, text: str) -> None:
        """Drop all graphs; a second difference refuses the calls of this kind."""
        self.drop_graphs()
        entry.num_differences += 1
        if entry.num_differences > 1:
            self._refuse(entry, [_proved_wrong(text)])

    # --- on several ranks ---

    def _run_with_others(self, entry: Entry, tree: Tree, objection: Refusal | None) -> StepRun:
        """Run a call without a graph, or capture it, as all ranks do at this call."""
        num_asked = self._agreed.num_asked(entry)
        if entry.agreed is not None:
            if objection is None:
                self._note_lost(entry)
        elif num_asked > 0:
            # What speaks against this call may not speak against the next.
            own = self._readiness(entry) if objection is None else Readiness.NOT_YET
            readiness = self._consent.least(own)
            if readiness is Readiness.READY:
                self.report.num_eager += 1
                return StepRun(self._try_with_others(entry, tree), "capture", tree.key())
            if readiness is Readiness.NEVER or num_asked >= _MAX_ASKED:
                self._settle_without(entry, objection)
        if objection is not None:
            self.report.refuse(objection)
        is_open = entry.agreed is None and not entry.is_refused
        is_watched = is_open and objection is None
        out = self._run_eagerly(entry if is_watched else None, tree)
        return StepRun(out, "eager", tree.key())

    def _note_lost(self, entry: Entry) -> None:
        """Note what has changed, once, if the graphs of a kind do not do what the step does now."""
        if entry.is_changed:
            return
        variant = entry.lost()
        if variant is not None:
            entry.is_changed = True
            self._note_change(variant)

    def _readiness(self, entry: Entry) -> Readiness:
        if entry.is_refused or self.report.forbids_all:
            return Readiness.NEVER
        variant = self._variant_now(entry)
        if variant is None:
            return Readiness.NOT_YET
        if variant.graph is not None:
            # Another rank has lost its graph; all capture together.
            self._entries.drop_graph(entry, variant)
            self._device.release_cached_memory()
        return Readiness.READY if self._may_capture(entry) else Readiness.NEVER

    def _try_with_others(self, entry: Entry, tree: Tree) -> Any:
        """Capture and prove a kind that all ranks are ready for; keep the graph if all can.

        Sync: Blocks the host ("capture", "agreement").
        """
        self._agreed.settle(entry, is_captured=False)
        variant = self._variant_now(entry) or entry.variants[0]
        with self._consent.capturing():
            out = self._try(entry, variant, tree)
            if variant.pending is not None:
                self._host_waits.wait_stream(self._device.current_stream(), reason="capture")
                self._take_verdict(entry, variant)
        has_graph = variant.graph is not None
        readiness = Readiness.READY if has_graph else Readiness.NEVER
        if self._consent.least(readiness) is not Readiness.READY:
            self._entries.drop_graphs_in_use(entry)
            variant.drop_graph()
            if has_graph:
                self._refuse_for_others(entry)
        else:
            self._agreed.settle(entry, is_captured=True)
            ranks = self._of_ranks or self._calls
            assert ranks is not None
            ranks.note_captured()
        return out

    def _can_audit(self, variant: Variant | None) -> bool:
        return isinstance(self._trial, Trial) and variant is not None

    def _is_audit_of_ranks(self, ranks: ConsentOfRanks, variant: Variant | None) -> bool:
        can_audit = self._can_audit(variant)
        return ranks.is_audit(Readiness.READY if can_audit else Readiness.NOT_YET)

    def _audit_with_others(
        self,
        ranks: ConsentOfRanks | CallsOfRanks,
        entry: Entry,
        tree: Tree,
        variant: Variant | None,
    ) -> StepRun:
        """Audit a graph at a call at which all ranks do, and act with them on what any has found.

        Sync: Blocks the host until the audit is done, and all have told ("capture", "agreement").
        """
        assert variant is not None
        graph = variant.graph
        assert isinstance(graph, StepGraph)
        assert isinstance(self._trial, Trial)
        self._try_none_first()
        self.report.num_eager += 1
        with self._on_side_stream(), ranks.capturing():
            tried = self._trial.audit(tree, graph, variant.watched, variant.exactness)
            self._host_waits.wait_stream(self._device.current_stream(), reason="capture")
        found = Readiness.NOT_YET
        if tried.not_proved is not None:
            # The others are told when they ask next.
            ranks.audits.cannot, found = True, Readiness.READY
            self.report.note = f"no further audits: {tried.not_proved}"
        elif tried.verdict is not None and not tried.refusals:
            self._audits.begin(entry, graph, tried.verdict)
            tried.verdict.arrived()
            if tried.verdict.holds:
                found = Readiness.READY
            elif variant.exactness.repeats_bits:
                found = Readiness.NEVER
        self._end_audit_with_others(ranks.end_audit(found), found, ranks.audits)
        return StepRun(self._result(tried.out, tree), "capture", tree.key())

    def _end_audit_with_others(
        self, of_all: Readiness, own: Readiness, audits: AuditsOfRanks
    ) -> None:
        audit, self._audits.open = self._audits.open, None
        if audit is not None and own is Readiness.READY:
            self._audits.end_good(audit)
        self.report.audits.block = audits.block
        if of_all is Readiness.READY:
            return
        text = "an audit on another rank found a difference. Graphs are dropped on all ranks"
        if own is Readiness.NEVER and audit is not None:
            text = self._audits.end_bad(audit)
        elif of_all is Readiness.NEVER:
            self.report.audits.differences.append(text)
        self.drop_graphs()
        # All ranks at this call, so that they ask each other in the next ones.
        self._agreed.open_again(self._agreed.captured)
        if audits.num_differences > 1:
            self.report.refuse(_proved_wrong(text))

    def _run_at_call(
        self, calls: CallsOfRanks, entry: Entry, tree: Tree, variant: Variant | None
    ) -> StepRun:
        """Run a call of a step that talks to the ranks of a user, or capture it with them."""
        least = self._tell_others(calls, entry, tree, variant)
        if calls.refusal is not None:
            self._end_calls(calls, calls.refusal)
        elif variant is not None and calls.is_audit:
            return self._audit_with_others(calls, entry, tree, variant)
        elif variant is not None:
            self._try_first(entry, variant, tree)
            return self._replay(variant, tree)
        self._try_none_first()
        with self._on_side_stream():
            if least is Readiness.READY:
                self.report.num_eager += 1
                return StepRun(self._try_with_others(entry, tree), "capture", tree.key())
            if least is Readiness.NEVER:
                self._settle_without(entry)
            is_watched = not entry.is_refused
            return StepRun(
                self._run_eagerly(entry if is_watched else None, tree), "eager", tree.key()
            )

    def _tell_others(
        self, calls: CallsOfRanks, entry: Entry, tree: Tree, variant: Variant | None
    ) -> Readiness | None:
        if calls.refusal is not None:
            return None
        if variant is None:
            objection = self._objection_to(tree)
            if objection is not None:
                self._refuse(entry, [objection])
        readiness = self._readiness_at_call(entry, variant)
        return calls.at_call(
            tree.key(),
            readiness,
            is_replay=variant is not None,
            can_audit=self._can_audit(variant),
            is_open=variant is None and readiness is not Readiness.NEVER,
            gives_up=self.report.forbids_all_for_good,
        )

    def _end_calls(self, calls: CallsOfRanks, refusal: Refusal) -> None:
        """Capture nothing any more, as all ranks do from this call on."""
        calls.is_over = True
        if refusal is not ON_ANOTHER_RANK or not self.report.forbids_all_for_good:
            self.report.refuse(refusal)
        self.drop_graphs()

    def _readiness_at_call(self, entry: Entry, variant: Variant | None) -> Readiness:
        if variant is not None:
            return Readiness.READY
        if self.report.is_rest_over:
            self.lift_refusal()
        if self.report.forbids_all and not self.report.forbids_all_for_good:
            return Readiness.NOT_YET
        # There is a graph, which does not take this call.
        if any(one.graph is not None and one.failure() is None for one in entry.variants):
            return Readiness.NOT_YET
        return self._readiness(entry)

    def _settle_without(self, entry: Entry, objection: Refusal | None = None) -> None:
        self._agreed.settle(entry, is_captured=False)
        if objection is not None:
            self._refuse(entry, [objection])
        elif not entry.is_refused and not self.report.forbids_all:
            self._refuse_for_others(entry)

    def _refuse_for_others(self, entry: Entry) -> None:
        self._refuse(entry, [ON_ANOTHER_RANK])
        if self._of_ranks is not None:
            # The other rank may be able to later, and says so at the begin of an epoch.
            entry.is_refused_for_good = False

    def _capture_one_ahead_with_others(self, entry: Entry, tree: Tree) -> None:
        if entry.agreed is not None:
            return
        entry.is_expected = True
        readiness = self._consent.least(self._readiness(entry))
        for _ in range(self._num_warmup + _MAX_ASKED):
            if readiness is not Readiness.NOT_YET:
                break
            with self._watching_ahead():
                if entry.is_refused or self.report.forbids_all:
                    self._work(tree.value)
                else:
                    self._warm_up(entry, tree)
            readiness = self._consent.least(self._readiness(entry))
        if readiness is Readiness.READY:
            self._try_with_others(entry, tree)
        else:
            self._settle_without(entry)

    # --- refusals ---

    def _refuse(self, entry: Entry, refusals: list[Refusal]) -> None:
        """Refuse calls of a kind; all calls, if no kind was captured and some were refused.

        What a step does depends on its arguments: it may train on some and validate on others.
        """
        if not refusals:
            return
        entry.is_refused = True
        entry.is_refused_for_good = any(refusal.is_final for refusal in refusals)
        num_refused = len(self._entries.refused())
        is_hopeless = not self.report.num_graphs and num_refused >= _MAX_REFUSED
        is_of_all = is_hopeless or num_refused >= _MOST_REFUSED
        for refusal in refusals:
            self.report.refuse(replace(refusal, is_of_call=not is_of_all))
        if entry.is_refused_for_good:
            self._entries.forget_without_graph(entry)
        if self.report.forbids_all_for_good:
            for one in self._entries:
                self._entries.forget_without_graph(one)

    def _may_capture(self, entry: Entry) -> bool:
        # A verdict that has just arrived may have refused it.
        if entry.is_refused or self.report.forbids_all:
            return False
        if not self._warm_ups.are_done(entry):
            return False
        limit = self._limit(entry)
        if limit is not None:
            self.report.refuse(limit)
        return limit is None

    def _limit(self, entry: Entry) -> Refusal | None:
        """Return why no graph of this kind may be captured, None if one may."""
        return self._is_not_expected(entry) or self._limits.reached()

    def _is_not_expected(self, entry: Entry) -> Refusal | None:
        if entry.is_expected or not self._takes_only_expected:
            return None
        return Refusal("not_ahead", "a batch is of the kind of no example input", is_final=False)

    def _run_eagerly(self, entry: Entry | None, tree: Tree) -> Any:
        self.report.num_eager += 1
        if self.report.forbids_all:
            return self._work(tree.value)
        with self._consent.watch():
            if entry is None:
                return self._result(self._plain_work(tree.value), tree)
            if self._warm_ups.are_done(entry):
                return self._result(self._work(tree.value), tree)
            return self._warm_up(entry, tree)

    def _result(self, out: Any, tree: Tree) -> Any:
        """Return what a run as written returned, without graphs of gradients that are used up.

        They would hold on to memory, and a replay makes none. Until a backward pass was seen, the
        loop may need them. What holds a part of the batch stays as it is: it is the caller's.
        """
        if not (self._returns_copies and self._warm_ups.ran_backward):
            return out
        found = flatten(out)
        if not any(map(is_used_up, found.leaves)) or returns_part_of(tree.value, out):
            return out
        try:
            return found.map(_without_graph).value
        except BatchError:  # a container that cannot be made anew, which refuses the step
            return out

    def _warm_up(self, entry: Entry, tree: Tree) -> Any:
        weights = [weight for weight, _ in self._weights.gradients()]
        sharded = refusal_of_weights(weights) or refusal_of_step(self.step)
        objection = sharded or objection_to_profiler()
        if objection is not None:
            self.report.refuse(objection)
            return self._result(self._work(tree.value), tree)
        # Compiled code tells views from tensors of their own, and nothing can be compiled during
        # a capture.
        if self._warm_ups.use_compiled_code and self._warm_ups.is_last(entry):
            copy = tree.map(torch.clone)
            batch = BatchWatch(copy)
            out, refusals, watched = self._warm_ups.run(entry, copy, self._work)
            with suppress(BatchError):  # such a step is refused when it is captured
                out = batch.done_to(tree, out)
        else:
            out, refusals, watched = self._warm_ups.run(entry, tree, self._work)
        self._refuse(entry, refusals)
        if self._warm_ups.are_done(entry) and not refusals:
            reads = self._host_watch.guards(carried=watched.kept)
            self._entries.add(entry, tree.key(), Variant(watched, reads))
        return out if refusals else self._result(out, tree)

    # --- changes of what graphs bake in ---

    def _variant_now(self, entry: Entry) -> Variant | None:
        """Return what was seen with the values that the step reads now, None if nothing was.

        The kind is then to be watched again.
        """
        variant = entry.fitting()
        if variant is not None:
            return variant
        if entry.variants and self._warm_ups.are_done(entry):
            self._note_change(entry.variants[0])
            self._warm_ups.once_more(entry)
        return None

    def _note_change(self, variant: Variant) -> None:
        failure = variant.failure()
        if failure is None:
            return
        self.report.note_change(failure.text)
        self._num_changes += 1
        self._newest_changes.append(failure)
        if failure.optimizer is not None and self.report.num_steps - variant.num_steps < _OFTEN:
            self._number_changes_often(failure)
        if failure.is_memory:
            self._entries.drop_dead()
        at_least = _MAX_CHANGES if failure.optimizer is None else _MAX_NUMBER_CHANGES
        if self._num_changes > max(at_least, self.report.num_steps / _MIN_STEPS_PER_CHANGE):
            often = Counter(each.what for each in self._newest_changes)
            # The last one of what changed most often.
            told = max(reversed(self._newest_changes), key=lambda each: often[each.what])
            self.report.rest(_too_many_changes(told, self._num_changes))

    def _number_changes_often(self, failure: Failure) -> None:
        assert failure.optimizer is not None
        if self._updates.may_cut:
            # From here on its numbers are read anew in every step.
            self._updates.number_changed(failure.optimizer)
            self._num_changes -= 1
            return
        num_graphs, num_replays = self.report.num_graphs, self.report.num_replays
        if any(num_graphs > many and num_replays < few * num_graphs for many, few in _TOO_FEW):
            self.report.refuse(_rate_changes_often(failure))
            self.drop_graphs()

    # --- replays that do not pay ---

    def _give_up_replays(self, entry: Entry, pairs: list[PairTimes]) -> None:
        self._try_none_first()
        self._entries.forget(entry)
        self._refuse(entry, [_does_not_pay(pairs)])

    # --- captures ---

    def _try(self, entry: Entry, variant: Variant, tree: Tree) -> Any:
        start, num_bytes = self._device.now_ms(), self._limits.captured_bytes
        try:
            tried = self._trial.run(tree, variant.reads, variant.watched)
        finally:
            self.report.seconds += (self._device.now_ms() - start) / 1000.0
            self.report.captured_bytes += self._limits.captured_bytes - num_bytes
        self.report.proof_seconds += tried.proof_seconds
        if tried.graph is not None and not self._knows_reads_of(tree, variant.watched, tried):
            tried.graph = None
        self._refuse(entry, tried.refusals)
        if tried.graph is not None:
            self.report.num_graphs += 1
            variant.pending = Pending(tried.graph, tried.verdict)
            drop_before_groups_end(self)
            variant.num_steps = self.report.num_steps
            self.report.note_updates_as_written(tried.updates_as_written)
            if tried.reads_rates:
                self.report.rates = "tensor"
            if tried.not_proved is not None:
                self.report.not_proved += 1
                self.report.note = f"not proved: {tried.not_proved}"
        return tried.out if tried.refusals else self._result(tried.out, tree)

    def _knows_reads_of(self, tree: Tree, watched: Watched, tried: Tried) -> bool:
        """Return whether the kind of a call says all that the step reads, unlike its capture.

        If not, the step is refused, or values of its batches are part of their kinds from now on.
        """
        if watched.other_reads:
            tried.refusals += [skipped_read(site) for site in dict.fromkeys(watched.other_reads)]
            return False
        if self._of_ranks is not None and watched.batch_reads:
            tried.refusals += [value_of_one_rank(read.site) for read in watched.batch_reads]
            return False
        if not self._batch_reads.add(tree.key(), watched.batch_reads):
            return True
        self.report.note_batch_reads(read.site for read in watched.batch_reads)
        self._try_none_first()
        return False

    def _take_verdicts(self, entry: Entry) -> bool:
        """Use graphs whose verdict has arrived and is good; return whether there are any.

        Sync: Does not block the host.
        """
        taken = [
            self._take_verdict(entry, variant)
            for variant in list(entry.variants)
            if variant.pending is not None
        ]
        return any(taken)

    def _take_verdict(self, entry: Entry, variant: Variant) -> bool:
        assert variant.pending is not None
        graph, verdict = variant.pending.graph, variant.pending.verdict
        if verdict is not None:
            if not verdict.arrived():
                return False
            if not verdict.holds:
                variant.pending = None
                variant.num_failed += 1
                # What does not repeat itself may be out of bounds by chance.
                if verdict.repeats or variant.num_failed >= _MAX_PROOFS:
                    self._refuse(entry, [_proved_wrong(verdict.text)])
                return False
            self.report.proved += 1
            if not verdict.repeats:
                self.report.note = verdict.text
            elif self._windows is not None:
                self._windows.add(graph, entry)
        if verdict is not None:
            repeats = verdict.repeats and not verdict.is_nondeterministic
            variant.exactness = Exactness(repeats, verdict.distances)
        self._entries.use(entry, variant, graph)
        return True

    # --- ahead of a run ---

    def capture_ahead(
        self,
        batches: Iterable[Tree],
        *,
        snapshot: Snapshot,
        only_these: bool = False,
        on_batch: Callable[[int], None] | None = None,
    ) -> None:
        """Capture the step for the keys of these batches, and train on none of them.

        If that cannot be put back, nothing is done; the report has a note.

        Args:
            batches: on the device, one of each kind; the first are captured first, the last are
                what the limits leave out.
            snapshot: of what the step changes, which is put back afterwards.
            only_these: capture no other kinds later.
            on_batch: called with the number of batches done so far.

        Sync: Blocks the host ("capture").
        """
        self._ahead = snapshot
        try:
            objection = self._objection_ahead(snapshot)
            if objection is not None:
                self.report.note = f"{objection.text}; graphs are captured as batches come"
                return
            for number, tree in enumerate(batches, start=1):
                self._capture_one_ahead(tree)
                if on_batch is not None:
                    on_batch(number)
        except torch.OutOfMemoryError:
            if self._consent.asks:  # the other ranks would wait for this one
                raise
            self.report.note = _NO_MEMORY_AHEAD
        finally:
            self._ahead = None
            snapshot.restore(self._gradients_added_to())
        self._host_waits.wait_stream(self._device.current_stream(), reason="capture")
        for entry in self._entries:
            self._take_verdicts(entry)
        if not self._consent.asks:
            self._forget_what_was_put_back()
        self._takes_only_expected = only_these

    def _objection_ahead(self, snapshot: Snapshot) -> Refusal | None:
        """Return why the step cannot run ahead, here or on another rank; None if it can."""
        sharded = refusal_of_step(self.step)
        objection = sharded or snapshot.keep_reached_by(self.step, self._device)
        if self._of_ranks is None:
            return objection
        own = Readiness.READY if objection is None else Readiness.NEVER
        if self._of_ranks.least(own) is Readiness.READY:
            return None
        return objection or ON_ANOTHER_RANK

    def _gradients_added_to(self) -> Gradients:
        """Return weights with the gradients that graphs add to, and so have to find."""
        pending = [
            one.graph if one.pending is None else one.pending.graph
            for entry in self._entries
            for one in entry.variants
        ]
        return [
            (weight, gradient)
            for graph in pending
            for weight, gradient in (
                graph.expected_gradients if isinstance(graph, StepGraph) else ()
            )
            if gradient is not None
        ]

    def _forget_what_was_put_back(self) -> None:
        """Let go of graphs that read what the first call makes: each kind is captured when it comes."""
        for entry in self._entries:
            if all(one.failure() is not None for one in entry.variants):
                self._entries.forget(entry)
                self._warm_ups.once_more(entry)
                self.report.note = _MADE_BY_THE_FIRST

    def _watching_ahead(self) -> AbstractContextManager[object]:
        return nullcontext() if self._ahead is None else self._ahead.watching()

    def _capture_one_ahead(self, tree: Tree) -> None:
        tree = tree.map(torch.clone)
        entry = self._entry_of(tree)
        if self._calls is not None and self._calls.is_unknown:
            # Does it talk to other ranks?
            with self._calls.watch(), self._watching_ahead():
                self._work(tree.value)
        if self._consent.asks:
            self._capture_one_ahead_with_others(entry, tree)
            return
        if entry.variants or self.report.forbids_all:
            return
        entry.is_expected = True
        while not self._warm_ups.are_done(entry) and not self.report.forbids_all:
            with self._watching_ahead():
                self._warm_up(entry, tree)
        if self._may_capture(entry):
            self._try(entry, entry.variants[0], tree)
        if (
            self._entry_of(tree.map(torch.clone)) is not entry
        ):  # values of it belong to its kind by now
            self._capture_one_ahead(tree)


_NO_MEMORY_AHEAD = (
    "the device has no memory to run the step ahead and put back what it changes; graphs are captured as "
    "batches come"
)
_MADE_BY_THE_FIRST = "graphs read what the step makes in its first call, which was put back; they are captured as batches come"


def _without_graph(tensor: torch.Tensor) -> torch.Tensor:
    return used_up(tensor.detach()) if is_used_up(tensor) else tensor


def _too_many_changes(failure: Failure, num_changes: int) -> Refusal:
    times = "once" if num_changes == 1 else f"{num_changes} times"
    return Refusal(
        "too_many_changes",
        f"{failure.text} (changes so far: {times}), and a graph keeps what it was captured with; "
        f"{failure.advice}",
        is_final=False,
    )


def _unlike_calls(difference: str, step: object) -> Refusal:
    return Refusal(
        "unlike_calls",
        "none of the last kinds of calls came again, and a graph takes calls of one kind: "
        f"{_with_names(difference, step)} differs; pad tensors to fewer shapes, and pass a number that "
        "changes as a tensor on the device",
        is_final=False,
    )


def _with_names(difference: str, step: Any) -> str:
    """Call the arguments of a step, or of a module, by their names."""
    function = step.forward if isinstance(step, torch.nn.Module) else step
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # code in C, or no function
        return difference
    names = [one.name for one in parameters if one.kind in _BY_POSITION]
    found = re.fullmatch(r"(?:batch|argument (\d+)) (\(.*\))", difference)
    if found is None:
        return difference
    number = int(found[1] or 1)
    return f"argument {names[number - 1]!r} {found[2]}" if number <= len(names) else difference


def _rate_changes_often(failure: Failure) -> Refusal:
    return Refusal(
        "too_many_changes",
        f"{failure.text}, as it does after few steps, and a graph keeps what it was captured with: "
        "updates run as written; capture the whole step, or give the optimizer's capture "
        'rates="tensor", which rounds rates to float32',
    )


def _proved_wrong(text: str) -> Refusal:
    return Refusal(
        "proved_wrong", f"a graph of the step computes something else than the step: {text}"
    )


def _does_not_pay(pairs: list[PairTimes]) -> Refusal:
    return Refusal(
        "does_not_pay",
        f"replays do not pay: from call to call the loop takes {loss_text(pairs)}, so calls of this "
        "kind run as written",
        name="replays that do not pay",
        is_of_call=True,
    )
