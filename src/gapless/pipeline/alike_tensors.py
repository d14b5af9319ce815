"""Torch's own comparison of tensors with those of before: what its compiler calls before a call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from gapless.pipeline.tree import ALIGNMENT, has_alignment, misalignment, twins_among


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


_of_compiler: Any = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
_TensorGuards: Any = getattr(_of_compiler, "TensorGuards", None)


def comparison_with(tensors: Sequence[torch.Tensor]) -> Callable[..., bool] | None:
    """Return a function that takes as many tensors and says whether they are alike.

    They are if type, dtype, device, shape, strides, alignment and `requires_grad` are the same, those
    that were one tensor are one, and the modes of torch that dispatch operations are those of now. None if torch has no such function, or not
    for these tensors.

    Sync: Does not block the host.
    """
    if _TensorGuards is None or not tensors:
        return None
    try:
        sizes = [list(tensor.size()) for tensor in tensors]
        strides = [list(tensor.stride()) for tensor in tensors]
        guards = _TensorGuards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)
        check: Callable[..., bool] = guards.check
    except (RuntimeError, TypeError, SystemError):
        return None
    places = [number for number, tensor in enumerate(tensors) if has_alignment(tensor)]
    wanted = [misalignment(tensors[number]) for number in places]

    twins = twins_among(tensors)

    def are_alike(*others: torch.Tensor) -> bool:
        return (
            check(*others)
            and [others[number].data_ptr() % ALIGNMENT for number in places] == wanted
            and twins_among(others) == twins
        )

    return are_alike if places or len(tensors) > 1 else check
