"""Replace the `step` of an optimizer for a while."""

from __future__ import annotations

from contextlib import contextmanager
from functools import update_wrapper
from types import MethodType
from typing import TYPE_CHECKING, Any

from torch.optim import lr_scheduler

from gapless.graphs.reads.code_kinds import OWN_FOLDER


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch.optim import Optimizer


_SCHEDULERS = str(lr_scheduler.__file__)

# Where a function keeps what it stands in the place of.
_AS_WRITTEN = "_gapless_as_written"


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

    replacement = method_in_place_of(as_written, step, optimizer)
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


def method_in_place_of(
    as_written: Callable[..., Any], step: Callable[..., Any], optimizer: Optimizer
) -> MethodType:
    """Return a function as a method that can stand in the place of `optimizer.step`."""
    # GradScaler looks at the arguments of `step`, and schedulers at its attributes.
    update_wrapper(step, getattr(as_written, "__func__", as_written))
    vars(step)[_AS_WRITTEN] = as_written
    # A method, because schedulers look for its function.
    return MethodType(step, optimizer)


def step_as_written(optimizer: Optimizer) -> Any:
    """Return `optimizer.step` without what gapless has put in its place."""
    step = optimizer.step
    # A scheduler's wrapper copies attributes, but it is no method.
    while isinstance(step, MethodType) and hasattr(step, _AS_WRITTEN):
        step = getattr(step, _AS_WRITTEN)
    return step


def is_step_of_the_class(optimizer: Optimizer) -> bool:
    """Return whether nobody but schedulers and gapless has replaced an optimizer's `step`."""
    own, step = type(optimizer).step, optimizer.step
    function: Any = getattr(step, "__func__", step)
    while function is not own and _is_passed_over(function):
        function = function.__wrapped__
    return function is own


def _is_passed_over(function: Any) -> bool:
    # Not by its attributes, which wrappers of users may copy.
    path = getattr(getattr(function, "__code__", None), "co_filename", "")
    return path.startswith((_SCHEDULERS, OWN_FOLDER)) and hasattr(function, "__wrapped__")
