"""What the graphs of one captured object share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from gapless.graphs.replay.graph_gradients import PoolGradients


if TYPE_CHECKING:
    from collections.abc import Callable

    from gapless.device.base import Cut, Device, Graph
    from gapless.graphs.graph_limits import GraphLimits
    from gapless.graphs.watched import Watched
    from gapless.pipeline.host_waits import HostWaits


_T = TypeVar("_T")


class GraphPool:
    """The memory of graphs, which they share: they never run at the same time.

    Args:
        host_waits: the door for the waits that captures are.
        limits: for these graphs and others of the same object.

    Attributes:
        newest: the graph whose memory the next one shares, None before the first.
    """

    def __init__(self, device: Device, host_waits: HostWaits, limits: GraphLimits) -> None:
        self._device, self._host_waits = device, host_waits
        self.newest: Graph | None = None
        self.limits = limits
        self.gradients = PoolGradients()

    def capture(
        self, work: Callable[[Cut], _T], watched: Watched, **options: Any
    ) -> tuple[Graph, _T]:
        """Capture work that draws from the generators of its last watched run; return what it returned, too.

        The other options are those of `Device.capture`.

        Sync: Blocks the host ("capture").
        """
        found: list[tuple[int, _T]] = []

        def queue(cut: Cut) -> None:
            # Read here: torch gives back free memory before a capture begins.
            held = self._device.reserved_memory_bytes()
            found.append((held, work(cut)))

        generators = watched.generators_on(self._device)
        with self._host_waits.blocking("capture"):
            graph = self._device.capture(queue, like=self.newest, generators=generators, **options)
        ((held, out),) = found
        self.newest = graph
        self.limits.note_memory(self._device.reserved_memory_bytes() - held)
        return graph, out

    def leave_memory(self) -> None:
        """Let the next graph begin a pool: no other is left."""
        self.newest, self.gradients = None, PoolGradients()
