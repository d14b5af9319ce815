"""Calls that are audits of their graphs, and those that wait for the verdict of one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.graphs.refusal import proved_wrong
from gapless.graphs.states import Event, State
from gapless.graphs.step_run import StepRun


if TYPE_CHECKING:
    from gapless.graphs.audit import Audits, OpenAudit
    from gapless.graphs.callee import Callee
    from gapless.graphs.entries import Entries
    from gapless.graphs.entry import Entry, Variant
    from gapless.graphs.graph_learning import Learning
    from gapless.graphs.proof.proof_verdict import AnyVerdict
    from gapless.graphs.proof.trial import Tried
    from gapless.graphs.replay.call_graph import CallGraph
    from gapless.pipeline.tree.flatten import Tree


class AuditedCalls:
    """Audits the graphs of one object, and does what the verdicts ask for."""

    def __init__(
        self, callee: Callee, audits: Audits, entries: Entries, learning: Learning
    ) -> None:
        self._audits = audits
        self._entries = entries
        self._learning = learning
        self._report, self._account = callee.report, callee.account

    def may_replay(self, entry: Entry, variant: Variant) -> bool:
        """Return whether a call is a replay: no audit, and none whose verdict is awaited."""
        if entry.has_switched:
            entry.has_switched = False
            self._audits.begin_interlude()
        self._take_verdict()
        # The verdict may have dropped the graph.
        if self._audits.open is not None or variant.graph is None:
            return False
        return not self._audits.turn_of(variant.graph, variant.reads).is_due()

    def run(self, entry: Entry, variant: Variant, tree: Tree) -> StepRun:
        """Audit a call, or run it as written if a verdict is awaited or there is no room."""
        graph = variant.graph
        if self._audits.open is not None or graph is None:
            return self._learning.run_plain(tree)
        if not self._account.has_room_for(entry.times, "audit"):
            return self._learning.run_plain(tree)
        self._report.num_eager += 1
        tried = self._learning.trial.audit(tree, graph, variant.watched, variant.exactness)
        if not self.has_ended_all(tried):
            if tried.audited is None or tried.refusals:
                # A new graph is proved, and refused if it cannot be.
                self._let_go_of(entry, variant)
            else:
                self.begin(entry, variant, graph, tried.audited)
        return StepRun(self._learning.result(tried.out, tree), "audit", tree.key())

    def has_ended_all(self, tried: Tried) -> bool:
        """Audit nothing any more if an audit could not be made; return whether it could not."""
        if tried.not_proved is None:
            return False
        self._audits.end_all()
        self._report.note = f"no further audits: {tried.not_proved}"
        return True

    def begin(self, entry: Entry, variant: Variant, graph: CallGraph, verdict: AnyVerdict) -> None:
        """Wait for the verdict of an audit."""
        variant.move(Event.AUDITED)
        self._audits.begin(entry, graph, verdict)

    def end_good(self, audit: OpenAudit, *, is_whole: bool = True) -> None:
        """Use a graph again that has given the same bits."""
        variant = _audited(audit)
        if variant is not None:
            variant.move(Event.EQUAL)
        self._audits.end_good(audit, is_whole=is_whole)

    def _take_verdict(self) -> None:
        """Do what the verdict of an audit asks for, if it has arrived."""
        audit = self._audits.open
        if audit is None or self._audits.has_just_begun or not audit.verdict.arrived():
            return
        if audit.verdict.holds:
            self.end_good(audit, is_whole=audit.verdict.is_whole)
            return
        entry, variant = audit.entry, _audited(audit)
        assert entry is not None
        if variant is None or variant.exactness.repeats_bits:
            self._note_difference(entry, self._audits.end_bad(audit))
        else:
            # It may differ by chance: a new graph is proved against two runs as written.
            self._audits.open = None
            self._let_go_of(entry, variant)

    def _let_go_of(self, entry: Entry, variant: Variant) -> None:
        self._entries.drop(entry, [variant])
        self._entries.forget_fast_path()

    def _note_difference(self, entry: Entry, text: str) -> None:
        """Drop all graphs; a second difference refuses the calls of this kind."""
        self._entries.drop_graphs()
        entry.num_differences += 1
        if entry.num_differences > 1:
            self._entries.refuse(entry, [proved_wrong(text)])


def _audited(audit: OpenAudit) -> Variant | None:
    """Return the variant that was audited, None if its graph is gone."""
    in_use = [] if audit.entry is None else audit.entry.in_use
    found = (one for one in in_use if one.graph is audit.graph and one.state is State.AUDITED)
    return next(found, None)
