"""Find a device by name."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import torch

from gapless.device.cpu import CpuDevice
from gapless.device.cuda import CudaDevice
from gapless.errors import DeviceError


if TYPE_CHECKING:
    from gapless.device.base import Device


def find_device(name: str | torch.device | Device = "auto") -> Device:
    """Return the device of that name; the same name always gives the same object.

    Args:
        name: `auto` (the GPU if there is one, else the CPU), `cpu`, `cuda`, `cuda:N`, or a
            `torch.device`; `cpu:0` is `cpu`. A device object is returned as it is.

    Raises:
        DeviceError: the name is unknown, or the GPU is not there.

    Sync: Does not block the host on the device.
    """
    if not isinstance(name, str | torch.device) and hasattr(name, "torch_device"):
        return name
    text = str(name)
    if text == "auto":
        text = "cuda" if torch.cuda.is_available() else "cpu"
    if text in ("cpu", "cpu:0"):
        return _cpu()
    device_type, _, number = text.partition(":")
    if device_type != "cuda" or not (number.isdecimal() or text == "cuda"):
        raise DeviceError(f"unknown device {text!r}; the devices are auto, cpu, cuda and cuda:N")
    return _cuda(_present_gpu(text, number))


def num_gpus() -> int:
    """Return how many GPUs torch finds here."""
    return torch.cuda.device_count()


def _present_gpu(text: str, number: str) -> int:
    if not torch.cuda.is_available():
        raise DeviceError(
            f"device {text} was asked for, but torch {torch.__version__} finds no GPU here; "
            'use `device="cpu"`, or install a CUDA build of torch'
        )
    index = int(number) if number else torch.cuda.current_device()
    if index >= torch.cuda.device_count():
        raise DeviceError(
            f"device {text} was asked for, but there are {torch.cuda.device_count()} GPUs here, "
            "numbered from 0"
        )
    return index


@cache
def _cpu() -> CpuDevice:
    return CpuDevice()


@cache
def _cuda(index: int) -> CudaDevice:
    return CudaDevice(index)
