"""A call of a captured step of anybody's loop: how it is done, and what it may return."""

from __future__ import annotations

from contextlib import contextmanager
from threading import local
from typing import TYPE_CHECKING, Any

from gapless.graphs.refusal import Refusal
from gapless.pipeline.step import do_work


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gapless.pipeline.step import Call


class _Depth(local):
    """How many steps run in this thread, one within the other."""

    depth = 0


# Of this thread; who cannot spare a call reads it here.
DEPTH = _Depth()


def is_within_a_step() -> bool:
    """Return whether a captured step runs as written, or is being captured, in this thread.

    A captured function that it calls is a part of it: it has to run as written as well.
    """
    return DEPTH.depth > 0


@contextmanager
def within_a_step() -> Iterator[None]:
    """Let captured functions, modules and optimizers that the body calls be parts of a step."""
    DEPTH.depth += 1
    try:
        yield
    finally:
        DEPTH.depth -= 1


def work_of(step: Any) -> Callable[[Call], Any]:
    """Return a function that calls a step as a loop called it."""

    def work(call: Call) -> Any:
        with within_a_step():
            return do_work(step, *call.args, **call.kwargs)

    return work


def work_of_batch(step: Any) -> Callable[[Any], Any]:
    """Return a function that calls a step with its one argument."""

    def work(batch: Any) -> Any:
        with within_a_step():
            return do_work(step, batch)

    return work


def cannot_return(value: object) -> Refusal:
    """Refuse a step that returns this, or something with this in it."""
    return Refusal(
        "result",
        f"the step returns a {type(value).__module__}.{type(value).__qualname__}, which a replay "
        "cannot make anew; return tensors, plain values, or tuples, lists, mappings, "
        "dataclasses and objects of them",
        name=f"a {type(value).__qualname__} that is returned",
    )


def cannot_return_from_host() -> Refusal:
    """Refuse a step that returns a tensor on the host."""
    return Refusal(
        "result",
        "the step returns a tensor that is not on the device, which each replay would overwrite; "
        "return the tensor on the device, and read it late, such as by gapless.DeferredLoss",
        name="a tensor on the host that is returned",
    )
