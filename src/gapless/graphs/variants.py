"""What is known of each kind of call, once for each set of values that the step reads from Python."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gapless.graphs.graph_cache import MAX_VARIANTS
from gapless.graphs.proof.trial import Exactness
from gapless.graphs.replay.step_guards import failure_of_reads


if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    from gapless.graphs.proof.same_results import Verdict
    from gapless.graphs.reads.read_guards import ReadGuards
    from gapless.graphs.replay.call_graph import CallGraph
    from gapless.graphs.replay.step_guards import Failure
    from gapless.graphs.warm_ups import Watched


@dataclass(slots=True)
class Pending:
    """A graph that waits for the verdict on it; None if it is not proved."""

    graph: CallGraph
    verdict: Verdict | None


@dataclass(slots=True)
class Variant:
    """What is known of one kind of call while the step reads the same values from Python.

    Attributes:
        watched: what the last watched run showed.
        reads: what the step's code read in it, as it was then.
        pending: a graph that is not used yet.
        graph: that was captured since, None if there is none yet.
        num_steps: taken before that capture.
        num_failed: proofs that failed.
        exactness: of its graph, as its proof has shown.
    """

    watched: Watched
    reads: ReadGuards
    pending: Pending | None = None
    graph: CallGraph | None = None
    num_steps: int = 0
    num_failed: int = 0
    exactness: Exactness = field(default_factory=Exactness)

    @property
    def has_graph(self) -> bool:
        """Whether there is a graph, or one that waits for its verdict."""
        return self.graph is not None or self.pending is not None

    def failure(self) -> Failure | None:
        """Return what is otherwise now, None if nothing is.

        Sync: Does not block the host.
        """
        graph = self.graph if self.pending is None else self.pending.graph
        return failure_of_reads(self.reads) if graph is None else graph.guards.failure()

    def is_dead(self) -> bool:
        """Return whether the step reads other memory by now."""
        failure = self.failure()
        return failure is not None and failure.is_memory


class Variants:
    """The variants of each kind, the newest first."""

    def __init__(self) -> None:
        self._by_kind: dict[Hashable, list[Variant]] = {}

    def __contains__(self, kind: Hashable) -> bool:
        return kind in self._by_kind

    def __iter__(self) -> Iterator[Variant]:
        for variants in self._by_kind.values():
            yield from variants

    def kinds(self) -> list[Hashable]:
        """Return the kinds that have variants."""
        return list(self._by_kind)

    def of(self, kind: Hashable) -> list[Variant]:
        """Return the variants of a kind, none if nothing is known of it."""
        return list(self._by_kind.get(kind, ()))

    def fitting(self, kind: Hashable) -> Variant | None:
        """Return what is known with the values that the step reads now, None if nothing is."""
        return next((one for one in self.of(kind) if one.failure() is None), None)

    def lost(self, kind: Hashable) -> Variant | None:
        """Return the newest graph's variant if no graph does what the step does now, else None."""
        captured = [one for one in self.of(kind) if one.graph is not None]
        if captured and all(one.failure() is not None for one in captured):
            return captured[0]
        return None

    def add(self, kind: Hashable, variant: Variant) -> None:
        """Add the newest one of a kind; the oldest of too many goes."""
        variants = self._by_kind.setdefault(kind, [])
        variants.insert(0, variant)
        del variants[MAX_VARIANTS:]

    def forget(self, kind: Hashable) -> None:
        """Let go of all that is known of a kind."""
        self._by_kind.pop(kind, None)

    def forget_all(self) -> None:
        """Let go of all that is known."""
        self._by_kind.clear()

    def forget_without_graph(self, kind: Hashable) -> None:
        """Let go of what is known of a kind that is not captured any more: it holds its batches."""
        self._keep(kind, [one for one in self.of(kind) if one.has_graph])

    def drop_graphs(self) -> None:
        """Let go of all graphs; what they were captured by stays."""
        for variant in self:
            variant.pending, variant.graph = None, None

    def drop_dead(self) -> None:
        """Let go of those that read memory which is not used any more; one of each kind stays."""
        for kind in self.kinds():
            variants = self.of(kind)
            alive = [one for one in variants if not one.is_dead()]
            captured = [one for one in variants if one.graph is not None]
            # One stays, to be compared with.
            self._keep(kind, alive or (captured or variants)[:1])

    def _keep(self, kind: Hashable, variants: list[Variant]) -> None:
        if variants:
            self._by_kind[kind] = variants
        else:
            self.forget(kind)
