"""How many graphs an object may have, and how much memory of the device they may lead to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from gapless.graphs.refusal import Refusal


if TYPE_CHECKING:
    from gapless.device.base import Device


# Of the device's memory, that the process may hold for a further graph. What is left is for calls as written,
# libraries and fragments.
MEMORY_FRACTION = 0.8

# Each graph takes memory; more than this are a sign of shapes that hardly come again.
DEFAULT_MAX_GRAPHS = 100


class GraphLimits:
    """The limits for all graphs of an object, whoever keeps them: for training or for evaluation.

    Args:
        memory_budget_bytes: device memory of the process that captures may lead to; None: four
            fifths of the device's. A graph that is expected to need more, going by the largest so
            far, is not captured; one that turns out to need more is the last.

    Attributes:
        budget: bytes of the device that the process may hold, None if there is no limit.
    """

    def __init__(
        self,
        device: Device,
        *,
        max_graphs: int = DEFAULT_MAX_GRAPHS,
        memory_budget_bytes: int | None = None,
    ) -> None:
        self.budget = memory_budget_bytes
        total = device.total_memory_bytes()
        if self.budget is None and total is not None:
            self.budget = int(total * MEMORY_FRACTION)
        self.captured_bytes = 0
        self._device = device
        self._max_graphs = max_graphs
        self._largest_bytes = 0
        self._holders: WeakSet[Any] = WeakSet()

    def count(self, holder: Any) -> None:
        """Let the graphs that somebody keeps count, from now on: their number is its `num_graphs`."""
        self._holders.add(holder)

    def note_memory(self, num_bytes: int) -> None:
        """Take in how much memory a capture has reserved."""
        self.captured_bytes += num_bytes
        self._largest_bytes = max(self._largest_bytes, num_bytes)

    def reached(self) -> Refusal | None:
        """Return which limit forbids a further graph, None if none does."""
        return self._has_most_graphs() or self._is_over_budget()

    def have_room(self) -> bool:
        """Return whether as much memory as a capture took is left."""
        return self._is_over_budget() is None

    def _has_most_graphs(self) -> Refusal | None:
        if sum(holder.num_graphs for holder in self._holders) < self._max_graphs:
            return None
        return Refusal(
            "graph_limit",
            f"there are {self._max_graphs} graphs already; pad batches to fewer shapes, or raise "
            "max_graphs",
        )

    def _is_over_budget(self) -> Refusal | None:
        held = self._device.reserved_memory_bytes()
        if self.budget is None or held + self._largest_bytes <= self.budget:
            return None
        return Refusal(
            "memory_budget",
            f"the process holds {held:,} bytes of the device's memory and a capture took up to "
            f"{self._largest_bytes:,}, which is over its budget of {self.budget:,}; pad batches to "
            "fewer shapes, or make them smaller",
            name="memory",
        )
