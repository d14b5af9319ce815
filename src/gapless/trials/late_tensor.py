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
    """What `loss.cpu()` returns late: every use of it, but for its number, waits for it first.

    Attributes:
        late: its number, as it was copied.
        plain: the tensor as torch's own, the same one each time; its number may not be there.
        is_handed_out: whether somebody has had the plain one, and may have changed what it is.
    """

    late: LateNumber
    plain: torch.Tensor
    is_handed_out: bool

    @classmethod
    def of(cls, copy: torch.Tensor, late: LateNumber) -> LateTensor:
        """Return a late tensor.

        Args:
            copy: where its number will be.
            late: the number.
        """
        found = copy.as_subclass(cls)
        found.late, found.plain, found.is_handed_out = late, copy, False
        return found

    @property
    def number(self) -> LateNumber | float | None:
        """Its number, late or not; None where it may be another one by now."""
        if self.is_handed_out:
            return None
        return self.late if self.late.number is None else self.late.number

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Return what a function returns for the plain tensor, once its number is there."""
        if function in _OF_ITS_FORM and not _is_handed_out(args):
            with torch._C.DisableTorchFunctionSubclass():
                return function(*args, **(kwargs or {}))
        name = getattr(function, "__name__", "a function")
        use = f"hands {name}() the tensor of"
        result = function(*_plain(args, use), **_plain(kwargs or {}, use))
        # What works in place returns the tensor that it was given.
        return next((one for one in args if _stands_for(one, result)), result)


def _is_handed_out(args: tuple[Any, ...]) -> bool:
    return any(isinstance(one, LateTensor) and one.is_handed_out for one in args)


def _stands_for(one: Any, plain: Any) -> bool:
    return isinstance(one, LateTensor) and one.plain is plain


def _plain(value: Any, use: str) -> Any:
    """Return a structure with torch's own tensors in the place of late ones.

    Sync: Blocks the host until they are there.
    """
    if isinstance(value, LateTensor):
        value.late.forced(use)
        value.is_handed_out = True
        return value.plain
    if type(value) in (list, tuple):
        return type(value)([_plain(each, use) for each in value])
    if type(value) is dict:
        return {key: _plain(each, use) for key, each in value.items()}
    return value
