"""Audits: graphs that are in use are compared with the step as written, again and again.

No guard sees everything that a step depends on, so its results are compared as well. A call that would
be a replay is now and then an audit: what the step writes is saved, the graph is replayed, all is put
back, and the step runs as written. Training goes on with that run. What both left behind is compared
on the device, and nobody waits for the verdict: until it has arrived, calls run as written.

Graphs of the same code, for batches of several shapes, take turns: one is audited at a random place in
each block of their replays. The first block has `FIRST_BLOCK` of them, and each good audit doubles the
next, up to `LONGEST_BLOCK`. Whose turn has not come in two blocks of its own replays is audited at the next:
a difference that stays is found by then, or one audit later if all that is new is memory that the step begins
to write: every second audit looks for that. A graph is audited as well at its first replay after an interlude,
unless another of the same code has been, whose guards still hold. At most one interlude in `FIRST_BLOCK`
calls of an object counts, and of those `FREE_INTERLUDES`, and one more for each `LONGEST_BLOCK` of its calls:
an agent that acts between its updates would else train at half its speed. What a further one hides is found in
two blocks, as without it. An interlude is when

- an epoch begins, a module changes its mode, a state is saved or loaded (`gapless.graphs.interludes`),
  more often than before the last call;
- another graph of the same calls was replayed, such as that of evaluation;
- more or fewer calls of other captured objects came between than before the last call;
- the host was away for longer than `_LONG_GAP_MS`, and `_LONG_GAP` times as long as usual.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from gapless.graphs.account import LEAST_BETWEEN_AUDITS
from gapless.graphs.interludes import Interludes, note_interludes_for


if TYPE_CHECKING:
    from gapless.graphs.account import Account, CallTimes
    from gapless.graphs.capture_report import CaptureReport
    from gapless.graphs.entry import Entry
    from gapless.graphs.proof.proof_verdict import AnyVerdict
    from gapless.graphs.reads.read_guards import ReadGuards
    from gapless.graphs.time_spent import What


# Replays of a block.
FIRST_BLOCK = LEAST_BETWEEN_AUDITS
LONGEST_BLOCK = 1_000

# Interludes of an object that count, however few calls it had.
FREE_INTERLUDES = 16

# Audits in a row without the backward pass, before it is said.
_MANY_HALVES = 8

# Replays from one audit to the next, where nobody says otherwise; None: as said above.
DEFAULT_EVERY: int | None = None

_LONG_GAP_MS = 1_000.0
_LONG_GAP = 50.0

# By so much an estimate of the median follows each value.
_FOLLOWS = 0.05


class _Process:
    """What happens in the process between two calls."""

    num_calls = 0
    num_objects = 0


@dataclass(slots=True)
class OpenAudit:
    """An audit whose verdict has not arrived.

    Attributes:
        entry: the kind of the call; None of updates, which have none.
        number: of the call among those of its object.
    """

    entry: Entry | None
    graph: object
    verdict: AnyVerdict
    number: int


class Audits:
    """When the graphs of one captured object are audited.

    Args:
        every: replays from one audit to the next, whatever comes between; None: `DEFAULT_EVERY`.
        seed: of the places of audits; None: another than any before.

    Attributes:
        open: the audit whose verdict is awaited, None if there is none.
    """

    def __init__(
        self,
        report: CaptureReport,
        *,
        every: int | None,
        account: Account,
        seed: int | None = None,
    ) -> None:
        self.open: OpenAudit | None = None
        self._is_off = False
        self._report = report
        self._every = DEFAULT_EVERY if every is None else every
        self._account = account
        report.audits.seed = _Process.num_objects if seed is None else seed
        self._draw = Random(report.audits.seed)
        _Process.num_objects += seed is None
        self._turns: weakref.WeakKeyDictionary[object, AuditTurn] = weakref.WeakKeyDictionary()
        self._codes: dict[object, SameCode] = {}
        self._last_ms = self._usual_ms = 0.0
        self._num_own_calls = self._num_calls_of_others = 0
        self._num_others_between = 0
        self._noted = Interludes.num
        self._num_noted_between = 0
        self.num_interludes = 0
        self._may_count_from = 0
        self._is_in_call = False
        if self._every is None:
            note_interludes_for(self)

    def turn_of(self, graph: object, reads: ReadGuards | None = None) -> AuditTurn:
        """Return whose turn a replay of a graph is; it is made at the first one.

        What else is used in the place of a step, again and again, counts as a graph.

        Args:
            graph: that would be replayed.
            reads: what its code reads: graphs that read the same are of the same code.
        """
        turn = self._turns.get(graph)
        if turn is None:
            self._report.audits.block = self._report.audits.block or (self._every or FIRST_BLOCK)
            places = frozenset() if reads is None else frozenset(reads.named())
            code = self._codes.get(places)
            if code is None:
                code = self._codes[places] = SameCode(self._draw)
            turn = self._turns[graph] = AuditTurn(self, self._every, code, reads)
            turn.last_good = self._report.num_steps
        return turn

    def begin_call(self) -> None:
        """Note that a call begins, unless it is known already."""
        if self._is_in_call:
            return
        self._is_in_call = True
        now_ms = self._account.begin()
        gap_ms, self._last_ms = now_ms - self._last_ms, now_ms
        self._num_own_calls += 1
        _Process.num_calls += 1
        others = _Process.num_calls - self._num_own_calls
        between, self._num_calls_of_others = others - self._num_calls_of_others, others
        noted, self._noted = Interludes.num - self._noted, Interludes.num
        if self._num_own_calls > 2 and (
            between != self._num_others_between
            or noted > self._num_noted_between
            or (gap_ms > _LONG_GAP_MS and gap_ms > _LONG_GAP * self._usual_ms)
        ):
            self.begin_interlude()
        self._num_others_between, self._num_noted_between = between, noted
        # The first gap is no time between two calls.
        if self._num_own_calls <= 2:
            self._usual_ms = gap_ms
        self._usual_ms *= 1 + _FOLLOWS if gap_ms > self._usual_ms else 1 - _FOLLOWS

    def end_call(self, times: CallTimes, what: What) -> None:
        """Note that the call is over, and what it was."""
        self._is_in_call = False
        self._account.end(times, what)

    def forget_call(self) -> None:
        """Note that the call has failed."""
        self._is_in_call = False

    def begin_interlude(self) -> None:
        """Let graphs be audited at their next replays, unless too many interludes have counted."""
        most = FREE_INTERLUDES + self._num_own_calls // LONGEST_BLOCK
        # Before the first replay there is nothing to audit.
        if (
            self._turns
            and self._num_own_calls >= self._may_count_from
            and self.num_interludes < most
        ):
            self._may_count_from = self._num_own_calls + FIRST_BLOCK
            self.num_interludes += 1

    def begin(self, entry: Entry | None, graph: object, verdict: AnyVerdict) -> None:
        """Wait for the verdict of an audit."""
        self.open = OpenAudit(entry, graph, verdict, self._report.num_steps)
        self.turn_of(graph).begin_audit()
        self._report.audits.num += 1

    @property
    def has_just_begun(self) -> bool:
        """Whether no call came behind the open audit: one is plain, and shows what calls take as written by now."""
        if self.open is None or self._every is not None:
            return False
        return self.open.number == self._report.num_steps

    def end_all(self) -> None:
        """Audit nothing any more."""
        self._is_off = True
        for turn in self._turns.values():
            turn.is_owed = False

    def end_good(self, audit: OpenAudit, *, is_whole: bool = True) -> None:
        """Note that a graph has given the same bits, in all that was to be compared if it is whole."""
        self.open = None
        turn = self.turn_of(audit.graph)
        turn.last_good = audit.number
        counts = self._report.audits
        counts.num_equal += 1
        if is_whole and turn.was_owed and self._every is None:
            counts.block = max(counts.block, turn.code.double())
        counts.num_halves += not is_whole
        counts.num_halves_in_a_row = 0 if is_whole else counts.num_halves_in_a_row + 1
        if counts.num_halves_in_a_row == _MANY_HALVES:
            self._report.note = (
                f"the last {_MANY_HALVES} audits compared the forward pass alone: no backward pass like "
                "those before came behind it"
            )

    def end_bad(self, audit: OpenAudit) -> str:
        """Note that a graph has given other bits; return this in one line."""
        self.open = None
        self._codes = {}
        good = self.turn_of(audit.graph).last_good
        text = (
            f"an audit found a difference in call {audit.number:,}: {audit.verdict.text}. The last good "
            f"audit of this graph, or its proof, was in call {good:,}; what replays did since is not "
            "undone. Its graphs are dropped"
        )
        self._report.audits.differences.append(text)
        return text


class SameCode:
    """When one of the graphs of the same code is audited.

    Attributes:
        block: replays in a block, in each of which is an audit.
        audited: the turn of the graph that was audited last.
    """

    __slots__ = ("_draw", "_left", "_rest", "audited", "block")

    def __init__(self, draw: Random) -> None:
        self.block = FIRST_BLOCK
        self.audited: weakref.ref[AuditTurn] | None = None
        self._draw = draw
        # Replays before the next audit, below zero once that is due, and behind it in its block.
        self._left, self._rest = -1, 0

    def has_come_to_audit(self) -> bool:
        """Count a replay; return whether an audit is due."""
        if self._left < 0:
            place = self._draw.randrange(self.block)
            self._left = self._rest + place
            self._rest = self.block - 1 - place
        self._left -= 1
        return self._left < 0

    def double(self) -> int:
        """Let the next block be twice as long, and return how long it is."""
        self.block = min(2 * self.block, LONGEST_BLOCK)
        return self.block


class AuditTurn:
    """When one graph is audited.

    Attributes:
        code: of the graph and others.
        last_good: number of the last call of its object in which it was known to give the same bits.
        is_owed: whether an audit is due, but for an interlude, and has not begun.
        was_owed: whether the last audit was.
    """

    __slots__ = ("__weakref__", "_audits", "_every", "_num", "_num_interludes", "_reads", "code", "is_owed", "last_good", "was_owed")  # fmt: skip

    def __init__(
        self, audits: Audits, every: int | None, code: SameCode, reads: ReadGuards | None
    ) -> None:
        self._audits = audits
        self._every = every
        self.code = code
        self._reads = reads
        # Its proof has just been made.
        self._num_interludes = audits.num_interludes
        # Replays since the last audit.
        self._num = 0
        self.last_good = 0
        self.is_owed = self.was_owed = False

    def is_due(self) -> bool:
        """Count a call that would be a replay; return whether it has to be an audit.

        Once it has to be, it is owed until it begins, however often this is asked.
        """
        audits = self._audits
        if self.is_owed:
            return True
        if self._num_interludes != audits.num_interludes and self._is_unlike_before():
            return True
        self._num += 1
        if self._every is None:
            has_come = self.code.has_come_to_audit() or self._num > 2 * self.code.block
        else:
            has_come = self._num >= self._every
        if not has_come or audits._is_off:
            return False
        self.is_owed = True
        return True

    def _is_unlike_before(self) -> bool:
        """Return whether no graph of the same code was audited since an interlude, with what is read now."""
        audits, last = self._audits, self.code.audited
        other = None if last is None else last()
        is_audited = (
            other is not None
            and other._num_interludes == audits.num_interludes
            and other._reads is not None
            and other._reads.holds()
        )
        if is_audited or self._every is not None or audits._is_off:
            self._num_interludes = audits.num_interludes
            return False
        return True

    def begin_call(self) -> bool:
        """Note that a call begins that would be a replay; return whether it has to be an audit."""
        self._audits.begin_call()
        return self.is_due()

    def begin_audit(self) -> None:
        """Note that an audit has begun."""
        self.was_owed, self.is_owed = self.is_owed, False
        self._num_interludes = self._audits.num_interludes
        self._num = 0
        self.code.audited = weakref.ref(self)
