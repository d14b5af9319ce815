"""Two guarded rings that a batch passes through: page-locked memory, then device memory.

A batch is packed into one flat host buffer, copied once, and handed out as views of one flat
device buffer. Each slot of a ring is guarded both ways by events:

    host slot     written only after the copy that read it is done       (host checks an event)
    device slot   copied into only after the steps that read it are done (stream waits an event)
    device slot   read only after its copy is done                       (stream waits an event)
"""

from __future__ import annotations

import weakref
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from gapless.errors import BatchError
from gapless.pipeline.tree import flatten


if TYPE_CHECKING:
    from gapless.device.base import Device, Event, Stream
    from gapless.pipeline.host_waits import HostWaits
    from gapless.pipeline.tree import Tree


# Bytes; enough for every dtype and every vector load.
_ALIGNMENT = 256

# Every transfer in flight needs a host slot. The ring grows to the number of transfers that the
# device keeps in flight, up to this memory; then the host waits for the oldest transfer.
_MAX_PINNED_BYTES = 1 << 30
_MIN_HOST_SLOTS = 2


@dataclass(kw_only=True)
class _HostSlot:
    buffer: torch.Tensor
    copied: Event


@dataclass(kw_only=True)
class _DeviceSlot:
    stream: Stream
    ready: Event
    read: Event
    buffer: torch.Tensor | None = None
    handed_out: list[weakref.ref[torch.Tensor]] = field(default_factory=list)

    def is_kept(self) -> bool:
        """Whether somebody still holds a tensor of the batch that was last in this slot."""
        return any(tensor() is not None for tensor in self.handed_out)


@dataclass(frozen=True, kw_only=True)
class StagedBatch:
    """A batch on its way to the device.

    Attributes:
        tree: the batch with its tensors on the device, to be read only after `ready`.
        slot: the ring slot that holds it, None if nothing had to be moved.
    """

    tree: Tree
    slot: _DeviceSlot | None


class StagingRing:
    """Move batches to the device through fixed, guarded memory.

    Args:
        device: where batches go.
        host_waits: the door for the wait that a full host ring needs.
        depth: batches that may be on the device ahead of the one in use.
        transfer_streams: streams that carry the copies, used in turn.
        pin_memory: stage in page-locked memory; without it every copy blocks the host, and is
            counted as such.
        max_host_slots: most transfers in flight.
    """

    def __init__(
        self,
        device: Device,
        *,
        host_waits: HostWaits,
        depth: int,
        transfer_streams: list[Stream],
        pin_memory: bool = True,
        max_host_slots: int = 128,
    ) -> None:
        self._device = device
        self._host_waits = host_waits
        self._pin_memory = pin_memory
        self._max_host_slots = max_host_slots
        self._host_slots: deque[_HostSlot] = deque()
        # Two more than the depth: the batch in use, and the one before it. The variable of the
        # caller's loop still holds that one when the next transfer starts.
        self._device_slots = deque(
            _DeviceSlot(
                stream=transfer_streams[number % len(transfer_streams)],
                ready=device.create_event(),
                read=device.create_event(),
            )
            for number in range(depth + 2)
        )

    def stage(self, batch: Any, *, compute_stream: Stream) -> StagedBatch:
        """Start moving a batch.

        Raises:
            BatchError: the batch holds something that cannot be moved.

        Sync: Does not block the host while host slots are free; see `StagingRing`.
        """
        tree = flatten(batch)
        tensors = [tensor for tensor in tree.leaves if self._device.needs_copy(tensor)]
        if not tensors:
            return StagedBatch(tree=tree, slot=None)
        offsets = _Offsets.of(tensors)
        host = self._acquire_host(offsets.num_bytes)
        offsets.pack(tensors, host.buffer)
        slot = self._acquire_device(offsets.num_bytes, compute_stream)
        self._copy(host, slot, offsets.num_bytes)
        views = offsets.views(slot.buffer)
        slot.handed_out = [weakref.ref(view) for view in views]
        moved = dict(zip(map(id, tensors), views, strict=True))
        return StagedBatch(tree=tree.map(lambda tensor: moved.get(id(tensor), tensor)), slot=slot)

    def hand_out(self, staged: StagedBatch, *, compute_stream: Stream) -> Tree:
        """Return the batch, ordered so that work on `compute_stream` reads it complete.

        Sync: Does not block the host.
        """
        if staged.slot is not None:
            self._device.wait_event(compute_stream, staged.slot.ready)
        return staged.tree

    def _acquire_host(self, num_bytes: int) -> _HostSlot:
        slots = self._host_slots
        # The slot stays in the ring while it is prepared, so that an interrupt cannot lose it.
        if not slots or not self._device.query_event(slots[0].copied):
            if self._may_grow(num_bytes):
                buffer = self._host_buffer(num_bytes)
                slots.appendleft(_HostSlot(buffer=buffer, copied=self._device.create_event()))
            else:
                self._host_waits.wait_event(slots[0].copied, reason="staging")
        slot = slots[0]
        if slot.buffer.numel() < num_bytes:
            slot.buffer = self._host_buffer(num_bytes)
        slots.rotate(-1)
        return slot

    def _may_grow(self, num_bytes: int) -> bool:
        held = sum(slot.buffer.numel() for slot in self._host_slots)
        count = len(self._host_slots)
        return count < _MIN_HOST_SLOTS or (
            count < self._max_host_slots and held + num_bytes <= _MAX_PINNED_BYTES
        )

    def _host_buffer(self, num_bytes: int) -> torch.Tensor:
        return self._device.host_buffer(_rounded(num_bytes), pinned=self._pin_memory)

    def _acquire_device(self, num_bytes: int, compute_stream: Stream) -> _DeviceSlot:
        slot = self._device_slots[0]
        self._device_slots.rotate(-1)
        # By now every read of the slot's last batch is queued, also reads made after the next
        # batch was taken. The same holds for the former owner of fresh memory.
        self._device.record_event(slot.read, compute_stream)
        self._device.wait_event(slot.stream, slot.read)
        if slot.buffer is None or slot.buffer.numel() < num_bytes or slot.is_kept():
            with self._device.use_stream(slot.stream):
                slot.buffer = self._device.device_buffer(_rounded(num_bytes))
        return slot

    def _copy(self, host: _HostSlot, slot: _DeviceSlot, num_bytes: int) -> None:
        assert slot.buffer is not None
        with self._device.use_stream(slot.stream):
            if self._pin_memory:
                self._device.copy(slot.buffer[:num_bytes], host.buffer[:num_bytes])
            else:
                with self._host_waits.blocking("pageable_copy"):
                    self._device.copy(slot.buffer[:num_bytes], host.buffer[:num_bytes])
        self._device.record_event(host.copied, slot.stream)
        self._device.record_event(slot.ready, slot.stream)


@dataclass(frozen=True, kw_only=True)
class _Offsets:
    """Where each tensor of a batch lies in a flat buffer."""

    shapes: list[torch.Size]
    dtypes: list[torch.dtype]
    starts: list[int]
    ends: list[int]

    @property
    def num_bytes(self) -> int:
        """Length of the flat buffer."""
        return self.ends[-1]

    @classmethod
    def of(cls, tensors: list[torch.Tensor]) -> _Offsets:
        """Return the places of tensors one behind the other, each aligned."""
        starts, ends, end = [], [], 0
        for tensor in tensors:
            if tensor.layout != torch.strided or tensor.device.type != "cpu":
                raise BatchError(
                    f"cannot stage a {tensor.layout} tensor that lives on {tensor.device}; "
                    "a batch may hold dense CPU tensors, or tensors already on its device"
                )
            start = -(-end // _ALIGNMENT) * _ALIGNMENT
            end = start + tensor.numel() * tensor.element_size()
            starts.append(start)
            ends.append(end)
        return cls(
            shapes=[tensor.shape for tensor in tensors],
            dtypes=[tensor.dtype for tensor in tensors],
            starts=starts,
            ends=ends,
        )

    def views(self, buffer: torch.Tensor | None) -> list[torch.Tensor]:
        """Return the tensors that lie in a flat buffer."""
        assert buffer is not None
        return [
            buffer[start:end].view(dtype).view(shape)
            for start, end, dtype, shape in zip(
                self.starts, self.ends, self.dtypes, self.shapes, strict=True
            )
        ]

    def pack(self, tensors: list[torch.Tensor], buffer: torch.Tensor) -> None:
        """Copy tensors into a flat buffer."""
        for view, tensor in zip(self.views(buffer), tensors, strict=True):
            view.copy_(tensor.detach())


def _rounded(num_bytes: int) -> int:
    """Round up to a power of two, so that buffers grow a few times and then stay."""
    return 1 << max(num_bytes - 1, _ALIGNMENT).bit_length()
