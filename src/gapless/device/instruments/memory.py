"""How much device memory there is, and giving back what is only cached."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import torch


if TYPE_CHECKING:
    from gapless.device.base import Device


def free_memory_bytes(device: Device) -> int | None:
    """Return the device memory that no process holds, in bytes; None without one of its own.

    Sync: Does not block the host.
    """
    if device.torch_device.type != "cuda":
        return None
    return int(torch.cuda.mem_get_info(device.torch_device)[0])


def release_cached_memory(device: Device) -> None:
    """Give back memory that nobody uses, so that what is held later can be told apart.

    Sync: Blocks the host until the device is idle.
    """
    gc.collect()
    if device.torch_device.type == "cuda":
        torch.cuda.empty_cache()
