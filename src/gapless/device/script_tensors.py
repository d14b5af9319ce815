"""Look at the tensors of a script without running code of it: where they are, and their shapes."""

from __future__ import annotations

from collections import UserDict
from itertools import islice
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch.overrides import has_torch_function_unary

from gapless.device.torch_private import DisableTorchDispatch, DisableTorchFunction


if TYPE_CHECKING:
    from collections.abc import Hashable


# What we ask of tensors.
_ASKED = (
    *("device", "dtype", "is_contiguous", "is_cpu", "is_meta", "is_nested", "is_pinned"),
    *("layout", "nbytes", "numel", "shape", "size", "stride", "__torch_dispatch__"),
)

_is_plain: WeakKeyDictionary[type, bool] = WeakKeyDictionary()

# Parts of a batch that are looked at; those of one batch mostly change together.
_MAX_PARTS = 16

# Of containers in containers.
_MAX_DEPTH = 5

# As torch has it, whatever a class of the script says.
_sizes = torch.Tensor.size


def is_on_accelerator(tensor: torch.Tensor) -> bool:
    """Whether the host would have to wait for a tensor's values. No value is read for the answer.

    Tensors that torch's compiler traces with hold no values.
    """
    if not holds_values(tensor):
        return False
    if has_torch_function_unary(tensor):
        # Not even the question may reach the functions that a script has put around its tensors.
        with DisableTorchFunction():
            return is_accelerator(tensor.device)
    return not tensor.is_cpu and not tensor.is_meta


def is_accelerator(device: torch.device) -> bool:
    """Whether a device is another one than the host."""
    return device.type not in ("cpu", "meta")


def holds_values(tensor: torch.Tensor) -> bool:
    """Whether a tensor holds values, and no class of the script overrides what is asked of it."""
    type_ = type(tensor)
    if type_ is torch.Tensor:
        return True
    is_plain = _is_plain.get(type_)
    if is_plain is None:
        is_plain = _is_plain[type_] = all(
            getattr(type_, name, None) == getattr(torch.Tensor, name) for name in _ASKED
        )
    return is_plain


def is_pinned(tensor: torch.Tensor) -> bool:
    """Whether a tensor's memory is page-locked."""
    # To torch this is an operation, which modes of the script would see.
    without_modes = DisableTorchDispatch()
    try:
        return tensor.is_pinned()
    finally:
        del without_modes


def shapes_of(value: Any, *, depth: int = 0) -> Hashable:
    """Return the shapes of the tensors of a batch, however they are held; None for anything else.

    No code of the script runs for it: subclasses of containers are read by the methods of their base.
    """
    if isinstance(value, torch.Tensor):
        return _shape_of(value)
    parts = _parts_of(value) if depth < _MAX_DEPTH else None
    if parts is None:
        return None
    return tuple(shapes_of(part, depth=depth + 1) for part in parts)


def _parts_of(value: Any) -> list[Any] | None:
    if issubclass(type(value), UserDict):
        value = vars(value).get("data")
    if issubclass(type(value), dict):
        return list(islice(dict.values(value), _MAX_PARTS))
    for type_ in (list, tuple):
        if issubclass(type(value), type_):
            return list(type_.__getitem__(value, slice(_MAX_PARTS)))
    return None


def _shape_of(tensor: torch.Tensor) -> Hashable:
    with DisableTorchFunction():
        if not holds_values(tensor) or tensor.is_nested:
            return None
        return tuple(_sizes(tensor))
