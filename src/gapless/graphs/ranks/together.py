"""What all ranks of a step do at the same call: capture a kind, audit a graph, or leave both."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from gapless.graphs.consent import Consent, Readiness
from gapless.graphs.proof.trial import Trial
from gapless.graphs.refusal import ON_ANOTHER_RANK, Refusal, proved_wrong
from gapless.graphs.replay.step_graph import StepGraph
from gapless.graphs.step_run import StepRun


if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from gapless.graphs.audit import Audits
    from gapless.graphs.audited_calls import AuditedCalls
    from gapless.graphs.callee import Callee
    from gapless.graphs.entries import Entries
    from gapless.graphs.entry import Entry, Variant
    from gapless.graphs.fast_path import FastPath
    from gapless.graphs.graph_learning import Learning
    from gapless.graphs.ranks.audits_of_ranks import AuditsOfRanks
    from gapless.pipeline.tree.flatten import Tree


class RunsAlone(Protocol):
    """A captured step, as it runs without other ranks; attributes as of `CapturedStep`."""

    callee: Callee
    entries: Entries
    learning: Learning
    audits: Audits
    audited: AuditedCalls
    fast_path: FastPath

    def take(self, entry: Entry, tree: Tree) -> StepRun:
        """Run a call of a kind."""

    def find(self, entry: Entry, tree: Tree) -> Variant | None:
        """Return a variant whose graph can take a call, None if there is none."""

    def replay(self, entry: Entry, variant: Variant, tree: Tree) -> StepRun:
        """Run a call by the graph of a variant."""

    def lift_refusal(self) -> None:
        """Try again what was refused, if the reason may be gone."""


# Calls of a kind after its warm-up in which all may become ready.
MAX_ASKED = 8


class Ranks(Consent, Protocol):
    """The ranks of a step, which make the same calls.

    Attributes:
        audits: at which of them all audit.
    """

    audits: AuditsOfRanks
    num_calls: int


class Together:
    """Captures and audits with other ranks.

    Args:
        num_warmup: runs of a kind before ranks ask each other about it.
        is_lifted: whether what another rank refuses may be tried again later.

    Attributes:
        agreed: the kinds that are settled, in the order in which they were, which is that of all ranks.
            A kind has another hash on each rank, so that ranks name it by its place in this order.
    """

    def __init__(self, step: RunsAlone, ranks: Ranks, *, num_warmup: int, is_lifted: bool) -> None:
        self.agreed: list[Entry] = []
        self._step, self._report = step, step.callee.report
        self._ranks = ranks
        self._num_warmup = num_warmup
        self._is_lifted = is_lifted

    # --- which kinds are settled ---

    def num_asked(self, entry: Entry) -> int:
        """Count a call without a graph; return how many there were after the warm-up, if positive."""
        entry.num_without_graph += 1
        return entry.num_without_graph - self._num_warmup

    def settle(self, entry: Entry, *, is_captured: bool) -> None:
        """Ask no more about a kind."""
        if entry.agreed is None:
            self.agreed.append(entry)
        entry.agreed = "captured" if is_captured else "not captured"

    def open_again(self, entries: list[Entry]) -> None:
        """Let ranks ask again about kinds, which need no other warm-up."""
        self.agreed = [entry for entry in self.agreed if entry not in entries]
        for entry in entries:
            entry.agreed, entry.is_changed = None, False
            entry.num_without_graph = self._num_warmup

    # --- captures ---

    def readiness(self, entry: Entry) -> Readiness:
        """Return how far this rank is with a kind that has no graph."""
        learning, entries = self._step.learning, self._step.entries
        if entry.is_refused or self._report.forbids_all:
            return Readiness.NEVER
        variant = learning.variant_now(entry)
        if variant is None:
            return Readiness.NOT_YET
        if variant.graph is not None:
            # Another rank has lost its graph; all capture together.
            entries.drop(entry, [variant])
            self._step.callee.device.release_cached_memory()
        return Readiness.READY if learning.may_capture(entry) else Readiness.NEVER

    def capture(self, entry: Entry, tree: Tree) -> Any:
        """Capture and prove a kind that all ranks are ready for; keep the graph if all can.

        Sync: Blocks the host ("capture", "agreement").
        """
        learning, entries = self._step.learning, self._step.entries
        self.settle(entry, is_captured=False)
        variant = learning.variant_now(entry) or entry.variants[0]
        with self._ranks.capturing():
            out = learning.capture(entry, variant, tree)
            if variant.pending is not None:
                stream = self._step.callee.device.current_stream()
                self._step.callee.host_waits.wait_stream(stream, reason="capture")
                learning.take_verdict(entry, variant)
        has_graph = variant.graph is not None
        readiness = Readiness.READY if has_graph else Readiness.NEVER
        if self._ranks.least(readiness) is not Readiness.READY:
            entries.drop(entry, entry.in_use)
            variant.drop_graph()
            if has_graph:
                self._refuse_for_others(entry)
        else:
            self.settle(entry, is_captured=True)
            self._ranks.audits.begin(self._ranks.num_calls)
        return out

    def settle_without(self, entry: Entry, objection: Refusal | None = None) -> None:
        """Capture no graph of a kind, as no rank does."""
        self.settle(entry, is_captured=False)
        if objection is not None:
            self._step.entries.refuse(entry, [objection])
        elif not entry.is_refused and not self._report.forbids_all:
            self._refuse_for_others(entry)

    def _refuse_for_others(self, entry: Entry) -> None:
        self._step.entries.refuse(entry, [ON_ANOTHER_RANK])
        if self._is_lifted:
            # The other rank may be able to later, and says so at the begin of an epoch.
            entry.refusal = replace(ON_ANOTHER_RANK, is_final=False)

    def capture_ahead(
        self, entry: Entry, tree: Tree, watching: Callable[[], AbstractContextManager[object]]
    ) -> None:
        """Capture a kind on all ranks, ahead of a run: nothing of the call is kept."""
        if entry.agreed is not None:
            return
        readiness = self._ranks.least(self.readiness(entry))
        for _ in range(self._num_warmup + MAX_ASKED):
            if readiness is not Readiness.NOT_YET:
                break
            with watching():
                if entry.is_refused or self._report.forbids_all:
                    self._step.callee.work(tree.value)
                else:
                    self._step.learning.warm_up(entry, tree)
            readiness = self._ranks.least(self.readiness(entry))
        if readiness is Readiness.READY:
            self.capture(entry, tree)
        else:
            self.settle_without(entry)

    # --- audits ---

    def can_audit(self, variant: Variant | None) -> bool:
        """Return whether this rank can audit a call that a graph can take."""
        return variant is not None and isinstance(self._step.learning.trial, Trial)

    def audit(self, entry: Entry, variant: Variant, tree: Tree) -> StepRun:
        """Audit a graph at a call at which all ranks do, and act with them on what any has found.

        Sync: Blocks the host until the audit is done, and all have told ("capture", "agreement").
        """
        graph, trial = variant.graph, self._step.learning.trial
        assert isinstance(graph, StepGraph)
        assert isinstance(trial, Trial)
        self._step.fast_path.forget()
        self._report.num_eager += 1
        with self._step.callee.on_side_stream(), self._ranks.capturing():
            tried = trial.audit(tree, graph, variant.watched, variant.exactness)
            stream = self._step.callee.device.current_stream()
            self._step.callee.host_waits.wait_stream(stream, reason="capture")
        found = Readiness.NOT_YET
        if tried.not_proved is not None:
            # The others are told when they ask next.
            self._ranks.audits.cannot, found = True, Readiness.READY
            self._report.note = f"no further audits: {tried.not_proved}"
        elif tried.verdict is not None and not tried.refusals:
            self._step.audited.begin(entry, variant, graph, tried.verdict)
            tried.verdict.arrived()
            if tried.verdict.holds:
                found = Readiness.READY
            elif variant.exactness.repeats_bits:
                found = Readiness.NEVER
        of_all = self._ranks.least(found)
        self._ranks.audits.end(self._ranks.num_calls, of_all)
        self._end_audit(of_all, found)
        return StepRun(self._step.learning.result(tried.out, tree), "audit", tree.key())

    def _end_audit(self, of_all: Readiness, own: Readiness) -> None:
        audits, report = self._step.audits, self._report
        audit, audits.open = audits.open, None
        if audit is not None and own is Readiness.READY:
            self._step.audited.end_good(audit)
        report.audits.block = self._ranks.audits.block
        if of_all is Readiness.READY:
            return
        text = "an audit on another rank found a difference. Graphs are dropped on all ranks"
        if own is Readiness.NEVER and audit is not None:
            text = audits.end_bad(audit)
        elif of_all is Readiness.NEVER:
            report.audits.differences.append(text)
        self._step.entries.drop_graphs()
        # All ranks at this call, so that they ask each other in the next ones.
        self.open_again([one for one in self.agreed if one.agreed == "captured"])
        if self._ranks.audits.num_differences > 1:
            report.refuse(proved_wrong(text))
