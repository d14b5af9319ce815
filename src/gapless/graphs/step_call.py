"""A call of a captured step of anybody's loop: how it is done, and whose its results are."""

from __future__ import annotations

from threading import local
from typing import TYPE_CHECKING, Any

import torch

from gapless.errors import BatchError
from gapless.graphs.refusal import Refusal
from gapless.pipeline.step import do_work
from gapless.pipeline.tree import flatten


if TYPE_CHECKING:
    from collections.abc import Callable

    from gapless.pipeline.step import Call


class _Depth(local):
    """How many steps are at work in this thread, one within the other."""

    depth = 0


_at_work = _Depth()


def is_at_work() -> bool:
    """Return whether a captured step runs as written, or is being captured, in this thread.

    A captured function that it calls is a part of it: it has to run as written as well.
    """
    return _at_work.depth > 0


def work_of(step: Any) -> Callable[[Call], Any]:
    """Return a function that calls a step as a loop called it."""

    def work(call: Call) -> Any:
        _at_work.depth += 1
        try:
            return do_work(step, *call.args, **call.kwargs)
        finally:
            _at_work.depth -= 1

    return work


def own_result(out: Any) -> tuple[Any, Refusal | None]:
    """Return copies of what a step returned, which no replay overwrites.

    Also return why a replay could not return the like, None if it could; what cannot be copied
    is then returned as it is.

    Sync: Does not block the host.
    """
    if isinstance(out, torch.Tensor):  # as nearly all steps do; a tree would cost microseconds
        return _copy_of(out), None
    tree = flatten(out)
    try:
        copied = tree.map(_copy_of).value
    except BatchError:  # a container that cannot be made anew
        return out, cannot_return(out)
    return copied, cannot_return(tree.unknown[0]) if tree.unknown else None


def cannot_return(value: object) -> Refusal:
    """Refuse a step that returns this, or something with this in it."""
    return Refusal(
        "result",
        f"the step returns a {type(value).__module__}.{type(value).__qualname__}, which a replay "
        "cannot make anew; return tensors, plain values, or tuples, lists, mappings and "
        "dataclasses of them",
        name=f"a {type(value).__qualname__} that is returned",
    )


def _copy_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone() if tensor.requires_grad else tensor.clone()
