"""What the graphs of one captured object share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.graphs.replay.graph_gradients import PoolGradients


if TYPE_CHECKING:
    from collections.abc import Callable

    from gapless.device.base import Graph
    from gapless.graphs.graph_limits import GraphLimits


class GraphPool:
    """The memory of graphs, which they share: they never run at the same time.

    Args:
        limits: for these graphs and others of the same object.

    Attributes:
        newest: the graph whose memory the next one shares, None before the first.
        gradients: that these graphs have handed out.
        on_leave: called when no graph is left, to let go of what was kept for them.
    """

    def __init__(self, limits: GraphLimits) -> None:
        self.newest: Graph | None = None
        self.limits = limits
        self.gradients = PoolGradients()
        self.on_leave: Callable[[], None] = _do_nothing

    def leave_memory(self) -> None:
        """Let the next graph begin a pool: no other is left."""
        self.newest, self.gradients = None, PoolGradients()
        self.on_leave()


def _do_nothing() -> None:
    pass
