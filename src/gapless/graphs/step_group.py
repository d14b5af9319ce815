"""Several steps by one launch: a group of batches as one call of a longer step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gapless.errors import UserError
from gapless.graphs.step_call import work_of
from gapless.pipeline.step import Call
from gapless.pipeline.tree.tensor_layout import shape_of


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gapless.pipeline.tree.flatten import Tree


def work_of_group(step: Any) -> Callable[[Call], list[Any]]:
    """Return a function that does a step for each argument of a call, and returns all results."""
    work = work_of(step)
    return lambda group: [work(Call((batch,), {})) for batch in group.args]


def checked_group(args: tuple[Any, ...], kwargs: dict[str, Any], *, size: int) -> Sequence[Any]:
    """Return the batches that a function was called with.

    Raises:
        TypeError: it was not called with one list or tuple.
        UserError: the list is longer than a group may be.
    """
    if len(args) != 1 or kwargs or not isinstance(args[0], list | tuple):
        found = ", ".join([type(one).__name__ for one in args] + [f"{name}=" for name in kwargs])
        raise TypeError(
            f"a step with `steps_per_launch` takes one list or tuple of batches, but got ({found})"
        )
    batches: Sequence[Any] = args[0]
    if len(batches) > size:
        raise UserError(
            f"got {len(batches)} batches at once, expected at most steps_per_launch={size}"
        )
    return batches


def is_of_one_shape(group: Tree, size: int) -> bool:
    """Return whether the batches of a group have tensors of the same shapes.

    Plain values may differ from batch to batch: they are part of the group's kind.
    """
    shapes = [shape_of(leaf) for leaf in group.leaves]
    num_each, rest = divmod(len(shapes), size)
    return not rest and shapes == shapes[:num_each] * size
