"""The consent of the ranks of a run: each kind is captured by all of them, and audited by all."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

from gapless.graphs.consent import Alone, Readiness
from gapless.graphs.ranks.audits_of_ranks import AuditsOfRanks
from gapless.graphs.refusal import value_of_one_rank


if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from gapless.graphs.consent import Consent
    from gapless.graphs.refusal import Refusal
    from gapless.pipeline.host_waits import HostWaits
    from gapless.ranks import Ranks


class ConsentOfRanks:
    """The consent of several ranks.

    Args:
        ranks: to ask.
        host_waits: the door for the waits for them ("agreement").
        audit_every: as of `AuditsOfRanks`.

    Attributes:
        audits: at which calls of the step all ranks audit.
    """

    asks = True

    def __init__(
        self, ranks: Ranks, host_waits: HostWaits, *, audit_every: int | None = None
    ) -> None:
        self.audits = AuditsOfRanks(audit_every)
        self._ranks = ranks
        self._host_waits = host_waits
        self._call = 0

    def watch(self) -> AbstractContextManager[None]:
        """See nothing: that the step talks to others is known."""
        return nullcontext()

    def least(self, readiness: Readiness) -> Readiness:
        """Return the least readiness of all ranks.

        Raises:
            RanksError: another rank is gone.

        Sync: Blocks the host until all ranks have answered ("agreement").
        """
        with self._host_waits.blocking("agreement"):
            return Readiness(min(self._ranks.agree(int(readiness))))

    def any_of(self, places: set[int]) -> set[int]:
        """Return what any rank names; each calls this at the same points of the run.

        Args:
            places: that this rank names.

        Raises:
            RanksError: another rank is gone.

        Sync: Blocks the host until all ranks have answered ("agreement").
        """
        with self._host_waits.blocking("agreement"):
            return set().union(*self._ranks.agree(sorted(places)))

    def is_audit(self, readiness: Readiness) -> bool:
        """Count a call; return whether it is an audit, for which all ranks have to be ready.

        Args:
            readiness: of this rank to replay a graph for it.

        Raises:
            RanksError: another rank is gone.

        Sync: Blocks the host until all ranks have answered, if it is to be one ("agreement").
        """
        self._call += 1
        if not self.audits.is_due(self._call):
            return False
        least = self.least(Readiness.NEVER if self.audits.cannot else readiness)
        return self.audits.decide(self._call, least)

    def note_captured(self) -> None:
        """Let all ranks audit, from here on, what they have captured at this call."""
        self.audits.begin(self._call)

    def end_audit(self, found: Readiness) -> Readiness:
        """Tell the others what this rank has found in an audit; return the least of all.

        Args:
            found: as of `AuditsOfRanks.end`.

        Raises:
            RanksError: another rank is gone.

        Sync: Blocks the host until all ranks have told ("agreement").
        """
        found = self.least(found)
        self.audits.end(self._call, found)
        return found

    def begin_epoch(self) -> None:
        """Let the next call be an audit: an epoch begins on all ranks."""
        self.audits.begin_epoch(self._call)

    def refusals_of_reads(self, sites: Sequence[str]) -> list[Refusal]:
        """Refuse each: a value may be another on each rank."""
        return [value_of_one_rank(site) for site in sites]

    def capturing(self) -> AbstractContextManager[None]:
        """Tell the others, so that none of them takes this one for standing still."""
        return self._ranks.pause("capture")


def consent_of(ranks: Ranks, host_waits: HostWaits) -> Consent:
    """Return how to ask these ranks."""
    return Alone() if ranks.world == 1 else ConsentOfRanks(ranks, host_waits)
