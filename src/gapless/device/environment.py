"""Settings of torch that decide which kernels a step launches."""

from __future__ import annotations

from contextlib import suppress
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import forward_ad
from torch.nn.utils import parametrize

from gapless.device.float32_precision import readers_of_float32_precision
from gapless.device.torch_modes import kinds_of_modes


if TYPE_CHECKING:
    from collections.abc import Callable


def environment_readers(device_type: str) -> list[tuple[str, Callable[[], Any]]]:
    """Return the names of settings that a graph bakes in, and functions that read them.

    Each function takes well below a microsecond and returns a plain value.

    Args:
        device_type: such as "cuda".
    """
    backends, of_c = torch.backends, torch._C
    known: list[tuple[str, Callable[[], Any]]] = [
        ("torch.is_grad_enabled()", torch.is_grad_enabled),
        ("torch.is_inference_mode_enabled()", torch.is_inference_mode_enabled),
        ("autocast's cache", torch.is_autocast_cache_enabled),
        ("torch.get_default_dtype()", torch.get_default_dtype),
        (
            "torch.are_deterministic_algorithms_enabled()",
            torch.are_deterministic_algorithms_enabled,
        ),
        ("torch.autograd.set_multithreading_enabled", _multithreading()),
        ("torch.is_anomaly_enabled()", torch.is_anomaly_enabled),
        ("modes of torch", kinds_of_modes),
        ("torch.autograd.graph.saved_tensors_hooks", _saved_tensors_hooks()),
        ("torch.nn.utils.parametrize.cached", keeps_parametrizations),
        ("torch.backends.mha.get_fastpath_enabled()", backends.mha.get_fastpath_enabled),
    ]
    known += readers_of_float32_precision(device_type)
    for kind in dict.fromkeys((device_type, "cpu")):
        known += [
            (f"autocast of {kind}", partial(torch.is_autocast_enabled, kind)),
            (f"autocast's dtype of {kind}", partial(torch.get_autocast_dtype, kind)),
        ]
    optional = {
        "torch.backends.cudnn.enabled": "_get_cudnn_enabled",
        "torch.backends.cudnn.benchmark": "_get_cudnn_benchmark",
        "torch.backends.cudnn.deterministic": "_get_cudnn_deterministic",
        "flash attention": "_get_flash_sdp_enabled",
        "memory efficient attention": "_get_mem_efficient_sdp_enabled",
        "attention by plain operations": "_get_math_sdp_enabled",
        "cuDNN's attention": "_get_cudnn_sdp_enabled",
        "attention that reduces in half precision": "_get_math_sdp_allow_fp16_bf16_reduction",
        "torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction": (
            "_get_cublas_allow_fp16_reduced_precision_reduction"
        ),
        "torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction": (
            "_get_cublas_allow_bf16_reduced_precision_reduction"
        ),
        "torch.backends.cuda.matmul.allow_fp16_accumulation": "_get_cublas_allow_fp16_accumulation",
    }
    for name, function in optional.items():
        reader = getattr(of_c, function, None)
        if reader is not None:
            known.append((name, reader))
    for name in ("blas", "linalg"):
        reader = getattr(of_c, f"_get_{name}_preferred_backend", None)
        if reader is not None:
            preferred = f"torch.backends.cuda.preferred_{name}_library()"
            known.append((preferred, partial(_number_of, reader)))
    if hasattr(of_c, "_get_sdp_priority_order"):
        _let_torch_order_attention(device_type)
        known.append(("the order of attention's kernels", _order_of_attention))
    return [(name, reader) for name, reader in known if _can_read(reader)]


def is_transformed() -> bool:
    """Return whether `torch.func` or a derivative in forward mode is around.

    Tensors may then have no memory of their own.
    """
    is_forward = forward_ad._current_level >= 0
    return is_forward or torch._C._are_functorch_transforms_active()


def keeps_parametrizations() -> bool:
    """Return whether `torch.nn.utils.parametrize.cached` is around."""
    return bool(parametrize._cache_enabled)


def _multithreading() -> Callable[[], Any]:
    return getattr(torch._C, "_is_multithreading_enabled", _nothing)


def _saved_tensors_hooks() -> Callable[[], Any]:
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    return _nothing if top is None else partial(top, True)


def _number_of(reader: Callable[[], Any]) -> int:
    """Return the number of an enumeration of torch, which makes a new object for each answer."""
    return int(reader())


@cache
def _let_torch_order_attention(device_type: str) -> None:
    """Let torch put attention's kernels in its order for the GPU.

    It does so when it is first asked for a kernel. If that happened later, in a validation say, a
    setting would seem to have changed.
    """
    is_there = device_type == "cuda" and torch.cuda.is_available()
    if is_there and hasattr(torch, "_fused_sdp_choice"):
        # Of float16, which most kernels take; the user may have allowed none that does.
        part = torch.empty((1, 1, 1, 8), device=device_type, dtype=torch.float16)
        with suppress(RuntimeError, Warning):
            torch._fused_sdp_choice(part, part, part)


def _order_of_attention() -> tuple[int, ...]:
    return tuple(torch._C._get_sdp_priority_order())


def _nothing() -> None:
    return None


def _can_read(reader: Callable[[], Any]) -> bool:
    try:
        reader()
    except (RuntimeError, TypeError):
        return False
    return reader is not _nothing
