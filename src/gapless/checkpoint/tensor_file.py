"""Tensors in the format of safetensors, written without a copy and read after they were verified.

Safetensors' own writer copies all tensors into one string while it holds the interpreter's lock, and
needs numpy. Its format is a length, a JSON header and the tensors' bytes one after the other.

Source: https://github.com/huggingface/safetensors, README.md, "Format".
"""

from __future__ import annotations

import ctypes
import json
from typing import TYPE_CHECKING, Any

import torch

from gapless.errors import CheckpointError


if TYPE_CHECKING:
    from collections.abc import Mapping


_NAMES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.uint16: "U16",
    torch.uint32: "U32",
    torch.uint64: "U64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ",
    torch.float8_e5m2: "F8_E5M2",
    torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.complex64: "C64",
}

_ALIGNMENT = 8


def tensor_parts(tensors: Mapping[str, torch.Tensor]) -> list[memoryview]:
    """Return the bytes of a file that holds these tensors, in parts, without copying dense ones.

    Args:
        tensors: dense and in host memory; they must not change as long as the parts are used.

    Raises:
        CheckpointError: something is no tensor, or one that the format cannot hold.
    """
    for name, tensor in tensors.items():
        _check(name, tensor)
    # The widest numbers first, so that each tensor is aligned.
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].itemsize, item[0]))
    header: dict[str, Any] = {}
    parts, at = [], 0
    for name, tensor in ordered:
        part = _bytes_of(tensor)
        header[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [at, at + len(part)],
        }
        parts.append(part)
        at += len(part)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return [memoryview(len(text).to_bytes(8, "little") + text), *parts]


def _check(name: object, tensor: object) -> None:
    # The format keeps this name for itself.
    if type(name) is not str or name == "__metadata__":
        raise CheckpointError(f"{name!r} cannot be the name of a tensor; give it another")
    if not isinstance(tensor, torch.Tensor):
        type_ = type(tensor)
        raise CheckpointError(
            f"{name!r} is a {type_.__module__}.{type_.__qualname__}, expected a tensor; "
            "`pack` divides other state into tensors and JSON"
        )
    if _has_no_values(tensor):
        raise CheckpointError(f"tensor {name!r} holds no dense values that could be saved")
    if type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        type_ = type(tensor)
        raise CheckpointError(
            f"tensor {name!r} is a {type_.__module__}.{type_.__qualname__}, which may hold its values "
            "elsewhere; save the plain tensors that it stands for"
        )
    if tensor.dtype not in _NAMES:
        raise CheckpointError(
            f"tensor {name!r} is {tensor.dtype}, which a checkpoint cannot hold; convert it"
        )


def _has_no_values(tensor: torch.Tensor) -> bool:
    # A lazy parameter without a shape, and a nested tensor, can be asked for little else.
    is_odd = torch.nn.parameter.is_lazy(tensor) or tensor.is_nested
    return is_odd or tensor.is_meta or tensor.layout != torch.strided


def read_tensors(data: bytes) -> dict[str, torch.Tensor]:
    """Return the tensors in a file's bytes, which were verified before.

    Raises:
        CheckpointError: the bytes are of another format.
    """
    import safetensors
    import safetensors.torch

    try:
        return safetensors.torch.load(data)
    except safetensors.SafetensorError as error:
        raise CheckpointError(f"not a file of tensors: {error}") from error


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    # A view may show the conjugate or the negative of its memory.
    dense = tensor.detach().to("cpu").resolve_conj().resolve_neg().contiguous()
    size = dense.numel() * dense.itemsize
    memory = (ctypes.c_char * size).from_address(dense.data_ptr()) if size else bytearray()
    if size:
        # The memory lives as long as its view.
        memory.owner = dense  # type: ignore[union-attr]
    return memoryview(memory).cast("B")
