"""Watch the user's own backward passes, which run within the loop's and not within a call.

No watch of the call sees them. So in calls that are looked at each backward pass of a `torch.autograd.Function` is
watched where it runs, as a run of the module is.
"""

from __future__ import annotations

import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from gapless.graphs.objections import objection_to_profiler
from gapless.graphs.reads.user_functions import code_behind
from gapless.graphs.refusal import new_code, refusals_of_run


if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from gapless.graphs.reads.host_watch import HostWatch
    from gapless.graphs.refusal import Refusal


# Backward passes in a row that ran code which was not there before.
_MOST_NEW_CODE = 10


class KindOfCalls(Protocol):
    """What calls of one kind have shown.

    Attributes:
        found_backward_code: whether the last backward pass ran code that was not there before.
    """

    found_backward_code: bool

    def object(self, refusals: Sequence[Refusal]) -> None:
        """Take reasons why no graph can take such a call."""


class BackwardCode:
    """Sees what the user's backward passes of one module do."""

    def __init__(self, watch: HostWatch) -> None:
        self._watch = watch
        self._num_new = 0

    def see(self, nodes: Sequence[Any], seen: KindOfCalls) -> None:
        """Let those of a call be watched when they run; of nodes that lead to the same code one."""
        self._num_new = self._num_new + 1 if seen.found_backward_code else 0
        seen.object([new_code()] * (self._num_new >= _MOST_NEW_CODE))
        seen.found_backward_code = False
        known: set[Hashable] = set()
        for node in nodes:
            key = (type(node), *map(code_behind, vars(node).values()))
            # Torch asks the node itself for what it runs.
            node.apply = partial(self._run, weakref.ref(node), key, known, seen)

    def _run(
        self,
        reference: weakref.ref[Any],
        key: Hashable,
        known: set[Hashable],
        seen: KindOfCalls,
        *gradients: Any,
    ) -> Any:
        node: Any = reference()
        apply = partial(type(node).apply, node, *gradients)
        # New code has to be guarded first, and the next pass shows the rest.
        if key in known or seen.found_backward_code or objection_to_profiler() is not None:
            return apply()
        with self._watch.watch((), {}, key=key) as run:
            given = apply()
        self._watch.let_go()
        seen.object(refusals_of_run(run))
        seen.found_backward_code = run.found_code or not run.is_complete
        known.add(key)
        return given
