"""Copies in flight to the device: staged batches, the limit on them, and loader memory being read."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from concurrent.futures import Future

    import torch

    from gapless.device.base import Device, Event, Stream
    from gapless.pipeline.host_waits import HostWaits
    from gapless.pipeline.streams import EventPool
    from gapless.pipeline.transfer import TransferLane


# Copies in flight hold page-locked memory. Beyond this the host waits for the oldest.
_MAX_BYTES = 1 << 30
DEFAULT_MAX_IN_FLIGHT = 128


@dataclass(eq=False, slots=True)
class StagedBatch:
    """A batch that is being moved to the device.

    Attributes:
        stream: the stream that was current when it was staged; small tensors were moved there.
        lane: where its large tensors are copied.
        value: the batch on the device, to be read only after it was handed out.
        copies: its large tensors on the device.
        jobs: of the background thread: what to copy, as (target, source).
        moved: tensors and objects that were moved on `stream`.
        was_moved: marks the end of those moves, if they are to be read on another stream.
        copied: marks the end of the copies from page-locked memory, None if there are none.
        enqueued: done when a background thread has queued the copies.
        reads_loader_memory: whether the copies read page-locked memory of the loader itself.
        num_bytes: page-locked memory that its copies hold.
        is_in_flight: whether `BatchesInFlight` counts it until `copied` is done.
        was_handed_out: whether streams wait for `copied` already.
    """

    stream: Stream
    lane: TransferLane
    value: Any = None
    copies: list[torch.Tensor] = field(default_factory=list)
    jobs: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)
    moved: list[Any] = field(default_factory=list)
    was_moved: Event | None = None
    copied: Event | None = None
    enqueued: Future[None] | None = None
    reads_loader_memory: bool = False
    num_bytes: int = 0
    is_in_flight: bool = False
    was_handed_out: bool = False


class BatchesInFlight:
    """Limits the batches whose copies are in flight, and the page-locked memory that they hold.

    Args:
        device: where the batches go.
        host_waits: the door for waits.
        events: the events of copies are given back there.
        most: batches in flight at one time.
    """

    def __init__(
        self, device: Device, *, host_waits: HostWaits, events: EventPool, most: int
    ) -> None:
        self._device = device
        self._host_waits = host_waits
        self._events = events
        self._most = most
        self._batches: deque[StagedBatch] = deque()

    def add(self, staged: StagedBatch) -> None:
        """Count a batch until its `copied` is done."""
        staged.is_in_flight = True
        self._batches.append(staged)

    def make_room(self, num_bytes: int) -> None:
        """Wait for the oldest copies if too many are in flight.

        Args:
            num_bytes: of page-locked memory that are to come.

        Sync: Blocks the host at the limit ("staging").
        """
        while self._batches and self._batches[0].was_handed_out:
            copied = self._batches[0].copied
            if not self._device.query_event(copied):
                if not self._is_full(num_bytes):
                    return
                self._host_waits.wait_event(copied, reason="staging")
            self._events.give_back(copied)
            self._batches.popleft()

    def _is_full(self, num_bytes: int) -> bool:
        held = sum([staged.num_bytes for staged in self._batches])
        return len(self._batches) >= self._most or held + num_bytes > _MAX_BYTES


class LoaderMemory:
    """Tensors of the loader that queued moves read, and the mark of their end.

    Args:
        device: that reads them.
        host_waits: the door for waits.

    Attributes:
        tensors: of the batch that was staged last.
        were_read: marks the end of the moves, where it was recorded last.
        clones_pinned: whether the host had to wait for small tensors in page-locked memory. From
            then on they are cloned into pageable memory, from which `to` reads them at once.
    """

    def __init__(self, device: Device, *, host_waits: HostWaits) -> None:
        self._device = device
        self._host_waits = host_waits
        self.tensors: list[torch.Tensor] = []
        self.were_read = device.create_event()
        self.clones_pinned = False

    def leave(self) -> None:
        """Return when the moves have read all tensors.

        Sync: Blocks the host only for page-locked tensors that are still being read
            ("loader_memory").
        """
        tensors, self.tensors = self.tensors, []
        for tensor in tensors:
            # Asked again for each tensor: a query of the event is cheaper than `is_pinned`.
            if self._device.query_event(self.were_read):
                break
            if may_be_pinned(tensor):
                self._host_waits.wait_event(self.were_read, reason="loader_memory")
                self.clones_pinned = True
                break


def may_be_pinned(tensor: torch.Tensor) -> bool:
    """Return whether a tensor may lie in page-locked memory, which a queued move reads later."""
    try:
        return tensor.is_cpu and tensor.is_pinned()
    except (RuntimeError, NotImplementedError):  # not every layout or subclass answers `is_pinned`
        return True
