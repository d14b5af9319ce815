"""Whether a tensor's backward pass can still be run."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import torch


if TYPE_CHECKING:
    from collections.abc import Callable


_MOST_NODES = 1_000


def is_used_up(tensor: torch.Tensor) -> bool:
    """Return whether a backward pass has let go of what the tensor's own would need."""
    todo: list[Any] = [tensor.grad_fn]
    seen: set[Any] = {None}
    while todo and len(seen) < _MOST_NODES:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        kind: Any = type(node)
        try:
            for name in _saved_by(kind):
                getattr(node, name)
        except RuntimeError:
            return True
        todo += [before for before, _ in node.next_functions]
    return False


def used_up(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the same memory, whose backward pass raises that its graph is used up."""
    return _raising(tensor.requires_grad_())


# As torch begins to say it.
_raising: Callable[[torch.Tensor], torch.Tensor] = torch._C._functions.DelayedError(
    "Trying to backward through the graph a second time, which the step has used up", 1
)


@cache
def _saved_by(kind: Any) -> list[str]:
    """Return the attributes of a node that raise once what they stand for has been let go."""
    return [name for name in dir(kind) if name.startswith("_saved_") or name == "saved_tensors"]
