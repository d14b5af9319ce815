"""Why a call waits: by the function of a library that it went through, or by its name."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import torch


if TYPE_CHECKING:
    from types import CodeType

    from gapless.doctor.causes import Cause


_TORCH = str(Path(torch.__file__).parent) + os.sep

# Everything in here is a part of printing.
_PRINTING = f"{_TORCH}_tensor_str.py"

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


def cause_through(through: tuple[CodeType, ...], *, otherwise: Cause) -> Cause:
    """Return the cause that libraries on the way make of a wait; the innermost that is known decides."""
    if any(code.co_filename == _PRINTING for code in through):
        return "print"
    for code in through:
        path = code.co_filename
        if path.startswith(_TORCH):
            inner = path[len(_TORCH) :].replace(os.sep, "/")
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
    """Return the name of the outermost function on the way that is no wrapper; empty if there is none."""
    for code in reversed(through):
        parts = code.co_qualname.split(".")
        if "<locals>" not in parts and not parts[-1].startswith("<"):
            return code.co_qualname
    return ""
