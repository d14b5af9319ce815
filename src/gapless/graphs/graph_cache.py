"""The graphs of a step by the kinds of its calls, and how many there may be."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.graphs.refusal import Refusal


if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    from gapless.device.base import Device, Graph
    from gapless.graphs.call_graph import CallGraph
    from gapless.graphs.quick_call import QuickCall


# What is left is for libraries and fragments.
DEFAULT_MEMORY_FRACTION = 0.8

# Each graph takes memory; more than this are a sign of shapes that hardly come again.
DEFAULT_MAX_GRAPHS = 100

# Graphs of one kind of call that differ in what the step reads from Python.
MAX_VARIANTS = 8


class GraphCache:
    """Keep graphs by the kinds of calls that they can take, as far as the limits go.

    A kind may have several graphs, which differ in what the step read from Python when they were
    captured, such as modules in training and in evaluation. All graphs share one pool of memory:
    they never run at the same time.

    Args:
        device: where they run.
        max_graphs: graphs at one time.
        memory_budget_bytes: device memory of the process that captures may lead to; None: four
            fifths of the device's. A graph that is expected to need more, going by the largest so
            far, is not captured; one that turns out to need more is the last.

    Attributes:
        expected: the kinds of the examples that were given ahead of a run.
        only_expected: whether other kinds are not captured.
        newest: the graph whose memory the next one shares, None before the first.
        budget: bytes of the device that the process may hold, None if there is no limit.
        quick_calls: made for some of the graphs; they hold on to them.
    """

    def __init__(
        self,
        device: Device,
        *,
        max_graphs: int = DEFAULT_MAX_GRAPHS,
        memory_budget_bytes: int | None = None,
    ) -> None:
        self.expected: set[Hashable] = set()
        self.only_expected = False
        self.newest: Graph | None = None
        self.quick_calls: dict[CallGraph, QuickCall] = {}
        self._device = device
        self._max_graphs = max_graphs
        self.budget = memory_budget_bytes
        if self.budget is None:
            self.budget = memory_share(device, DEFAULT_MEMORY_FRACTION)
        self._largest_bytes = 0
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
                return graph
        return None

    def add(self, kind: Hashable, graph: CallGraph) -> None:
        """Keep a graph for a kind; the one that was not used for longest may go for it."""
        variants = self._graphs.setdefault(kind, [])
        variants.insert(0, graph)
        del variants[MAX_VARIANTS:]
        self.quick_calls = {}

    def drop(self, kind: Hashable) -> None:
        """Let go of all graphs of a kind."""
        self.quick_calls = {}
        self._graphs.pop(kind, None)
        if not self._graphs:
            self.newest = None

    def drop_dead(self) -> None:
        """Let go of graphs that read memory which is not used any more."""
        self.quick_calls = {}
        for kind, variants in list(self._graphs.items()):
            alive = [graph for graph in variants if not _is_dead(graph)]
            self._graphs[kind] = alive
            if not alive:
                del self._graphs[kind]
        if not self._graphs:
            self.newest = None

    def clear(self) -> None:
        """Let go of all graphs and their memory.

        Sync: Does not block the host.
        """
        self._graphs, self.quick_calls = {}, {}
        self.newest = None

    def limit(self, kind: Hashable, *, num_waiting: int = 0) -> Refusal | None:
        """Return why no graph of this kind may be captured, None if one may.

        Args:
            kind: of call.
            num_waiting: graphs that wait for the verdict on them, and will be added.
        """
        return (
            self._is_not_expected(kind)
            or self._has_most_graphs(len(self) + num_waiting)
            or self._is_over_budget()
        )

    def has_room(self) -> bool:
        """Return whether as much memory as a capture took is left, as far as the budget goes."""
        return self._is_over_budget() is None

    def note_memory(self, num_bytes: int) -> None:
        """Take in how much memory a capture took."""
        self._largest_bytes = max(self._largest_bytes, num_bytes)

    def _is_not_expected(self, kind: Hashable) -> Refusal | None:
        if not self.only_expected or kind in self.expected:
            return None
        return Refusal("not_ahead", "a batch is of the kind of no example input", is_final=False)

    def _has_most_graphs(self, num_graphs: int) -> Refusal | None:
        if num_graphs < self._max_graphs:
            return None
        return Refusal(
            "graph_limit",
            f"there are {self._max_graphs} graphs already; pad batches to fewer shapes, or raise "
            "max_graphs",
            is_final=False,
        )

    def _is_over_budget(self) -> Refusal | None:
        held = self._device.reserved_memory_bytes()
        if self.budget is None or held + self._largest_bytes <= self.budget:
            return None
        return Refusal(
            "memory_budget",
            f"the process holds {held:,} bytes of the device's memory and a capture took up to "
            f"{self._largest_bytes:,}, which is over its budget of {self.budget:,}",
            is_final=False,
            name="memory",
        )


def _is_dead(graph: CallGraph) -> bool:
    failure = graph.guards.failure()
    return failure is not None and failure.is_memory


def memory_share(device: Device, fraction: float) -> int | None:
    """Return a share of a device's memory in bytes; None if it has no memory of its own."""
    total = device.total_memory_bytes()
    return None if total is None else int(total * fraction)
