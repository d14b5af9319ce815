"""What may be given as a loss, as another value of a step, or as a weight: one real number."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, SupportsFloat, TypeAlias

import torch

from gapless.errors import LossError


if TYPE_CHECKING:
    from gapless.device.base import Device


Number: TypeAlias = "torch.Tensor | SupportsFloat"


def number_of(value: object, name: str, device: Device) -> torch.Tensor | float:
    """Return a number on the device as a tensor without dimensions and graph, others as a float.

    Args:
        value: any number, such as a tensor with one element, or one of Python's or numpy's.
        name: of the value, for the error.
        device: numbers of the host are read at once; this device need not compute them first.

    Raises:
        LossError: it is not one real number.

    Sync: Does not block the host.
    """
    if isinstance(value, torch.Tensor):
        if not has_one_number(value):
            raise _no_number(value, name)
        if value.is_cpu and device.is_accelerator and device.needs_copy(value):
            return float(value.item())
        if value.requires_grad:
            value = value.detach()
        return value.reshape(()) if value.dim() else value
    try:
        return float(_python_number(value))
    except (TypeError, ValueError, OverflowError):
        raise _no_number(value, name) from None


def has_one_number(tensor: torch.Tensor) -> bool:
    """Whether a tensor holds one real number, kept as such."""
    return (
        tensor.layout is torch.strided
        and tensor.numel() == 1
        and not (tensor.is_complex() or tensor.is_quantized or tensor.is_nested)
    )


def described(value: object) -> str:
    """Return what a value is, for messages."""
    if isinstance(value, torch.Tensor):
        if value.is_nested:
            return "a nested tensor"
        layout = "" if value.layout is torch.strided else f" in layout {value.layout}"
        return f"a tensor of shape {tuple(value.shape)} and {value.dtype}{layout}"
    return "None" if value is None else f"a {type(value).__qualname__}"


def _python_number(value: Any) -> SupportsFloat:
    # `float` would take text, warn of an array's dimensions, and drop an imaginary part.
    number = value.item() if hasattr(value, "item") else value
    if not hasattr(number, "__float__"):
        raise TypeError
    return number  # type: ignore[no-any-return]


def _no_number(value: object, name: str) -> LossError:
    return LossError(
        f"`{name}` must be a number or a tensor with one number, but is {described(value)}"
    )
