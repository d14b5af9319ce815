"""Captured steps of our own loop, which several ranks run: all capture a kind together, and audit it, or none does."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

from gapless.graphs.consent import Alone, Readiness
from gapless.graphs.ranks.audits_of_ranks import AuditsOfRanks
from gapless.graphs.ranks.together import MAX_ASKED, Together
from gapless.graphs.refusal import ON_ANOTHER_RANK, value_of_one_rank
from gapless.graphs.step_run import StepRun


if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from gapless.graphs.consent import Consent
    from gapless.graphs.entry import Entry
    from gapless.graphs.ranks.together import RunsAlone
    from gapless.graphs.refusal import Refusal
    from gapless.pipeline.host_waits import HostWaits
    from gapless.pipeline.tree.flatten import Tree
    from gapless.ranks import Ranks


class ConsentOfRanks:
    """The consent of several ranks, which are known to run the same steps.

    Args:
        host_waits: the door for the waits for them ("agreement").

    Attributes:
        audits: at which calls of the step all ranks audit.
    """

    asks = True
    watch = staticmethod(nullcontext[None])

    def __init__(self, ranks: Ranks, host_waits: HostWaits) -> None:
        self.audits = AuditsOfRanks(None)
        self._ranks = ranks
        self._host_waits = host_waits
        self.num_calls = 0

    def join(self, step: RunsAlone, *, num_warmup: int) -> None:
        """Run the calls of a captured step from now on."""
        self._alone = step
        self.together = Together(step, self, num_warmup=num_warmup, is_lifted=True)

    def least(self, readiness: Readiness) -> Readiness:
        """Return the least readiness of all ranks.

        Raises:
            RanksError: another rank is gone.

        Sync: Blocks the host until all ranks have answered ("agreement").
        """
        with self._host_waits.blocking("agreement"):
            return Readiness(min(self._ranks.agree(int(readiness))))

    def refusals_of_reads(self, sites: Sequence[str]) -> list[Refusal]:
        """Refuse each: a value may be another on each rank."""
        return [value_of_one_rank(site) for site in sites]

    def capturing(self) -> AbstractContextManager[None]:
        """Tell the others, so that none of them takes this one for standing still."""
        return self._ranks.pause("capture")

    # --- calls ---

    def take(self, entry: Entry, tree: Tree) -> StepRun:
        """Run a call of a kind, as all ranks do."""
        # As long as ranks ask each other about a kind, all of them have to.
        variant = None if entry.agreed is None else self._alone.find(entry, tree)
        can_audit = self.together.can_audit(variant)
        if self._is_audit(Readiness.READY if can_audit else Readiness.NOT_YET):
            assert variant is not None
            return self.together.audit(entry, variant, tree)
        if variant is not None:
            return self._alone.replay(entry, variant, tree)
        self._alone.fast_path.forget()
        objection = self._alone.callee.objection_to(tree)
        return self._run_without_graph(entry, tree, objection)

    def _run_without_graph(self, entry: Entry, tree: Tree, objection: Refusal | None) -> StepRun:
        """Run a call without a graph, or capture it, as all ranks do at this call."""
        report, learning = self._alone.callee.report, self._alone.learning
        num_asked = self.together.num_asked(entry)
        if entry.agreed is not None:
            if objection is None:
                self._note_lost(entry)
        elif num_asked > 0:
            # What speaks against this call may not speak against the next.
            own = Readiness.NOT_YET if objection is not None else self.together.readiness(entry)
            readiness = self.least(own)
            if readiness is Readiness.READY:
                report.num_eager += 1
                return StepRun(self.together.capture(entry, tree), "capture", tree.key())
            if readiness is Readiness.NEVER or num_asked >= MAX_ASKED:
                self.together.settle_without(entry, objection)
        if objection is not None:
            report.refuse(objection)
        is_open = entry.agreed is None and not entry.is_refused
        is_watched = is_open and objection is None
        out = learning.run_eagerly(entry if is_watched else None, tree)
        return StepRun(out, "plain", tree.key())

    def _note_lost(self, entry: Entry) -> None:
        """Note what has changed, once, if the graphs of a kind do not do what the step does now."""
        if entry.is_changed:
            return
        variant = entry.lost()
        if variant is not None:
            entry.is_changed = True
            self._alone.learning.changes.note(variant)

    def _is_audit(self, readiness: Readiness) -> bool:
        """Count a call; return whether it is an audit, for which all ranks have to be ready."""
        self.num_calls += 1
        if not self.audits.is_due(self.num_calls):
            return False
        least = self.least(Readiness.NEVER if self.audits.cannot else readiness)
        return self.audits.decide(self.num_calls, least)

    # --- epochs ---

    def begin_epoch(self) -> None:
        """Let ranks ask each other again about what one of them cannot replay.

        A rank loses a graph to a change, such as that of a setting of torch. It runs the step as
        written then, beside the graphs of the others: a rank that asks alone waits for ever.

        Sync: Blocks the host until all are here ("agreement").
        """
        agreed = self.together.agreed
        if not agreed:  # as on all ranks
            return
        self.audits.begin_epoch(self.num_calls)
        places = self._to_be_asked_again()
        with self._host_waits.blocking("agreement"):
            places = places.union(*self._ranks.agree(sorted(places)))
        entries = [entry for at, entry in enumerate(agreed) if at in places]
        self.together.open_again(entries)
        for entry in entries:
            entry.lift_refusal()
        if places:
            self._alone.callee.report.withdraw(ON_ANOTHER_RANK)

    def _to_be_asked_again(self) -> set[int]:
        """Return the places of the settled kinds that this rank could capture, and cannot replay."""
        report = self._alone.callee.report
        has_rested = report.is_rest_over
        if has_rested:
            self._alone.lift_refusal()
        if report.forbids_all:
            return set()
        return {
            place
            for place, entry in enumerate(self.together.agreed)
            if (
                _is_lost(entry)
                if entry.agreed == "captured"
                else has_rested and not entry.is_refused
            )
        }

    # --- ahead of a run ---

    def may_run_ahead(self, *, is_own: bool) -> bool:
        """Return whether the step may run ahead of a run on all ranks."""
        readiness = Readiness.READY if is_own else Readiness.NEVER
        return self.least(readiness) is Readiness.READY


def _is_lost(entry: Entry) -> bool:
    """Return whether there is no graph of a kind, or none for what its calls do now."""
    return not entry.in_use or (entry.is_changed and entry.lost() is not None)


def consent_of(ranks: Ranks, host_waits: HostWaits) -> Consent:
    """Return how to ask these ranks."""
    return Alone() if ranks.world == 1 else ConsentOfRanks(ranks, host_waits)
