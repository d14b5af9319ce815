"""Precision, determinism and random numbers of the process."""

from __future__ import annotations

import os
import random
import sys
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, get_args

import torch

from gapless.device.float32_precision import float32_precision_restored
from gapless.device.precision import Precision
from gapless.errors import DeviceError


if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from gapless.device.base import Device


_CUBLAS_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"

_HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


def set_numerics(device: Device, precision: str, *, deterministic: bool | None) -> None:
    """Set float32 matrix precision and deterministic algorithms for the whole process.

    Also disables an attention kernel of torch whose gradients are wrong.

    Args:
        device: where the work will run.
        precision: `fp32`, `tf32`, `bf16` or `fp16`.
        deterministic: let equal runs give equal bits; a little slower. None: as the process has it.

    Raises:
        DeviceError: the precision is unknown, or this device does not offer it.
    """
    if precision not in get_args(Precision):
        raise DeviceError(
            f"unknown precision {precision!r}; the precisions are {', '.join(get_args(Precision))}"
        )
    if precision in ("tf32", "fp16") and not device.is_accelerator:
        raise DeviceError(f"precision {precision} needs a GPU, but the device is a CPU; use fp32")
    # The backward pass of cuDNN's fused attention gives NaN if there is a mask and the length is 64
    # modulo 128 (pytorch#196678; torch 2.11 on an H200, seen with 64 tokens in bf16). Torch prefers
    # it on Hopper; its other kernels are right.
    torch.backends.cuda.enable_cudnn_sdp(False)
    exact = precision == "fp32" or not device.is_accelerator
    torch.set_float32_matmul_precision("highest" if exact else "high")
    if deterministic:
        # cuBLAS reads this at its first call; without it two streams may round differently.
        os.environ.setdefault(_CUBLAS_WORKSPACE, ":4096:8")
    if deterministic is not None:
        _set_deterministic(deterministic, warn_only=False)


def _set_deterministic(deterministic: bool, *, warn_only: bool) -> None:
    """Have torch use deterministic algorithms alone, or any.

    Where that is so already nothing is done: torch would import its compiler, for two seconds.
    """
    found = torch.are_deterministic_algorithms_enabled()
    only_warns = torch.is_deterministic_algorithms_warn_only_enabled()
    if (found, only_warns) != (deterministic, warn_only):
        torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)


@contextmanager
def numerics_restored() -> Iterator[None]:
    """Restore what `set_numerics` sets, as it was before the body; not the random states."""
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    has_cudnn_attention = torch.backends.cuda.cudnn_sdp_enabled()
    workspace = os.environ.get(_CUBLAS_WORKSPACE)
    try:
        with float32_precision_restored():
            yield
    finally:
        _set_deterministic(deterministic, warn_only=warn_only)
        torch.backends.cuda.enable_cudnn_sdp(has_cudnn_attention)
        if workspace is None:
            os.environ.pop(_CUBLAS_WORKSPACE, None)


@contextmanager
def any_algorithm() -> Iterator[None]:
    """Let torch take any algorithm in the body, also where the process wants deterministic ones.

    For results that do not depend on orders, or need not be exact: torch refuses some of them
    unless cuBLAS was set up for them when the process began.
    """
    if not torch.are_deterministic_algorithms_enabled():
        yield
        return
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(False)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(True, warn_only=warn_only)


def matmul_dtype(precision: str) -> torch.dtype:
    """Return in which type a forward pass at this precision multiplies matrices."""
    return _HALF.get(precision, torch.float32)


def autocast(device: Device, precision: str) -> AbstractContextManager[object]:
    """Return the context in which a forward pass runs at this precision."""
    if precision not in _HALF:
        return nullcontext()
    return torch.autocast(device.torch_device.type, dtype=_HALF[precision])


def seed_everything(seed: int) -> None:
    """Seed torch's generators, on the host and on every device."""
    torch.manual_seed(seed)


def seed_generators(seed: int) -> None:
    """Seed every generator that a workload may draw from: torch's, Python's and numpy's."""
    seed_everything(seed)
    random.seed(seed)
    # Users' code may draw from numpy's global generator. If nothing has loaded numpy there is none,
    # and numpy may not be installed.
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        # It takes 32 bits.
        numpy.random.seed(seed % 2**32)


def random_state(device: Device) -> dict[str, torch.Tensor]:
    """Return the state of the generators that training draws from: the host's, the device's."""
    state = {"cpu": torch.get_rng_state()}
    own = device.random_state()
    if own is not None:
        state["device"] = own
    return state


def set_random_state(device: Device, state: dict[str, torch.Tensor]) -> None:
    """Restore what `random_state` returned."""
    torch.set_rng_state(state["cpu"])
    if "device" in state:
        device.set_random_state(state["device"])
