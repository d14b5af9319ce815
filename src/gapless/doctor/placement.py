"""Whether a tensor is on a device that the host can wait for."""

from __future__ import annotations

import functools

import torch
from torch.overrides import has_torch_function_unary


def is_on_accelerator(tensor: torch.Tensor) -> bool:
    """Whether the host would have to wait for a tensor's values. Looks at nothing but the tensor's kind.

    Tensors that stand for others, such as those of torch's compiler, have no values of their own.
    """
    if has_torch_function_unary(tensor):
        # Not even the question may reach the functions that a script has put around its tensors.
        with torch._C.DisableTorchFunction():
            return holds_values(tensor) and is_accelerator(tensor.device)
    return not tensor.is_cpu and holds_values(tensor) and not tensor.is_meta


def is_accelerator(device: torch.device) -> bool:
    """Whether a device is another one than the host."""
    return device.type not in ("cpu", "meta")


def holds_values(tensor: torch.Tensor) -> bool:
    """Whether a tensor has values of its own, and does not stand for others."""
    return _is_plain(type(tensor))


@functools.cache
def _is_plain(kind: type[torch.Tensor]) -> bool:
    return bool(kind.__torch_dispatch__ == torch.Tensor.__torch_dispatch__)
