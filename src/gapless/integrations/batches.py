"""Batches of an Accelerator's loaders that go to the device without a wait.

`send_to_device` of Accelerate copies each tensor and waits until the device has done all that was
asked of it before. Here tensors are copied in the order of the current stream, and nobody waits.
They are cloned before, so that the loader may fill its memory again. To clone very large ones would
take the host longer than the wait; they go as before.
"""

from __future__ import annotations

from collections import UserDict
from collections.abc import Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any

import torch
from accelerate import data_loader
from accelerate.utils.operations import honor_type

from gapless.integrations.attention_masks import look_on_host, note
from gapless.pipeline.host_memory import is_plain, page_locked_copy
from gapless.unnoticed import Patches, PatchesWhileAlive


if TYPE_CHECKING:
    from gapless.device.base import Device


_devices: list[Device] = []


def move_without_waits(device: Device, user: object) -> None:
    """Let Accelerate move batches to a device without a wait.

    Args:
        device: where they go.
        user: an object for which that is, as long as it lives.

    Sync: Does not block the host.
    """
    if device.is_accelerator:
        _devices[:] = [one for one in _devices if one.torch_device != device.torch_device]
        _devices.append(device)
        _users.need(user)


def _replace_in_accelerate(patches: Patches) -> None:
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

    patches.put(data_loader, "send_to_device", send_to_device)


_users = PatchesWhileAlive(_replace_in_accelerate)


def _known(device: Any) -> Device | None:
    target = torch.device(device)
    for one in reversed(_devices):
        is_current = target.index is None and target.type != "cpu"
        if target == one.torch_device or (is_current and target.type == one.torch_device.type):
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
    if not (device.needs_copy(tensor) and is_plain(tensor)) or tensor.nbytes > max(
        device.max_direct_copy_bytes, device.max_queued_copy_bytes
    ):
        return tensor
    is_small = tensor.nbytes <= device.max_direct_copy_bytes
    # Torch's allocator keeps page-locked memory until the copies that read it are done.
    copy = tensor.clone() if is_small else page_locked_copy(tensor, device)
    return copy.to(device.torch_device, non_blocking=True)
