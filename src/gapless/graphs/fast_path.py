"""What the next call of a captured step tries first."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from gapless.graphs.quick_call import quick_call
from gapless.graphs.reads.batch_reads import has_values


if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from gapless.graphs.audit import Audits
    from gapless.graphs.capture_report import CaptureReport
    from gapless.graphs.entry import Entry, Variant
    from gapless.graphs.quick_call import QuickCall
    from gapless.graphs.replay.call_graph import CallGraph
    from gapless.graphs.side_stream import SideStream
    from gapless.pipeline.tree.flatten import Tree


class FastPath:
    """The graph of the last two calls, if it was one: the next call tries it without a look for others.

    Args:
        launch: as of `Callee`.
        side: as of `Callee`.
        report: where replays are counted.
        audits: of the object.

    Attributes:
        call: replays the graph that the last two calls replayed, on calls like them; None if they were of
            two graphs, or of none.
        report: where replays are counted.
        counted: takes a kind and its quick call, and returns one that several ranks count; None: it is not.
    """

    def __init__(
        self,
        *,
        launch: Callable[..., Any],
        side: SideStream | None,
        report: CaptureReport,
        audits: Audits,
    ) -> None:
        self.call: QuickCall | None = None
        self.counted: Callable[[Hashable, QuickCall], QuickCall] | None = None
        self._newest: CallGraph | None = None
        self._launch = launch
        self._side = side
        self.report = report
        self._audits = audits

    def forget(self) -> None:
        """Let the next call try no graph first."""
        self._newest = self.call = None

    def offer(self, entry: Entry, variant: Variant, graph: CallGraph, tree: Tree) -> None:
        """Let the next call try a graph first, if it is replayed the second time in a row."""
        if graph is not self._newest or has_values(tree.key()):
            self._newest, self.call = graph, None
            return
        found = variant.quick_call
        if found is None:
            found = variant.quick_call = self._made(entry, graph, tree)
        self.call = found

    def _made(self, entry: Entry, graph: CallGraph, tree: Tree) -> QuickCall:
        made = quick_call(
            tree,
            graph,
            launch=self._launch,
            side=self._side,
            report=self.report,
            begin_call=self._audits.turn_of(graph).begin_call,
            end=partial(self._audits.end_call, entry.times, "replay"),
        )
        return made if self.counted is None else self.counted(tree.key(), made)
