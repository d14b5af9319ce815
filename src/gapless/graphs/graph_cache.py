"""The graphs of a step by the kinds of its calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.graphs.refusal import Refusal
from gapless.graphs.replay.graph_gradients import PoolGradients


if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    from gapless.device.base import Graph
    from gapless.graphs.graph_limits import GraphLimits
    from gapless.graphs.quick_call import QuickCall
    from gapless.graphs.replay.call_graph import CallGraph


# Graphs of one kind of call that differ in what the step reads from Python.
MAX_VARIANTS = 8


class GraphCache:
    """Keep graphs by the kinds of calls that they can take, as far as the limits go.

    A kind may have several graphs, which differ in what the step read from Python when they were
    captured, such as modules in training and in evaluation. All graphs share one pool of memory:
    they never run at the same time.

    Args:
        limits: for these graphs and others of the same object.

    Attributes:
        expected: the kinds of the examples that were given ahead of a run.
        only_expected: whether other kinds are not captured.
        newest: the graph whose memory the next one shares, None before the first.
        gradients: that these graphs have handed out.
        limits: as given.
        quick_calls: made for some of the graphs; they hold on to them.
        has_switched: whether another graph of a kind was found than at the call before, such as after
            a change of modes; whoever reads it sets it back.
    """

    def __init__(self, limits: GraphLimits) -> None:
        self.expected: set[Hashable] = set()
        self.only_expected = self.has_switched = False
        self.newest: Graph | None = None
        self.limits = limits
        self.gradients = PoolGradients()
        self.quick_calls: dict[CallGraph, QuickCall] = {}
        self._graphs: dict[Hashable, list[CallGraph]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._graphs.values()))

    def __iter__(self) -> Iterator[CallGraph]:
        for variants in self._graphs.values():
            yield from variants

    def find(self, kind: Hashable) -> CallGraph | None:
        """Return a graph of a kind whose guards hold, None if there is none.

        Sync: Does not block the host.
        """
        variants = self._graphs.get(kind)
        if not variants:
            return None
        for number, graph in enumerate(variants):
            if graph.guards.hold():
                if number:
                    # The next call most likely takes the same one.
                    variants.insert(0, variants.pop(number))
                    self.has_switched = True
                return graph
        return None

    def add(self, kind: Hashable, graph: CallGraph) -> None:
        """Keep a graph for a kind; the one that was not used for longest may go for it."""
        variants = self._graphs.setdefault(kind, [])
        variants.insert(0, graph)
        del variants[MAX_VARIANTS:]
        self.quick_calls = {}

    def has(self, kind: Hashable) -> bool:
        """Return whether there is a graph of a kind, whether its guards hold or not."""
        return bool(self._graphs.get(kind))

    def remove(self, kind: Hashable, graph: CallGraph) -> None:
        """Let go of one graph of a kind."""
        others = [one for one in self._graphs.get(kind, ()) if one is not graph]
        if others:
            self._graphs[kind], self.quick_calls = others, {}
        else:
            self.drop(kind)

    def drop(self, kind: Hashable) -> None:
        """Let go of all graphs of a kind."""
        self.quick_calls = {}
        self._graphs.pop(kind, None)
        if not self._graphs:
            self._leave_memory()

    def drop_dead(self) -> None:
        """Let go of graphs that read memory which is not used any more."""
        self.quick_calls = {}
        for kind, variants in list(self._graphs.items()):
            alive = [graph for graph in variants if not _is_dead(graph)]
            self._graphs[kind] = alive
            if not alive:
                del self._graphs[kind]
        if not self._graphs:
            self._leave_memory()

    def clear(self) -> None:
        """Let go of all graphs and their memory.

        Sync: Does not block the host.
        """
        self._graphs, self.quick_calls = {}, {}
        self._leave_memory()

    def _leave_memory(self) -> None:
        self.newest, self.gradients = None, PoolGradients()

    def limit(self, kind: Hashable) -> Refusal | None:
        """Return why no graph of this kind may be captured, None if one may."""
        return self._is_not_expected(kind) or self.limits.reached()

    def _is_not_expected(self, kind: Hashable) -> Refusal | None:
        if not self.only_expected or kind in self.expected:
            return None
        return Refusal("not_ahead", "a batch is of the kind of no example input", is_final=False)


def _is_dead(graph: CallGraph) -> bool:
    failure = graph.guards.failure()
    return failure is not None and failure.is_memory
