"""Batches of an Accelerator's loaders that go to the device without a wait.

`send_to_device` of Accelerate copies each tensor and waits until the device has done all that was
asked of it before. Here small tensors are copied in order of the current stream, and nobody waits;
they are cloned before, so that the loader may fill its memory again. Others go as before.
"""

from __future__ import annotations

from collections import UserDict
from collections.abc import Mapping
from functools import cache, wraps
from typing import TYPE_CHECKING, Any

import torch
from accelerate import data_loader
from accelerate.utils.operations import honor_type

from gapless.integrations.attention_masks import look_on_host, note


if TYPE_CHECKING:
    from gapless.device.base import Device


_devices: list[Device] = []


def move_without_waits(device: Device) -> None:
    """Let Accelerate move batches to a device without a wait, from now on.

    Sync: Does not block the host.
    """
    if device.is_accelerator:
        _devices[:] = [one for one in _devices if one.torch_device != device.torch_device]
        _devices.append(device)
        _replace_in_accelerate()


@cache
def _replace_in_accelerate() -> None:
    as_written: Any = data_loader.send_to_device

    @wraps(as_written)
    def send_to_device(batch: Any, device: Any, *args: Any, **kwargs: Any) -> Any:
        known = _known(device)
        if known is None:
            return as_written(batch, device, *args, **kwargs)
        answers = look_on_host(batch)
        # It leaves what is on the device already as it is.
        moved = as_written(_moved(batch, known), device, *args, **kwargs)
        note(moved, answers)
        return moved

    data_loader.send_to_device = send_to_device


def _known(device: Any) -> Device | None:
    target = torch.device(device)
    for one in reversed(_devices):
        here = one.torch_device
        if here.type == target.type and target.index in (None, here.index):
            return one
    return None


def _moved(value: Any, device: Device) -> Any:
    """Return a batch whose small tensors are on the device."""
    if isinstance(value, torch.Tensor):
        return _moved_tensor(value, device)
    if isinstance(value, UserDict):
        # As its own `to` does, which changes it and returns it.
        value.data = _moved_mapping(value.data, device)
        return value
    if isinstance(value, Mapping):
        return _moved_mapping(value, device)
    if type(value) in (list, tuple) or hasattr(value, "_fields"):
        return honor_type(value, (_moved(one, device) for one in value))
    return value


def _moved_mapping(batch: Any, device: Device) -> Any:
    return type(batch)({name: _moved(one, device) for name, one in batch.items()})


def _moved_tensor(tensor: torch.Tensor, device: Device) -> torch.Tensor:
    is_plain = type(tensor) is torch.Tensor and tensor.layout is torch.strided
    if (
        not is_plain
        or tensor.requires_grad
        or not device.needs_copy(tensor)
        or tensor.device.type != "cpu"
        or tensor.nbytes > device.max_direct_copy_bytes
    ):
        return tensor
    return tensor.clone().to(device.torch_device, non_blocking=True)
