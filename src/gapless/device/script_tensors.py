"""Look at the tensors of a script without running code of it: where they are, and their shapes."""

from __future__ import annotations

from collections import UserDict
from itertools import islice
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch.overrides import has_torch_function_unary

from gapless.device.torch_private import DisableTorchFunction


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
    """Whether the host would have to wait for a tensor's values. Looks at nothing but the tensor's kind.

    Tensors that stand for others, such as those of torch's compiler, have no values of their own.
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


def shapes_of(value: Any, *, depth: int = 0) -> Hashable:
    """Return the shapes of the tensors of a batch, however they are held; None for anything else.

    No code of the script runs for it: containers of its own are looked at as the ones they derive from.
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
    for kind in (list, tuple):
        if issubclass(type(value), kind):
            return list(kind.__getitem__(value, slice(_MAX_PARTS)))
    return None


def _shape_of(tensor: torch.Tensor) -> Hashable:
    with DisableTorchFunction():
        if not holds_values(tensor) or tensor.is_nested:
            return None
        return tuple(_sizes(tensor))
