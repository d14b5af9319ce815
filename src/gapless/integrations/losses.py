"""The loss of a step as a Trainer sums it up for its log, without a wait.

Where a loss is NaN or infinite, a Trainer adds the mean of those before it instead
(`logging_nan_inf_filter`), and to see it, it reads each loss twice. Here the device chooses.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


_ASKS = frozenset([torch.isnan, torch.isinf, torch.Tensor.isnan, torch.Tensor.isinf])
_ADDS = frozenset(
    [torch.Tensor.add_, torch.Tensor.__iadd__, torch.Tensor.add, torch.Tensor.__add__]
)

# In these the sum is the same, whether the device chooses before it adds or the host does.
_KNOWN = frozenset([torch.float32, torch.bfloat16, torch.float16])


class FilteredLoss(torch.Tensor):
    """A loss that says it is finite, and chooses on the device what is added in its place.

    To everything else it is the plain tensor that it was made of.
    """

    _num_steps: Callable[[], int]

    @classmethod
    def of(cls, loss: torch.Tensor, num_steps: Callable[[], int]) -> torch.Tensor:
        """Return a loss as one of these; as it is if the sum could be another.

        Args:
            loss: one number.
            num_steps: returns how many losses the sum has, with this one.

        Sync: Does not block the host.
        """
        if type(loss) is not torch.Tensor or loss.dtype not in _KNOWN:
            return loss
        filtered = loss.as_subclass(cls)
        filtered._num_steps = num_steps
        return filtered

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Return what `func` returns for the plain tensor, with the two exceptions."""
        if func in _ASKS:
            return False
        with torch.DisableTorchFunctionSubclass():
            if func in _ADDS and isinstance(args[1], cls) and not kwargs:
                return func(args[0], args[1]._of_sum(args[0]))
            return func(*map(_plain, args), **(kwargs or {}))

    def _of_sum(self, total: torch.Tensor) -> torch.Tensor:
        loss = self.as_subclass(torch.Tensor)
        return torch.where(loss.abs() < math.inf, loss, total / self._num_steps())


def _plain(value: Any) -> Any:
    return value.as_subclass(torch.Tensor) if isinstance(value, FilteredLoss) else value
