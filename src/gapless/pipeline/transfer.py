"""Copies to the device that run beside its work, and the memory that they write.

A large tensor passes from the loader's memory through page-locked memory, unless it lies in such
memory already, into device memory, on a transfer stream. Each memory is guarded against early reads and
against early writes:

    loader's memory   read before the loader is asked again      (the host waits for the copy's event)
    staging memory    page-locked, from torch's allocator, which hands it out again when the copy is done
    device memory     read only after its copy is done           (the reader waits for the copy's event)
    device memory     written only after its last reader is done (the transfer stream waits for an event)

Device memory comes from torch's allocator as well, under the transfer stream. Whoever holds a view
of a batch holds its memory: a `Loan` gives it back only when nobody else holds its storage.
"""

from __future__ import annotations

import weakref
from collections import deque
from typing import TYPE_CHECKING

from gapless.device.torch_private import count_of_one_holder, num_holders
from gapless.pipeline.streams import EventPool


if TYPE_CHECKING:
    import torch

    from gapless.device.base import Device, Stream


_ONE_HOLDER = count_of_one_holder()


class TransferLane:
    """A transfer stream and the device memory that its copies write.

    Args:
        device: where the stream is.
        stream: carries copies to the device.

    Attributes:
        stream: as given.
    """

    def __init__(self, device: Device, stream: Stream) -> None:
        self.stream = stream
        self._device = device
        self._events = EventPool(device)

    def copy(self, source: torch.Tensor) -> torch.Tensor:
        """Return a copy of a dense host tensor on the device, to be read when this stream made it.

        Sync: Does not block the host if the source is page-locked.
        """
        with self._device.use_stream(self.stream):
            target = self._device.device_like(source)
            self._device.copy(target, source)
        return target

    def allocate_like(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a device tensor of the same form that work on this stream may write.

        Sync: Does not block the host.
        """
        with self._device.use_stream(self.stream):
            return self._device.device_like(tensor)

    def release(self, loan: Loan) -> None:
        """Take back memory that nobody else holds; its reads are queued on the loan's stream.

        Whatever this stream does next comes after those reads. So its memory goes back to torch's
        allocator, which may hand it out for this stream again.

        Sync: Does not block the host.
        """
        read = self._events.record(loan.stream)
        self._device.wait_event(self.stream, read)
        # The wait is queued on the stream, and nothing else waits for this record.
        self._events.give_back(read)
        loan.memory = None


_lanes: weakref.WeakKeyDictionary[Device, TransferLane] = weakref.WeakKeyDictionary()


def shared_lane(device: Device) -> TransferLane:
    """Return the lane that all prefetchers of a device share.

    Sync: Does not block the host.
    """
    if device not in _lanes:
        _lanes[device] = TransferLane(device, device.shared_stream("gapless.transfer"))
    return _lanes[device]


class Loan:
    """Device memory of one tensor that was handed out.

    Args:
        lane: that the memory goes back to.
        memory: holds the storage, as one of its holders.
        stream: on which the tensor is read.
    """

    __slots__ = ("_is_old", "_lane", "memory", "stream")

    def __init__(self, lane: TransferLane, memory: torch.Tensor, stream: Stream) -> None:
        self.memory: torch.Tensor | None = memory
        self.stream = stream
        self._lane = lane
        self._is_old = False

    def is_over(self, device: Device) -> bool:
        """Give the memory back if nobody else holds it; return whether this is no loan any more.

        Asked for the second time, the memory is left to whoever holds it. Torch's allocator takes
        it back when it is freed, and then waits for the stream that read it, which is slower.

        Sync: Does not block the host.
        """
        assert self.memory is not None
        if _ONE_HOLDER is not None and num_holders(self.memory) == _ONE_HOLDER:
            self._lane.release(self)
            return True
        if self._is_old or _ONE_HOLDER is None:
            self.leave(device)
            return True
        self._is_old = True
        return False

    def leave(self, device: Device) -> None:
        """Leave the memory to whoever else holds it.

        Sync: Does not block the host.
        """
        if self.memory is not None:
            device.record_stream(self.memory, self.stream)
            self.memory = None


class Loans:
    """The memory that one pass over a loader has handed out.

    Args:
        device: where the memory is.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._loans: deque[Loan] = deque()

    def add(self, loan: Loan) -> None:
        """Keep account of memory that is handed out now.

        Sync: Does not block the host.
        """
        self._loans.append(loan)

    def collect(self) -> None:
        """Take back what nobody holds any more.

        Sync: Does not block the host.
        """
        if self._loans:
            self._loans = deque(loan for loan in self._loans if not loan.is_over(self._device))

    def close(self) -> None:
        """Leave all memory to whoever holds it.

        Sync: Does not block the host.
        """
        while self._loans:
            self._loans.popleft().leave(self._device)
