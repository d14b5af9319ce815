"""Copies of device tensors that come to the host while training goes on."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import torch

from gapless.errors import BatchError
from gapless.pipeline.tree.flatten import flatten


if TYPE_CHECKING:
    from gapless.device.base import Device
    from gapless.pipeline.host_waits import HostWaits


class HostCopy:
    """Copy all tensors of a structure to page-locked host memory, as they are now.

    The copies are queued on the current stream: what is queued there afterwards may change the
    tensors. Tensors that are not on the device are cloned at once, where they are.

    Args:
        value: tensors in tuples, lists, mappings and dataclasses, to any depth, beside plain
            values. A tensor that occurs twice is copied once.
        device: where the tensors are.

    Attributes:
        value: the structure with dense copies of its tensors, to be read once they are done.

    Raises:
        BatchError: the structure holds something else.

    Sync: Does not block the host on the device. Page-locked memory has to be made at first.
    """

    def __init__(self, value: Any, *, device: Device) -> None:
        self._device = device
        tree = flatten(value)
        if tree.unknown:
            type_ = type(tree.unknown[0])
            raise BatchError(f"cannot copy a {type_.__module__}.{type_.__qualname__} to the host")
        tensors = {id(tensor): tensor.detach() for tensor in tree.leaves}
        queued = {key: tensor for key, tensor in tensors.items() if not device.needs_copy(tensor)}
        copies = _buffers_for(queued, device)
        for key, tensor in tensors.items():
            if key in queued:
                device.copy(copies[key], tensor)
            else:
                copies[key] = tensor.clone(memory_format=torch.contiguous_format)
        self.value = tree.map(lambda tensor: copies[id(tensor)]).value
        self._done = device.create_event()
        device.record_event(self._done, device.current_stream())

    def is_done(self) -> bool:
        """Return whether everything is on the host.

        Sync: Does not block the host.
        """
        return self._device.query_event(self._done)

    def wait(self, host_waits: HostWaits, *, reason: str) -> None:
        """Wait until everything is on the host.

        Sync: Blocks the host until then; one wait, counted under `reason`.
        """
        host_waits.wait_event(self._done, reason=reason)


def _buffers_for(tensors: dict[int, torch.Tensor], device: Device) -> dict[int, torch.Tensor]:
    """Return host memory for each tensor, cut from one block for each dtype.

    Page-locking memory for every tensor would take longer than copying it. Each dtype has a block
    of its own, because `torch.save` refuses memory that two dtypes share.
    """
    of_dtype: defaultdict[torch.dtype, dict[int, torch.Tensor]] = defaultdict(dict)
    for key, tensor in tensors.items():
        of_dtype[tensor.dtype][key] = tensor
    buffers = {}
    for dtype, group in of_dtype.items():
        sizes = [tensor.numel() for tensor in group.values()]
        block = device.host_buffer(sum(sizes) * dtype.itemsize, pinned=True).view(dtype)
        for (key, tensor), part in zip(group.items(), block.split(sizes), strict=True):
            buffers[key] = part.view(tensor.shape)
    return buffers
