"""What is known of one kind of call, in one record."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from gapless.graphs.proof.trial import Exactness
from gapless.graphs.replay.step_guards import failure_of_error, failure_of_reads
from gapless.graphs.states import TRANSITIONS, Event, State


if TYPE_CHECKING:
    from collections.abc import Hashable

    from gapless.graphs.account import CallTimes
    from gapless.graphs.proof.proof_verdict import Verdict
    from gapless.graphs.quick_call import QuickCall
    from gapless.graphs.reads.read_guards import ReadGuards
    from gapless.graphs.refusal import Refusal
    from gapless.graphs.replay.call_graph import CallGraph
    from gapless.graphs.replay.step_guards import Failure
    from gapless.graphs.watched import Watched


# Graphs of one kind of call that differ in what the step reads from Python.
MAX_VARIANTS = 8


@dataclass(slots=True)
class Pending:
    """A graph that waits for its verdict.

    Attributes:
        verdict: on it; None if it is not proved.
        is_like_another: whether it was compared with one run of the step, as a graph of the same code has
            held in a whole proof. If it differs, a whole proof decides.
    """

    graph: CallGraph
    verdict: Verdict | None
    is_like_another: bool = False


@dataclass(slots=True, eq=False)
class Variant:
    """What is known of one kind of call while the step reads the same values from Python.

    Attributes:
        reads: what the step's code read in it, as it was then.
        state: from `SEEN` on.
        pending: a graph that is not used yet.
        graph: that was captured since and is in use, None if there is none.
        quick_call: replays the graph on calls like one, None if there is none; it holds on to the graph.
        num_steps: taken before that capture.
        exactness: of its graph, as its proof has shown.
    """

    watched: Watched
    reads: ReadGuards
    state: State = State.SEEN
    pending: Pending | None = None
    graph: CallGraph | None = None
    quick_call: QuickCall | None = None
    num_steps: int = 0
    num_failed: int = 0
    exactness: Exactness = field(default_factory=Exactness)

    @property
    def has_graph(self) -> bool:
        """Whether there is a graph, or one that waits for its verdict."""
        return self.graph is not None or self.pending is not None

    def move(self, event: Event) -> None:
        """Go where an event leads to."""
        self.state = TRANSITIONS[self.state, event]

    def failure(self) -> Failure | None:
        """Return what is otherwise now, None if nothing is."""
        graph = self.graph if self.pending is None else self.pending.graph
        try:
            return failure_of_reads(self.reads) if graph is None else graph.guards.failure()
        except Exception as error:
            return failure_of_error(error)

    def drop_graph(self) -> None:
        """Let go of its graph; what it was captured by stays."""
        self.move(Event.DROPPED)
        self.pending = self.graph = self.quick_call = None


@dataclass(slots=True, eq=False)
class Entry:
    """One kind of call.

    A kind may have several variants, which differ in what the step reads from Python, such as modules in
    training and in evaluation.

    Attributes:
        number: the hash of the kind.
        learnt: how far it is, up to `SEEN`; its variants go on from there.
        times: of its calls, for the account.
        kind: the kind itself as long as there are variants, else None: it holds every plain value of its
            batch.
        row: number of the row of new kinds in which it came first; 0 if it has not come yet.
        num_watched: runs that were watched, less one if there has to be another.
        num_new_code: last runs in a row that ran code which was not there before.
        is_looked_at: whether it was to be watched.
        variants: the newest first.
        in_use: variants whose graphs are replayed, the one that was used last first.
        has_switched: whether another graph was found than at the call before, such as after a change of
            modes; whoever reads it sets it back.
        refusal: why its calls run as written, None if nothing forbids a graph.
        num_without_graph: on several ranks, calls that had no graph.
        agreed: on several ranks, what they have settled; None as long as they have not.
        is_changed: whether a call was not what was captured, since ranks agreed.
    """

    number: int
    times: CallTimes
    learnt: State = State.PLAIN
    kind: Hashable | None = None
    row: int = 0
    num_watched: int = 0
    num_new_code: int = 0
    is_looked_at: bool = False
    variants: list[Variant] = field(default_factory=list)
    in_use: list[Variant] = field(default_factory=list)
    has_switched: bool = False
    refusal: Refusal | None = None
    num_differences: int = 0
    num_without_graph: int = 0
    agreed: Literal["captured", "not captured"] | None = None
    is_changed: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether nothing is known of it but what its calls take as written."""
        return not (self.is_looked_at or self.is_refused or self.num_without_graph)

    @property
    def state(self) -> State:
        """How far the kind is."""
        return self.learnt if self.refusal is None else State.REFUSED

    @property
    def is_refused(self) -> bool:
        """Whether its calls run as written."""
        return self.refusal is not None

    @property
    def is_refused_for_good(self) -> bool:
        """Whether nothing lifts that."""
        return self.refusal is not None and bool(self.refusal.is_final)

    def lift_refusal(self) -> None:
        """Let the kind go on from where it was, unless it is refused for good."""
        if not self.is_refused_for_good:
            self.refusal = None

    def move(self, event: Event) -> None:
        """Go where an event leads to."""
        self.learnt = TRANSITIONS[self.learnt, event]

    def find(self) -> Variant | None:
        """Return a variant whose graph's guards hold, None if there is none."""
        for place, variant in enumerate(self.in_use):
            graph = variant.graph
            if graph is not None and graph.guards.hold():
                if place:
                    # The next call most likely takes the same one.
                    self.in_use.insert(0, self.in_use.pop(place))
                    self.has_switched = True
                return variant
        return None

    def fitting(self) -> Variant | None:
        """Return what is known with the values that the step reads now, None if nothing is."""
        return next((one for one in self.variants if one.failure() is None), None)

    def lost(self) -> Variant | None:
        """Return the newest graph's variant if no graph does what the step does now, else None."""
        captured = [one for one in self.variants if one.graph is not None]
        if captured and all(one.failure() is not None for one in captured):
            return captured[0]
        return None
