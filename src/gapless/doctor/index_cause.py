"""Why a wait comes from `tensor[index]`: for its shape, for places on the host, or for one place.

`torch.Tensor.__getitem__` is not replaced for that: a class with a `__getitem__` written in Python is a
sequence for C, also when it is gone again, and `torch.tensor([one, two])` then asks scalars for their
length.
"""

from __future__ import annotations

import ast
import builtins
from typing import TYPE_CHECKING, Any

import torch

from gapless.doctor import placement
from gapless.doctor.call_syntax import index_at, last_name
from gapless.unnoticed import local_names


if TYPE_CHECKING:
    from types import FrameType

    from gapless.doctor.causes import Cause


# Methods and functions that return masks.
_COMPARING = frozenset(
    {
        *("eq", "ne", "lt", "le", "gt", "ge", "bool", "isnan", "isinf", "isfinite", "isin"),
        *("logical_and", "logical_or", "logical_not", "logical_xor", "isclose"),
    }
)
_COMBINING = (ast.BitAnd, ast.BitOr, ast.BitXor)

_UNKNOWN = object()


def cause_of_index(frame: FrameType) -> Cause | None:
    """Return why the index that a frame is at waits; None where it is at none.

    What a name stands for is looked up in the frame; an expression is judged by its syntax.
    """
    index = index_at(frame.f_code, frame.f_lasti)
    if index is None:
        return None
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    kinds = {_kind_of(part, frame) for part in parts}
    return "shape" if "shape" in kinds else "cpu index" if "cpu index" in kinds else "index"


def _kind_of(part: ast.expr, frame: FrameType) -> Cause:
    value = _value_of(part, frame)
    if value is not _UNKNOWN:
        return _kind_of_value(value)
    if isinstance(part, ast.Compare) or _is_inverted(part) or _is_combined(part):
        return "shape"
    if isinstance(part, ast.Call) and last_name(part.func) in _COMPARING:
        return "shape"
    # What the line makes on the spot is on the host, unless it says otherwise.
    if isinstance(part, ast.Call) and last_name(part.func) in (
        "tensor",
        "as_tensor",
        "from_numpy",
    ):
        return "index" if any(word.arg == "device" for word in part.keywords) else "cpu index"
    return "index"


def _kind_of_value(value: Any) -> Cause:
    if isinstance(value, torch.Tensor):
        if value.dtype in (torch.bool, torch.uint8):
            return "shape"
        return "index" if placement.is_on_accelerator(value) or value.dim() == 0 else "cpu index"
    if isinstance(value, list):
        return "shape" if value and isinstance(value[0], bool) else "cpu index"
    return "cpu index" if hasattr(value, "__array__") else "index"


def _value_of(part: ast.expr, frame: FrameType) -> Any:
    """Return what a literal, a name or an attribute stands for, without running code for it."""
    if isinstance(part, ast.Name):
        for names in (local_names(frame), frame.f_globals, vars(builtins)):
            if part.id in names:
                return names[part.id]
        return _UNKNOWN
    if isinstance(part, ast.Attribute):
        owner = _value_of(part.value, frame)
        own = getattr(owner, "__dict__", {})
        for names in (own, own.get("_buffers") or {}, own.get("_parameters") or {}):
            if part.attr in names:
                return names[part.attr]
        return _UNKNOWN
    try:
        return ast.literal_eval(part)
    except (ValueError, TypeError, SyntaxError):
        return _UNKNOWN


def _is_inverted(part: ast.expr) -> bool:
    return isinstance(part, ast.UnaryOp) and isinstance(part.op, ast.Invert)


def _is_combined(part: ast.expr) -> bool:
    return isinstance(part, ast.BinOp) and isinstance(part.op, _COMBINING)
