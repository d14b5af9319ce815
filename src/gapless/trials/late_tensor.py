"""A tensor of one number on the host, whose copy is still on its way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch


if TYPE_CHECKING:
    from gapless.trials.late_number import LateNumber


_Tensor: Any = torch.Tensor

# What can be said of it before its number is there.
_OF_ITS_FORM = frozenset(
    [
        _Tensor.shape.__get__,
        _Tensor.dtype.__get__,
        _Tensor.device.__get__,
        _Tensor.ndim.__get__,
        _Tensor.requires_grad.__get__,
        _Tensor.is_cuda.__get__,
        _Tensor.dim,
        _Tensor.numel,
        _Tensor.size,
    ]
)


class LateTensor(torch.Tensor):
    """What `loss.cpu()` returns late: every use of it, but for its number, waits for it first."""

    late: LateNumber

    @classmethod
    def of(cls, copy: torch.Tensor, late: LateNumber) -> LateTensor:
        """Return a late tensor.

        Args:
            copy: where its number will be.
            late: the number.
        """
        found = copy.as_subclass(cls)
        found.late = late
        return found

    @property
    def number(self) -> LateNumber | float:
        """Its number, late or not."""
        return self.late if self.late.number is None else self.late.number

    @property
    def plain(self) -> torch.Tensor:
        """The tensor as torch's own; its number may not be there."""
        with torch._C.DisableTorchFunctionSubclass():
            return self.as_subclass(torch.Tensor)

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Return what a function returns for the plain tensor, once its number is there."""
        if function in _OF_ITS_FORM:
            with torch._C.DisableTorchFunctionSubclass():
                return function(*args, **(kwargs or {}))
        name = getattr(function, "__name__", "a function")
        use = f"hands {name}() the tensor of"
        return function(*_plain(args, use), **_plain(kwargs or {}, use))


def _plain(value: Any, use: str) -> Any:
    """Return a structure with torch's own tensors in the place of late ones.

    Sync: Blocks the host until they are there.
    """
    if isinstance(value, LateTensor):
        value.late.forced(use)
        return value.plain
    if type(value) in (list, tuple):
        return type(value)([_plain(each, use) for each in value])
    if type(value) is dict:
        return {key: _plain(each, use) for key, each in value.items()}
    return value
