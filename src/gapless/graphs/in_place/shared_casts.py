"""Whether the rest of a block of autocast uses casts of weights that a module has used in it.

Autocast keeps the cast of each weight until its outermost block ends. All uses in the block share it, so
that their gradients are added up as the cast is rounded. A replay makes casts of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode, _pop_mode, _push_mode
from torch.utils._device import DeviceContext

from gapless.device.autocast_blocks import at_end_of_block
from gapless.device.user_line import call_site
from gapless.graphs.modules.gradient_paths import is_new
from gapless.pipeline.tree.flatten import flatten


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


# Between a result and the cast of a weight lie few operations, such as a transposition.
_MOST_NODES = 200


def watch_rest_of_block(
    out: Any, *, since: int, on_use: Callable[[str], None]
) -> Callable[[], None] | None:
    """See until the block of autocast ends whether an operation shares casts of a call as written.

    Args:
        out: what the call returned, with its graph.
        since: the number of its first node.
        on_use: is called with file and line of the first such operation.

    Returns:
        A function that looks no more; None if there is nothing to see.

    Sync: Does not block the host.
    """
    nodes, casts = _nodes_of([leaf for leaf in flatten(out).leaves if leaf.grad_fn], since)
    if not casts:
        return None
    mode = _RestOfBlock(nodes, casts, on_use)
    mode.begin()
    at_end_of_block(mode.leave)
    return mode.leave


class _RestOfBlock(TorchFunctionMode):
    """Looks at operations that are given a weight which was cast.

    Args:
        nodes: of the call's graph.
        casts: those of them that cast a weight.
        on_use: is called with file and line of the first operation that shares one.
    """

    def __init__(
        self, nodes: set[Any], casts: dict[Any, torch.Tensor], on_use: Callable[[str], None]
    ) -> None:
        super().__init__()
        self._nodes, self._casts = nodes, set(casts)
        self._weights = set(map(id, casts.values()))
        self._on_use: Callable[[str], None] | None = on_use

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run the operation; look at what it returns if it was given one of the weights."""
        del types
        kwargs = kwargs or {}
        if torch.compiler.is_compiling():
            # Compiled code has casts of its own, and would be compiled anew for each tensor looked at.
            return func(*args, **kwargs)
        result = func(*args, **kwargs)
        if self._on_use is not None and self._is_given_weight((*args, *kwargs.values())):
            self._look(result)
        return result

    def begin(self) -> None:
        """Look from here on, below all modes of others: each leaves the one on top when it ends."""
        modes = [_pop_mode() for _ in range(torch._C._len_torch_function_stack())]
        # Of torch's, which has to stay the lowest.
        if modes and isinstance(modes[-1], DeviceContext):
            _push_mode(modes.pop())
        for mode in (self, *reversed(modes)):
            _push_mode(mode)

    def leave(self) -> None:
        """Look no more, wherever modes of others stand by now."""
        self._on_use = None
        self._nodes, self._casts = set(), set()
        modes = [_pop_mode() for _ in range(torch._C._len_torch_function_stack())]
        for mode in reversed(modes):
            if mode is not self:
                _push_mode(mode)

    def _is_given_weight(self, values: Iterable[Any]) -> bool:
        for value in values:
            if isinstance(value, (list, tuple)):
                if self._is_given_weight(value):
                    return True
            elif id(value) in self._weights:
                return True
        return False

    def _look(self, result: Any) -> None:
        results = result if isinstance(result, (list, tuple)) else [result]
        todo = [one.grad_fn for one in results if isinstance(one, torch.Tensor) and one.grad_fn]
        seen: set[Any] = set()
        while todo and len(seen) < _MOST_NODES:
            node = todo.pop()
            if node in self._casts:
                assert self._on_use is not None
                self._on_use(call_site())
                self._on_use = None
                return
            if node not in seen | self._nodes:
                seen.add(node)
                todo += [before for before, _ in node.next_functions if before is not None]


def _nodes_of(
    outputs: Iterable[torch.Tensor], since: int
) -> tuple[set[Any], dict[Any, torch.Tensor]]:
    """Return the nodes of a call behind its outputs, and those that cast a weight, with the weight."""
    nodes: set[Any] = set()
    casts: dict[Any, torch.Tensor] = {}
    todo: list[Any] = [output.grad_fn for output in outputs]
    while todo:
        node = todo.pop()
        if node in nodes or not is_new(node, since):
            continue
        nodes.add(node)
        for before, _ in node.next_functions:
            if before is None:
                continue
            weight = getattr(before, "variable", None)
            if weight is None:
                todo.append(before)
            elif node.name().startswith("ToCopyBackward"):
                casts[node] = weight
    return nodes, casts
