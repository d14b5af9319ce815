"""Replace the `step` of an optimizer for a while."""

from __future__ import annotations

from contextlib import contextmanager
from functools import update_wrapper
from types import MethodType
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch.optim import Optimizer


@contextmanager
def step_replaced(optimizer: Optimizer, call: Callable[..., Any]) -> Iterator[None]:
    """Let `optimizer.step()` be another call in the body.

    In the optimizer's own attributes, so that other instances keep theirs.
    """
    as_written, own = optimizer.step, vars(optimizer).get("step")
    is_over = False

    def step(_: Optimizer, *args: Any, **kwargs: Any) -> Any:
        # A scheduler that is made in the body keeps this function for ever.
        return (as_written if is_over else call)(*args, **kwargs)

    # GradScaler looks at the arguments of `step`, and schedulers at its attributes.
    update_wrapper(step, getattr(as_written, "__func__", as_written))
    vars(step)["_gapless_as_written"] = as_written
    # A method, because schedulers look for its function.
    replacement = MethodType(step, optimizer)
    vars(optimizer)["step"] = replacement
    try:
        yield
    finally:
        is_over = True
        if vars(optimizer).get("step") is replacement:
            if own is None:
                del vars(optimizer)["step"]
            else:
                vars(optimizer)["step"] = own


def step_as_written(optimizer: Optimizer) -> Any:
    """Return `optimizer.step` without what `step_replaced` has put in its place."""
    step = optimizer.step
    # A scheduler's wrapper copies attributes, but it is no method.
    while isinstance(step, MethodType) and hasattr(step, "_gapless_as_written"):
        step = step._gapless_as_written
    return step
