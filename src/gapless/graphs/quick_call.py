"""A call like the one before: its graph is tried first, without a look for others.

Nothing is asked less than on the long way, `CapturedStep.run`. The form of the call and torch's own
comparison of its tensors stand for its key, and for all that refuses a batch; the guards are the same.
"""

from __future__ import annotations

from itertools import compress
from operator import mod
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import torch

from gapless.graphs.side_stream import Order
from gapless.pipeline.tree.call_tree import form_of
from gapless.pipeline.tree.tensor_layout import ALIGNMENTS, comparison_with


if TYPE_CHECKING:
    from collections.abc import Callable

    from gapless.graphs.capture_report import CaptureReport
    from gapless.graphs.replay.call_graph import CallGraph
    from gapless.graphs.side_stream import SideStream
    from gapless.pipeline.tree.flatten import Tree


# Takes the arguments of a call, by position and by name.
QuickCall: TypeAlias = "Callable[[tuple[Any, ...], dict[str, Any]], Any]"

# Returned of a call that is not like the one before, or whose graph's guards do not hold.
NOT_ALIKE: Final = object()

_address_of = torch.Tensor.data_ptr


def quick_call(
    tree: Tree,
    graph: CallGraph,
    *,
    launch: Callable[..., Any],
    side: SideStream | None,
    report: CaptureReport,
    begin_call: Callable[[], bool],
    end: Callable[[], None],
) -> QuickCall:
    """Return a function that replays a graph on calls like one, and returns `NOT_ALIKE` of others.

    Args:
        tree: the one call, made by `CallTrees`.
        graph: of its kind.
        launch: as of `Callee`.
        side: whose `launch` that is, None if it is another.
        report: where replays are counted.
        begin_call: begins a call of the graph, and says whether it is to be an audit: no call alike.
        end: called when a replay is launched.

    Sync: The function does not block the host.
    """
    are_alike = comparison_with(tree.leaves)
    if are_alike is None or graph.changes_batch:
        return lambda *_: NOT_ALIKE
    form, guards_hold, replay = tree.structure(), graph.guards.hold, graph.replay_on
    can_take, check, twins = graph.can_take, are_alike.check, are_alike.twins
    have_alignment, misalignments = are_alike.have_alignment, are_alike.misalignments
    order = Order() if side is None else side.order
    lock = order.lock
    # Without a side stream no stream is the newest of an order of its own.
    current_stream = object if side is None else side.current_stream

    def call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        leaves: list[torch.Tensor] = []
        if form_of(args, kwargs, leaves) != form:
            return NOT_ALIKE
        # As `are_alike`, a call less for nearly all batches.
        if not check(*leaves) or not (
            list(map(mod, map(_address_of, compress(leaves, have_alignment)), ALIGNMENTS))
            == misalignments
            and (len(set(map(id, leaves))) == len(leaves) if not twins else are_alike(*leaves))
        ):
            return NOT_ALIKE
        if not guards_hold():
            return NOT_ALIKE
        with lock:
            # Not while another thread uses the side stream: `launch` would wait for it with the lock.
            if order.num_inside or not can_take(leaves) or begin_call():
                return NOT_ALIKE
            # As `launch`, a call less as long as all calls come from one stream.
            is_newest = current_stream() is order.newest
            out = replay(leaves) if is_newest else launch(replay, leaves)
        report.num_replays += 1
        end()
        return out

    return call
