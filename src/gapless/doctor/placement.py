"""Whether a tensor is on a device that the host can wait for."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import torch
from torch.overrides import has_torch_function_unary


# What we ask of tensors.
_ASKED = (
    *("device", "dtype", "is_contiguous", "is_cpu", "is_meta", "is_nested", "is_pinned"),
    *("layout", "nbytes", "numel", "shape", "size", "stride", "__torch_dispatch__"),
)

_is_plain: WeakKeyDictionary[type, bool] = WeakKeyDictionary()


def is_on_accelerator(tensor: torch.Tensor) -> bool:
    """Whether the host would have to wait for a tensor's values. Looks at nothing but the tensor's kind.

    Tensors that stand for others, such as those of torch's compiler, have no values of their own.
    """
    if not holds_values(tensor):
        return False
    if has_torch_function_unary(tensor):
        # Not even the question may reach the functions that a script has put around its tensors.
        with torch._C.DisableTorchFunction():
            return is_accelerator(tensor.device)
    return not tensor.is_cpu and not tensor.is_meta


def is_accelerator(device: torch.device) -> bool:
    """Whether a device is another one than the host."""
    return device.type not in ("cpu", "meta")


def holds_values(tensor: torch.Tensor) -> bool:
    """Whether a tensor has values of its own, and no class of a script answers for it."""
    kind = type(tensor)
    if kind is torch.Tensor:
        return True
    is_plain = _is_plain.get(kind)
    if is_plain is None:
        is_plain = _is_plain[kind] = all(
            getattr(kind, name, None) == getattr(torch.Tensor, name) for name in _ASKED
        )
    return is_plain
