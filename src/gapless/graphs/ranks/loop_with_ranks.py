"""A captured step of a user's own loop, which may talk to other ranks: all replay it at the same calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.graphs.consent import Readiness
from gapless.graphs.ranks.together import Together
from gapless.graphs.refusal import ON_ANOTHER_RANK
from gapless.graphs.step_run import StepRun


if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from gapless.graphs.entry import Entry, Variant
    from gapless.graphs.ranks.calls_of_ranks import CallsOfRanks
    from gapless.graphs.ranks.of_ranks import RunsAlone
    from gapless.graphs.refusal import Refusal
    from gapless.pipeline.tree.flatten import Tree


class LoopWithRanks:
    """Implements `OfRanks` for the ranks of a user; a step that does not talk to them runs alone.

    Args:
        step: the captured step of this rank.
        calls: of the step, at which ranks tell each other how far they are.
        num_warmup: runs of a kind before its capture.
    """

    def __init__(self, step: RunsAlone, calls: CallsOfRanks, *, num_warmup: int) -> None:
        self._step = step
        self._calls = calls
        self._together = Together(step, calls, num_warmup=num_warmup, is_lifted=False)

    @property
    def asks(self) -> bool:
        """Whether the step was seen to talk to others."""
        return self._calls.asks

    @property
    def is_unknown(self) -> bool:
        """Whether it may, and was not seen to."""
        return self._calls.is_unknown

    def watch(self) -> AbstractContextManager[None]:
        """See in the body, a run as written, whether the step talks to others."""
        return self._calls.watch()

    def take(self, entry: Entry, tree: Tree) -> StepRun:
        """Run a call of a kind; see `OfRanks`."""
        calls = self._calls
        if not calls.asks or calls.is_over:
            return self._step.take(entry, tree)
        if self._step.fast_path.counted is None:
            self._count_all_calls()
        variant = self._step.find(entry, tree)
        least = self._tell_others(entry, tree, variant)
        if calls.refusal is not None:
            self._end(calls.refusal)
        elif variant is not None and calls.is_audit:
            return self._together.audit(entry, variant, tree)
        elif variant is not None:
            return self._step.replay(entry, variant, tree)
        self._step.fast_path.forget()
        with self._step.callee.on_side_stream():
            if least is Readiness.READY:
                self._step.callee.report.num_eager += 1
                return StepRun(self._together.capture(entry, tree), "capture", tree.key())
            if least is Readiness.NEVER:
                self._together.settle_without(entry)
            watched = None if entry.is_refused else entry
            out = self._step.learning.run_eagerly(watched, tree)
            return StepRun(out, "eager", tree.key())

    def _count_all_calls(self) -> None:
        """Let quick calls be counted, and no graph be audited at a turn of its own."""
        self._step.audits.end_all()
        self._step.fast_path.counted = self._calls.counted
        self._step.entries.forget_quick_calls()

    def _tell_others(self, entry: Entry, tree: Tree, variant: Variant | None) -> Readiness | None:
        if self._calls.refusal is not None:
            return None
        if variant is None:
            objection = self._step.callee.objection_to(tree)
            if objection is not None:
                self._step.entries.refuse(entry, [objection])
        readiness = self._readiness(entry, variant)
        return self._calls.at_call(
            tree.key(),
            readiness,
            is_replay=variant is not None,
            can_audit=self._together.can_audit(variant),
            is_open=variant is None and readiness is not Readiness.NEVER,
            gives_up=self._step.callee.report.forbids_all_for_good,
        )

    def _readiness(self, entry: Entry, variant: Variant | None) -> Readiness:
        if variant is not None:
            return Readiness.READY
        report = self._step.callee.report
        if report.is_rest_over:
            self._step.lift_refusal()
        if report.forbids_all and not report.forbids_all_for_good:
            return Readiness.NOT_YET
        # There is a graph, which does not take this call.
        if any(one.graph is not None and one.failure() is None for one in entry.variants):
            return Readiness.NOT_YET
        return self._together.readiness(entry)

    def _end(self, refusal: Refusal) -> None:
        """Capture nothing any more, as all ranks do from this call on."""
        self._calls.is_over = True
        report = self._step.callee.report
        if refusal is not ON_ANOTHER_RANK or not report.forbids_all_for_good:
            report.refuse(refusal)
        self._step.entries.drop_graphs()

    def begin_epoch(self) -> None:
        """Do nothing: the epochs of a user's loop are not known."""

    # --- ahead of a run ---

    def may_run_ahead(self, *, is_own: bool) -> bool:
        """Return the same: ranks tell each other at each capture."""
        return is_own

    def capture_ahead(
        self, entry: Entry, tree: Tree, watching: Callable[[], AbstractContextManager[object]]
    ) -> None:
        """Capture a kind on all ranks, ahead of a run; see `OfRanks`."""
        self._together.capture_ahead(entry, tree, watching)
