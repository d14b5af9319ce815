"""A device whose fresh memory shows if it is read before it is written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from gapless.device.find import find_device


if TYPE_CHECKING:
    from gapless.device.base import Device


_ALL_BITS = 0xFF


class _PoisonedDevice:
    """A device whose fresh buffers are full of NaN and -1; otherwise the device that it wraps."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def device_buffer(self, num_bytes: int) -> torch.Tensor:
        return self._device.device_buffer(num_bytes).fill_(_ALL_BITS)

    def host_buffer(self, num_bytes: int, *, pinned: bool) -> torch.Tensor:
        return self._device.host_buffer(num_bytes, pinned=pinned).fill_(_ALL_BITS)

    def device_like(self, tensor: torch.Tensor) -> torch.Tensor:
        return _poison(self._device.device_like(tensor))

    def pinned_like(self, tensor: torch.Tensor) -> torch.Tensor:
        return _poison(self._device.pinned_like(tensor))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)


def _poison(tensor: torch.Tensor) -> torch.Tensor:
    # Dense tensors fill one range of memory, whatever their strides.
    tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8).fill_(_ALL_BITS)
    return tensor


def poisoned(device: str | torch.device | Device = "auto") -> Device:
    """Return a device whose fresh memory is full of NaN (-1 in integers).

    A read of staging or loss memory before its first write then shows in the values.

    Args:
        device: a device or its name.

    Raises:
        DeviceError: the device is unknown or absent.

    Sync: Does not block the host.
    """
    return _PoisonedDevice(find_device(device))
