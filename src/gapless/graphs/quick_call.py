"""A call like the one before: its graph is tried first, without a look for others.

Nothing is asked less than on the long way, `CapturedStep.run`. The form of the call and torch's own
comparison of its tensors stand for its key, and for all that refuses a batch; the guards are the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

from gapless.pipeline.tree.call_tree import form_of
from gapless.pipeline.tree.tensor_layout import comparison_with


if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from gapless.graphs.capture_report import CaptureReport
    from gapless.graphs.replay.call_graph import CallGraph
    from gapless.pipeline.tree.flatten import Tree


# Takes the arguments of a call, by position and by name.
QuickCall: TypeAlias = "Callable[[tuple[Any, ...], dict[str, Any]], Any]"

# Returned of a call that is not like the one before, or whose graph's guards do not hold.
NOT_ALIKE: Final = object()


def quick_call(
    tree: Tree,
    graph: CallGraph,
    *,
    launch: Callable[..., Any],
    report: CaptureReport,
    begin_call: Callable[[], bool],
    end: Callable[[], None],
) -> QuickCall:
    """Return a function that replays a graph on calls like one, and returns `NOT_ALIKE` of others.

    Args:
        tree: the one call, made by `CallTrees`.
        graph: of its kind.
        launch: as of `Callee`.
        report: where replays are counted.
        begin_call: begins a call of the graph, and says whether it is to be an audit: no call alike.
        end: called when a replay is launched.

    Sync: The function does not block the host.
    """
    are_alike = comparison_with(tree.leaves)
    if are_alike is None or graph.changes_batch:
        return lambda *_: NOT_ALIKE
    form, guards_hold, replay = tree.structure(), graph.guards.hold, graph.replay_on
    can_take = graph.can_take

    def call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        leaves: list[torch.Tensor] = []
        if form_of(args, kwargs, leaves) != form or not are_alike(*leaves):
            return NOT_ALIKE
        if not guards_hold() or not can_take(leaves) or begin_call():
            return NOT_ALIKE
        out = launch(replay, leaves)
        report.num_replays += 1
        end()
        return out

    return call
