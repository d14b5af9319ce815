"""At which calls several ranks audit a step: counted calls alone decide.

The collectives of an audit run twice, so all ranks audit at the same call, or none does. Clocks and
other objects' calls differ from rank to rank and decide nothing; the begin of an epoch is the one
interlude that all have. Two questions are asked at each such call: whether all can audit it, and what
they have found. For the second the host waits until the audit is done, once in a block.
"""

from __future__ import annotations

import sys
from random import Random
from typing import Final

from gapless.graphs import audit
from gapless.graphs.audit import FIRST_BLOCK, LONGEST_BLOCK
from gapless.graphs.consent import Readiness


# Places are those of all ranks.
_SEED = 0

_NEVER: Final = sys.maxsize

# Calls in a row at which some rank could not audit, before the next block begins.
_MAX_TRIES = 8


class AuditsOfRanks:
    """The numbers of the calls that are audits. All ranks call each method at the same calls.

    Args:
        every: calls from one audit to the next; None: see `gapless.graphs.audit`.

    Attributes:
        next_call: number of the call that is to be an audit; larger than any other if there is none.
        block: calls of a block, in each of which is an audit.
        cannot: whether this rank has no memory for audits, which it says when it is asked next.
    """

    def __init__(self, every: int | None) -> None:
        self._every = audit.DEFAULT_EVERY if every is None else every
        self._draw = Random(_SEED)
        self.next_call = _NEVER
        self.block = FIRST_BLOCK if self._every is None else self._every
        self.num_differences = 0
        self.cannot = False
        self._is_off = False
        self._rest = self._num_tries = 0
        self._may_count_from = 0
        self._is_after_interlude = False

    def begin(self, call: int) -> None:
        """Draw a place behind a call in which all have captured a graph, unless there is one."""
        if self.next_call == _NEVER and not self._is_off:
            self._begin_block(call)

    def begin_epoch(self, call: int) -> None:
        """Let the next call be an audit, if none was it after an interlude in the last calls."""
        if self._every is None and self.next_call != _NEVER and call >= self._may_count_from:
            self._may_count_from = call + FIRST_BLOCK
            self._is_after_interlude = self.next_call > call + 1
            self.next_call = min(self.next_call, call + 1)

    def is_due(self, call: int) -> bool:
        """Return whether a call is to be an audit, if all ranks can."""
        return call >= self.next_call

    def decide(self, call: int, least: Readiness) -> bool:
        """Return whether all ranks audit a call that is to be one.

        Args:
            call: its number.
            least: readiness of a rank to replay a graph now; `NEVER` if it has no memory for audits.
        """
        if least is Readiness.READY:
            return True
        if least is Readiness.NEVER:
            self.end_all()
        elif self._num_tries + 1 < _MAX_TRIES:
            self._num_tries += 1
            self.next_call = call + 1
        else:
            self._begin_block(call)
        return False

    def end(self, call: int, found: Readiness) -> None:
        """Take in the least that a rank has found in an audit.

        Args:
            call: its number.
            found: `READY` for the same bits, `NOT_YET` for others of a step that may differ by chance,
                `NEVER` for a difference. But for the first, the graphs are dropped, and nothing is
                audited until there are new ones.
        """
        if found is not Readiness.READY:
            self.num_differences += found is Readiness.NEVER
            self.next_call = _NEVER
            self.block = FIRST_BLOCK if self._every is None else self._every
            self._rest = 0
            return
        if self._every is None and not self._is_after_interlude:
            self.block = min(2 * self.block, LONGEST_BLOCK)
        self._begin_block(call)

    def end_all(self) -> None:
        """Audit nothing any more."""
        self._is_off = True
        self.next_call = _NEVER

    def _begin_block(self, call: int) -> None:
        self._num_tries, self._is_after_interlude = 0, False
        if self._every is not None:
            self.next_call = call + self._every
            return
        place = self._draw.randrange(self.block)
        self.next_call = call + self._rest + place + 1
        self._rest = self.block - 1 - place
