"""Which calls of a module within a block of autocast run as written: those that share casts of weights.

Autocast keeps the cast of each weight until its outermost block ends. All uses in the block share it, so
that their gradients are added up as the cast is rounded. A replay makes casts of its own, so calls that share a
block run as written, and those before it is known that they do not.
"""

from __future__ import annotations

from threading import local
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode, _pop_mode, _push_mode
from torch.utils._device import DeviceContext

from gapless.device.autocast_blocks import at_end_of_block, block_of_autocast
from gapless.device.user_line import call_site
from gapless.graphs.modules.gradient_paths import edges_behind, is_new
from gapless.graphs.refusal import Refusal
from gapless.pipeline.tree.flatten import flatten


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


# Between a result and the cast of a weight lie few operations, such as a transposition.
_MOST_NODES = 200


# Calls with gradients that run as written before a module is captured within blocks of autocast: a second call in
# one block shares the casts of the first.
_NUM_IN_AUTOCAST = 6


class AutocastBlocks:
    """The blocks of autocast that calls of one module stand in.

    Args:
        device_type: such as "cuda".
        refuse: is called with the reason why calls within such blocks run as written.

    Attributes:
        may_be_captured: whether calls within a block may be graphs at all. A use of a weight in the same block,
            outside of the module, shares the cast of a call as written.
    """

    def __init__(self, device_type: str, *, refuse: Callable[[Refusal], None]) -> None:
        self.may_be_captured = True
        self._device_type = device_type
        self._refuse = refuse
        # What sees whether the rest of a block shares casts, in each thread.
        self._watch = local()
        self._block: object = None
        self._trains_in_block = False
        self._num_calls = 0
        self._shares_casts = False

    def begin_call(self) -> bool:
        """Return whether a call has to run as written for the block that it stands in."""
        if not (
            torch.is_autocast_enabled(self._device_type) and torch.is_autocast_cache_enabled()
        ):
            return False
        if not self.may_be_captured:
            self._refuse(_WITHIN_AUTOCAST)
            return True
        block = block_of_autocast()
        is_second = block == self._block
        self._block, self._trains_in_block = block, is_second and self._trains_in_block
        is_trained = torch.is_grad_enabled()
        if not is_trained:
            self._refuse(_EVALUATED_IN_AUTOCAST)
            # Calls of an evaluation share casts with each other; all run as written. In inference mode there are none.
            if not self._trains_in_block or torch.is_inference_mode_enabled():
                return True
        self._trains_in_block |= is_trained
        if is_second and not self._shares_casts:
            end_watch = getattr(self._watch, "end", None)
            if end_watch is not None:
                end_watch()
            is_late = self._num_calls > _NUM_IN_AUTOCAST
            self._refuse_all(_SHARES_CASTS_LATE if is_late else _SHARES_CASTS)
        self._num_calls += 1
        return self._num_calls <= _NUM_IN_AUTOCAST or self._shares_casts

    def end_as_written(self, out: Any, *, since: int) -> None:
        """See what shares the casts of a call that has run as written, if it is one of the first."""
        is_first = self._num_calls <= _NUM_IN_AUTOCAST and not self._shares_casts
        is_open = self._block == block_of_autocast() and torch.is_autocast_enabled(
            self._device_type
        )
        if is_open and is_first and torch.is_grad_enabled():
            self._watch.end = watch_rest_of_block(
                out, since=since, on_use=self._refuse_shared_cast
            )

    def _refuse_shared_cast(self, site: str) -> None:
        self._refuse_all(
            Refusal(
                "inside_autocast",
                f"{site} uses a weight of the module in the same block of autocast, and shares its cast: "
                "in autocast the module runs as written; end the block before that line",
                site=site,
                name="autocast",
            )
        )

    def _refuse_all(self, refusal: Refusal) -> None:
        self._shares_casts = True
        self._refuse(refusal)


def watch_rest_of_block(
    out: Any, *, since: int, on_use: Callable[[str], None]
) -> Callable[[], None] | None:
    """See until the block of autocast ends whether an operation shares casts of a call as written.

    Returns:
        A function that looks no more; None if there is nothing to see.
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
        result = func(*args, **kwargs)
        # Compiled code has casts of its own, and would be compiled anew for each tensor looked at.
        is_looked_at = not torch.compiler.is_compiling() and self._on_use is not None
        if is_looked_at and self._is_given_weight((*args, *kwargs.values())):
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
    nodes = {output.grad_fn for output in outputs if is_new(output.grad_fn, since)}
    casts: dict[Any, torch.Tensor] = {}
    for node, _, (before, _) in edges_behind(list(nodes), since=since):
        nodes.add(node)
        weight = getattr(before, "variable", None)
        if weight is not None and node.name().startswith("ToCopyBackward"):
            casts[node] = weight
    return nodes, casts


_EVALUATED_IN_AUTOCAST = Refusal(
    "inside_autocast",
    "a call without gradients within autocast, whose casts later calls would share, runs as "
    "written; give the block cache_enabled=False",
    name="autocast without gradients",
)
_WITHIN_AUTOCAST = Refusal(
    "inside_autocast",
    "a call within a block of autocast, whose casts of weights the rest of the block may share, runs "
    "as written; capture the whole step, or let a framework enter autocast, by its setting for mixed precision",
    name="autocast",
)
_SHARES_CASTS = Refusal(
    "inside_autocast",
    "the module is called twice in one block of autocast, where calls share casts of weights: in "
    "autocast it runs as written; enter a block for each call",
    name="autocast",
)
_SHARES_CASTS_LATE = Refusal(
    "inside_autocast",
    "the module is called twice in one block of autocast, for the first time after a graph was replayed: "
    "this one step is rounded otherwise than as written, and later calls in autocast run as written; enter a "
    "block for each call",
    name="autocast",
)
