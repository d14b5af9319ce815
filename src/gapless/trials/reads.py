"""Copies of numbers on their way to the host, in the order in which they were queued."""

from __future__ import annotations

import threading
from collections import Counter, deque
from typing import TYPE_CHECKING, Any

import torch

from gapless.pipeline.host_waits import HostWaits
from gapless.pipeline.streams import EventPool
from gapless.trials.forcing_line import forcing_line
from gapless.trials.late_number import LateNumber, late_of


if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from gapless.device.base import Device, Event


# Each number has as much room as the largest needs.
_BYTES = 8

# Numbers whose page-locked memory is made at once.
_NUM_PLACES = 1024

# The host is never further ahead of the device than this.
_MOST_PENDING = 8 * _NUM_PLACES

# What a number of these is to Python.
_KIND_OF = {
    torch.float64: float,
    torch.float32: float,
    torch.float16: float,
    torch.bfloat16: float,
    torch.int64: int,
    torch.int32: int,
    torch.int16: int,
    torch.int8: int,
    torch.uint8: int,
}

# As it is, whoever puts another in its place.
_item = torch.Tensor.item


class _Place:
    """Page-locked memory for one number of any dtype."""

    __slots__ = ("_bytes", "_views")

    def __init__(self, memory: torch.Tensor) -> None:
        self._bytes = memory
        self._views: dict[torch.dtype, torch.Tensor] = {}

    def as_dtype(self, dtype: torch.dtype) -> torch.Tensor:
        """Return the memory as a tensor of one number."""
        view = self._views.get(dtype)
        if view is None:
            view = self._views[dtype] = self._bytes[: dtype.itemsize].view(dtype)
        return view


class _Copy:
    """A late number that is read, and its copy.

    Attributes:
        late: the number.
        place: where its copy is.
        dtype: of the copy.
        event: done when it is there.
        is_lent: whether the place can be used again afterwards.
    """

    __slots__ = ("dtype", "event", "is_lent", "late", "place")

    def __init__(
        self, late: LateNumber, place: _Place, dtype: torch.dtype, event: Event, *, is_lent: bool
    ) -> None:
        self.late = late
        self.place = place
        self.dtype = dtype
        self.event = event
        self.is_lent = is_lent

    @property
    def tensor(self) -> torch.Tensor:
        """The copy."""
        return self.place.as_dtype(self.dtype)


class Reads:
    """Queues copies of numbers to the host, and waits for those that are needed.

    Args:
        device: where the numbers are.

    Attributes:
        num_late: reads that were queued.
        forced: how often the host had to wait for one after all, by what the script did with it and
            file:line.
        texts: decides what a late number is as a text; by default it is forced.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._host_waits = HostWaits(device)
        self._events = EventPool(device)
        self._lock = threading.RLock()
        # Both kinds, in the order in which they were made: operands come before what is computed of them.
        self._pending: deque[_Copy | LateNumber] = deque()
        self._free: deque[_Place] = deque()
        self.num_late = 0
        self.forced: Counter[tuple[str, str]] = Counter()
        self.texts: Callable[[LateNumber, Callable[[Any], str]], str | None] | None = None

    def can_be_late(self, tensor: torch.Tensor) -> bool:
        """Return whether `read` takes a tensor: one number on the device."""
        return (
            tensor.numel() == 1
            and not self._device.needs_copy(tensor)
            and tensor.dtype in _KIND_OF
            and tensor.layout is torch.strided
        )

    def make_ready(self) -> None:
        """Make the memory that reads need.

        Sync: Does not block the host on the device.
        """
        if not self._free:
            block = self._device.host_buffer(_NUM_PLACES * _BYTES, pinned=True)
            self._free.extend(map(_Place, block.split(_BYTES)))

    def read(self, tensor: torch.Tensor) -> LateNumber:
        """Queue the copy of one number on the current stream; return it as a late number.

        Sync: Does not block the host, unless very many are on their way.
        """
        return self._queue(tensor, is_lent=True).late

    def copy(self, tensor: torch.Tensor) -> tuple[LateNumber, torch.Tensor]:
        """Queue the copy of one number; return it late, and the tensor that it will be in.

        Sync: Does not block the host, unless very many are on their way.
        """
        queued = self._queue(tensor, is_lent=False)
        return queued.late, queued.tensor.view(tensor.shape)

    def _queue(self, tensor: torch.Tensor, *, is_lent: bool) -> _Copy:
        with self._lock:
            self.take_arrived()
            while len(self._pending) >= _MOST_PENDING:
                self._take_next()
            self.make_ready()
            place, dtype = self._free.popleft(), tensor.dtype
            self._device.copy(place.as_dtype(dtype), tensor.detach().reshape(1))
            event = self._events.record(self._device.current_stream())
            is_small = dtype.itemsize <= torch.float32.itemsize
            late = late_of(_KIND_OF[dtype]).made(self, is_small=is_small)
            queued = _Copy(late, place, dtype, event, is_lent=is_lent)
            self._pending.append(queued)
            self.num_late += 1
            return queued

    def computed(
        self, kind: type[LateNumber], operation: Callable[..., Any], operands: tuple[Any, ...]
    ) -> LateNumber:
        """Return a late number that is computed of others when they are there."""
        late = kind.made(self, operation, operands)
        with self._lock:
            self._pending.append(late)
        return late

    def force(self, late: LateNumber, use: str) -> None:
        """Wait for a number, and note who needed it.

        Sync: Blocks the host until it is there.
        """
        with self._lock:
            self.take_arrived()
            if late.number is not None:
                return
            self.forced[use, forcing_line()] += 1
            while late.number is None:
                self._take_next()

    def take_arrived(self) -> None:
        """Take in the numbers that have come.

        Sync: Does not block the host.
        """
        with self._lock:
            while self._pending and self._is_there(self._pending[0]):
                self._take_next()

    def finish(self) -> None:
        """Wait for everything that is on its way.

        Sync: Blocks the host until it is there.
        """
        with self._lock:
            while self._pending:
                self._take_next()

    def nobody_else(self) -> AbstractContextManager[object]:
        """Keep other threads from reading in the body."""
        return self._lock

    def text_of(self, late: LateNumber, write: Callable[[Any], str]) -> str:
        """Return a number as a text, or what stands for it in texts that are written later.

        Sync: Blocks the host until the number is there, unless the text is written later.
        """
        if late.number is None and self.texts is not None:
            found = self.texts(late, write)
            if found is not None:
                return found
        return write(late.forced("formats"))

    def _is_there(self, first: _Copy | LateNumber) -> bool:
        return not isinstance(first, _Copy) or self._device.query_event(first.event)

    def _take_next(self) -> None:
        """Take the number that is next, and wait for it if it is not there."""
        first = self._pending[0]
        if isinstance(first, _Copy):
            self._host_waits.wait_event(first.event, reason="late_read")
            first.late.number = _item(first.tensor)
            self._events.give_back(first.event)
            if first.is_lent:
                self._free.append(first.place)
        else:
            first.compute()
        self._pending.popleft()
