"""Why a call waits: by the function of a library that it went through, by its name, or by its index."""

from __future__ import annotations

import ast
import builtins
import os
from typing import TYPE_CHECKING, Any

import torch

from gapless.device import script_tensors
from gapless.device.torch_private import MODULE_TENSORS
from gapless.device.user_line import TORCH_FOLDER
from gapless.doctor.lines.call_syntax import index_at, last_name
from gapless.unnoticed import local_names


if TYPE_CHECKING:
    from types import CodeType, FrameType

    from gapless.doctor.advice.causes import Cause


# Everything in here is a part of printing.
_PRINTING = f"{TORCH_FOLDER}_tensor_str.py"

# By file of torch, and part of the function's name. The innermost function that is here decides.
_THROUGH: tuple[tuple[str, str, Cause], ...] = (
    ("_tensor.py", "__repr__", "print"),
    ("_tensor.py", "__format__", "format"),
    ("_tensor.py", "__contains__", "bool"),
    ("_tensor.py", "reduce_ex", "save"),
    ("_tensor.py", "unique", "shape"),
    ("serialization.py", "", "save"),
    ("storage.py", "__reduce__", "save"),
    ("functional.py", "unique", "shape"),
    ("amp/grad_scaler.py", "step", "scaler"),
    ("nn/utils/clip_grad.py", "", "clip"),
    # A number beside tensors becomes a tensor of their device.
    ("distributions/utils.py", "broadcast_all", "new tensor"),
    ("distributions/", "", "validation"),
    ("optim/", "", "optimizer"),
    ("nn/functional.py", "ctc_loss", "cpu"),
    ("nn/functional.py", "_nll_loss", "validation"),
)

_NAMED: dict[str, Cause] = {
    **dict.fromkeys(
        (
            *("argwhere", "bincount", "combinations", "masked_select", "nonzero", "one_hot"),
            *("repeat_interleave", "unique", "unique_consecutive", "where", "masked_scatter"),
            *("coalesce", "to_sparse", "to_dense", "histc", "indexing"),
        ),
        "shape",
    ),
    **dict.fromkeys(("equal", "allclose"), "equal"),
    **dict.fromkeys(
        (
            *("cholesky", "det", "eig", "eigh", "eigvals", "eigvalsh", "inv", "inverse"),
            *("lstsq", "lu_factor", "lu_solve", "matrix_rank", "pinv", "qr", "slogdet"),
            *("solve", "svd", "svdvals", "tensorinv", "tensorsolve", "matrix_exp", "cond"),
        ),
        "linalg",
    ),
    **dict.fromkeys(
        ("tensor", "as_tensor", "new_tensor", "asarray", "scalar_tensor"), "new tensor"
    ),
    **dict.fromkeys(("to", "cuda", "copy_", "type", "pack_padded_sequence"), "copy"),
    **dict.fromkeys(("cpu", "numpy", "pad_packed_sequence", "ctc_loss"), "cpu"),
    "tolist": "tolist",
    **dict.fromkeys(("save", "dump", "dumps"), "save"),
    **dict.fromkeys(("print", "repr", "str"), "print"),
    **dict.fromkeys(("format", "f-string", "info", "debug", "warning", "error"), "format"),
    **dict.fromkeys(("arange", "eye", "linspace", "range", "randint", "zeros", "narrow"), "index"),
    **dict.fromkeys(
        (
            *("add", "add_", "sub", "sub_", "full", "fill_", "masked_fill", "masked_fill_"),
            *("clamp", "clamp_", "lerp", "lerp_", "addcmul_", "addcdiv_", "addmm", "float"),
        ),
        "float",
    ),
    "int": "int",
    "bool": "bool",
    "item": "item",
    "synchronize": "stream",
    "barrier": "collective",
}

# What a read of one value may turn out to be a part of.
_READS = ("item", "float", "int", "index", "unknown")

# Methods and functions that return masks.
_COMPARING = frozenset(
    {
        *("eq", "ne", "lt", "le", "gt", "ge", "bool", "isnan", "isinf", "isfinite", "isin"),
        *("logical_and", "logical_or", "logical_not", "logical_xor", "isclose"),
    }
)
_COMBINING = (ast.BitAnd, ast.BitOr, ast.BitXor)

_UNKNOWN = object()


def cause_through(through: tuple[CodeType, ...], *, otherwise: Cause) -> Cause:
    """Return the cause of a wait by the library functions that led to it; the innermost known one decides."""
    if any(code.co_filename == _PRINTING for code in through):
        return "print"
    for code in through:
        path = code.co_filename
        if path.startswith(TORCH_FOLDER):
            inner = path[len(TORCH_FOLDER) :].replace(os.sep, "/")
            for file, part, cause in _THROUGH:
                if inner.startswith(file) and part in code.co_qualname:
                    return cause
        elif otherwise in _READS and f"{os.sep}logging{os.sep}" in path:
            return "format"
    return otherwise


def cause_by_name(name: str) -> Cause:
    """Return the cause of a wait in a call of this name, of which nothing else is known."""
    return _NAMED.get(name, "unknown")


def function_called(through: tuple[CodeType, ...]) -> str:
    """Return the outermost of these functions that is no wrapper, by name; empty if there is none."""
    for code in reversed(through):
        parts = code.co_qualname.split(".")
        if "<locals>" not in parts and not parts[-1].startswith("<"):
            return code.co_qualname
    return ""


# `torch.Tensor.__getitem__` is not replaced for that: a class with a `__getitem__` written in Python is a
# sequence for C, also when it is gone again, and `torch.tensor([one, two])` then asks scalars for their
# length.
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
        return (
            "index" if script_tensors.is_on_accelerator(value) or value.dim() == 0 else "cpu index"
        )
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
        for names in (own, *(own.get(part) or {} for part in MODULE_TENSORS)):
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
