"""A step of a user's own loop that talks to other ranks: all replay it at the same calls, or none does.

Whether a step does so is seen when it runs as written: the process groups count their collectives. A
step that does not is captured by each rank alone.

The calls of a step that does are the clock of all ranks, since its collectives meet in their order. At
calls that all ranks know beforehand each tells the others what it has called so far, and how far it
is with the kind of this call: at every call while a kind is open on any rank, then at each 16th. Kinds
are told as numbers in the order in which a rank has first seen them. So ranks may train on batches of
other shapes, as long as these change at the same calls; where they do not, graphs of different captures
would meet, and all ranks run as written from then on.
"""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from gapless.graphs.consent import Readiness
from gapless.graphs.quick_call import NOT_ALIKE
from gapless.graphs.ranks.audits_of_ranks import AuditsOfRanks
from gapless.graphs.ranks.together import Together
from gapless.graphs.refusal import ON_ANOTHER_RANK, Refusal
from gapless.graphs.step_run import StepRun
from gapless.ranks import collectives_so_far, user_ranks


if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Sequence

    from gapless.graphs.entry import Entry, Variant
    from gapless.graphs.quick_call import QuickCall
    from gapless.graphs.ranks.together import RunsAlone
    from gapless.pipeline.host_waits import HostWaits
    from gapless.pipeline.tree.flatten import Tree
    from gapless.ranks import Peers


# Calls from one question to the next when no kind is open.
_CALLS_BETWEEN = 16

# A kind is open for so many calls after it ran as written.
_CALLS_OPEN = 64

# Of the number for all calls so far.
_FACTOR, _LARGE_PRIME = 1_000_003, 2**61 - 1

T = TypeVar("T")

WITH_SOME = Refusal(
    "ranks",
    "the step talks to some of the ranks, and captured are steps that talk to all of them; capture "
    "the model and the optimizer instead: gapless.capture(model, optimizer)",
    name="a group of some ranks",
)
UNLIKE = Refusal(
    "ranks",
    "the ranks do not call the step alike: kinds of batches change at other calls, and graphs of "
    "different captures would meet; let shapes change on all ranks at once, or capture the model and "
    "the optimizer instead: gapless.capture(model, optimizer)",
    name="calls that differ between ranks",
)


@dataclass(frozen=True)
class _Told:
    """What a rank tells the others at a call.

    Attributes:
        step: number of the captured step among those of its process that talk, in the order in which they
            were first seen to.
        calls: a number for all calls so far, of which kinds they were and which were replays.
        readiness: with the kind of this call.
        gives_up: whether nothing is captured any more.
    """

    step: int
    call: int
    calls: int
    readiness: Readiness
    audit: Readiness
    is_open: bool
    gives_up: bool

    def is_like(self, other: _Told) -> bool:
        return (self.step, self.call, self.calls) == (other.step, other.call, other.calls)


class CallsOfRanks:
    """The consent of the ranks of a user's own process group, at calls of one step.

    A step that does not talk to them runs alone.

    Args:
        host_waits: the door for the waits for other ranks ("agreement").

    Attributes:
        asks: whether the step talks to other ranks.
        refusal: why nothing is captured any more, on all ranks; None: it may be.
        is_over: whether the step has been told so, and runs as written.
        is_audit: whether all ranks audit the call of now.
        audits: at which calls they do.
    """

    _num_that_talk = 0

    # The ranks of a user have no heartbeat of ours.
    capturing = staticmethod(nullcontext[None])

    def __init__(self, host_waits: HostWaits, *, audit_every: int | None = None) -> None:
        self.is_audit = False
        self.audits = AuditsOfRanks(audit_every)
        self.asks = False
        self.refusal: Refusal | None = None
        self.is_over = False
        self._host_waits = host_waits
        self._ranks: Peers | None = None
        # Numbered when it is first seen to talk: one that does not may be captured by one rank alone.
        self._step = -1
        self._talks_to_some = False
        self.num_calls = self._next_question = 0
        self._calls = 0
        self._open_until = _CALLS_OPEN
        self._numbers: dict[int, int] = {}

    def join(self, step: RunsAlone, *, num_warmup: int) -> None:
        """Run the calls of a captured step from now on."""
        self._alone = step
        self.together = Together(step, self, num_warmup=num_warmup, is_lifted=False)

    @contextmanager
    def watch(self) -> Iterator[None]:
        """See whether the body, a run of the step as written, talks to other ranks."""
        if self.asks:
            yield
            return
        before = collectives_so_far()
        yield
        after = collectives_so_far()
        sizes = {
            size
            for group, (size, count) in after.items()
            if size > 1 and count > before.get(group, (size, 0))[1]
        }
        if not sizes:
            return
        self.asks = True
        self._step = CallsOfRanks._num_that_talk
        CallsOfRanks._num_that_talk += 1
        world = max(size for size, _ in after.values())
        self._talks_to_some = min(sizes) < world
        if world not in sizes:
            # The others may have nothing to ask.
            self.refusal = WITH_SOME

    def least(self, readiness: Readiness) -> Readiness:
        """Return the least readiness of all ranks, which are at the same capture.

        Raises:
            RanksError: another rank is gone.

        Sync: Blocks the host until all ranks have answered ("agreement").
        """
        return min(self._told_by_all(readiness)) if self.asks else readiness

    def refusals_of_reads(self, sites: Sequence[str]) -> list[Refusal]:
        """Return nothing: calls that differ in them are told of as kinds of their own."""
        del sites
        return []

    # --- calls ---

    def take(self, entry: Entry, tree: Tree) -> StepRun:
        """Run a call of a kind, as all ranks do."""
        alone = self._alone
        if not self.asks or self.is_over:
            return alone.take(entry, tree)
        if alone.fast_path.counted is None:
            # Quick calls are counted, and no graph is audited at a turn of its own.
            alone.audits.end_all()
            alone.fast_path.counted = self.counted
            alone.entries.forget_quick_calls()
        variant = alone.find(entry, tree)
        least = self._tell_others(entry, tree, variant)
        if self.refusal is not None:
            self._end(self.refusal)
        elif variant is not None and self.is_audit:
            return self.together.audit(entry, variant, tree)
        elif variant is not None:
            return alone.replay(entry, variant, tree)
        alone.fast_path.forget()
        with alone.callee.on_side_stream():
            if least is Readiness.READY:
                alone.callee.report.num_eager += 1
                return StepRun(self.together.capture(entry, tree), "capture", tree.key())
            if least is Readiness.NEVER:
                self.together.settle_without(entry)
            watched = None if entry.is_refused else entry
            return StepRun(alone.learning.run_eagerly(watched, tree), "plain", tree.key())

    def _tell_others(self, entry: Entry, tree: Tree, variant: Variant | None) -> Readiness | None:
        """Count a call; return the least readiness of all ranks if they tell each other now.

        Raises:
            RanksError: another rank is gone, or does not come.

        Sync: Blocks the host until all ranks are here, if they tell each other ("agreement").
        """
        if self.refusal is not None:
            return None
        if variant is None:
            objection = self._alone.callee.objection_to(tree)
            if objection is not None:
                self._alone.entries.refuse(entry, [objection])
        readiness = self._readiness(entry, variant)
        self._count(tree.key(), is_replay=variant is not None)
        self.is_audit = False
        if variant is None and readiness is not Readiness.NEVER:
            self._open_until = self.num_calls + _CALLS_OPEN
        if not self._is_asked(self.num_calls):
            return None
        is_open = self.num_calls < self._open_until
        gives_up = self._alone.callee.report.forbids_all_for_good or self._talks_to_some
        audit = Readiness.READY if self.together.can_audit(variant) else Readiness.NOT_YET
        if self.audits.cannot:
            audit = Readiness.NEVER
        told = _Told(self._step, self.num_calls, self._calls, readiness, audit, is_open, gives_up)
        of_ranks: list[Any] = self._told_by_all(told)
        if not all(isinstance(other, _Told) and told.is_like(other) for other in of_ranks):
            self.refusal = UNLIKE
            return Readiness.NEVER
        if any(other.gives_up for other in of_ranks):
            self.refusal = WITH_SOME if self._talks_to_some else ON_ANOTHER_RANK
            return Readiness.NEVER
        are_open = any(other.is_open for other in of_ranks)
        self._next_question = self.num_calls + (1 if are_open else _CALLS_BETWEEN)
        self.is_audit = self.audits.is_due(self.num_calls) and self.audits.decide(
            self.num_calls, Readiness(min(other.audit for other in of_ranks))
        )
        return Readiness(min(other.readiness for other in of_ranks))

    def _readiness(self, entry: Entry, variant: Variant | None) -> Readiness:
        if variant is not None:
            return Readiness.READY
        report = self._alone.callee.report
        if report.is_rest_over:
            self._alone.lift_refusal()
        if report.forbids_all and not report.forbids_all_for_good:
            return Readiness.NOT_YET
        # There is a graph, which does not take this call.
        if any(one.graph is not None and one.failure() is None for one in entry.variants):
            return Readiness.NOT_YET
        return self.together.readiness(entry)

    def _end(self, refusal: Refusal) -> None:
        """Capture nothing any more, as all ranks do from this call on."""
        self.is_over = True
        report = self._alone.callee.report
        if refusal is not ON_ANOTHER_RANK or not report.forbids_all_for_good:
            report.refuse(refusal)
        self._alone.entries.drop_graphs()

    def begin_epoch(self) -> None:
        """Do nothing: the epochs of a user's loop are not known."""

    def counted(self, kind: Hashable, replay: QuickCall) -> QuickCall:
        """Return a quick call that counts its replays, and takes none where ranks tell each other."""

        def call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if self._is_asked(self.num_calls + 1):
                return NOT_ALIKE
            out = replay(args, kwargs)
            if out is not NOT_ALIKE:
                self._count(kind, is_replay=True)
            return out

        return call

    def _is_asked(self, call: int) -> bool:
        return call >= self._next_question or call == self.audits.next_call

    def _count(self, kind: Hashable, *, is_replay: bool) -> None:
        number = self._numbers.setdefault(hash(kind), len(self._numbers))
        self._calls = (self._calls * _FACTOR + 2 * number + is_replay + 1) % _LARGE_PRIME
        self.num_calls += 1

    def _told_by_all(self, value: T) -> list[T]:
        with self._host_waits.blocking("agreement"):
            if self._ranks is None:
                self._ranks = user_ranks(self._host_waits.device.torch_device)
            return self._ranks.agree(value)
