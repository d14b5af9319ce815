"""A ring of losses that is guarded against overwriting: rows on the device, in flight, and on the host.

`write` writes a row on the current stream. `send` queues the copy of new rows on the readback stream,
behind every stream that wrote one. `take_arrived` reads the rows whose copy an event says is done.

One rule guards the ring: a row is written again only after the host has read it, because a row that
was read has been computed and copied.

Three counts say what was added, copied and read: `num_added` and `num_read` of the history, and the
ends of `pending`. Each is assigned once, after its work is done. So after an interrupt, Ctrl-C say, the
next `send` or `take_arrived` repeats the work instead of losing it.

Not thread-safe: `DeferredLoss` holds a lock around all calls.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gapless.pipeline.losses.loss_rows import LossRows
from gapless.pipeline.streams import EventPool


if TYPE_CHECKING:
    import torch

    from gapless.device.base import Device, Event, Stream
    from gapless.pipeline.host_waits import HostWaits
    from gapless.pipeline.losses.loss_history import LossHistory
    from gapless.ranks import Peers


_ROWS = 1024


@dataclass(frozen=True, kw_only=True)
class _PendingCopy:
    """Rows in flight to the host, up to step `end`; without an event if nothing had to be copied."""

    done: Event | None
    end: int


class LossRing:
    """Carries rows of numbers from the streams that write them to the host.

    Args:
        device: where the rows are.
        host_waits: the door for waits.
        stream: carries the copies to the host.
        ranks: that write the same rows, which are gathered; None: the process trains alone.
        gathers_beside: whether rows are gathered on the stream of the copies; otherwise on the
            stream of the loop, behind what is queued there.

    Attributes:
        num_rows: that may wait to be read.
        pending: the copies in flight, the oldest first.
        rows: the memory; None before the first row.
        ranks: as given.
    """

    def __init__(
        self,
        device: Device,
        *,
        host_waits: HostWaits,
        stream: Stream,
        ranks: Peers | None = None,
        gathers_beside: bool = False,
    ) -> None:
        self._device = device
        self._host_waits = host_waits
        self._stream = stream
        self.ranks = ranks
        self._gathers_beside = gathers_beside
        self._events = EventPool(device)
        self.num_rows = _ROWS
        self.rows: LossRows | None = None
        self._writers: list[Stream] = []  # streams with rows that are not sent
        self.pending: deque[_PendingCopy] = deque()

    def write(self, number: int, numbers: list[torch.Tensor | float]) -> None:
        """Write the row of a step on the current stream; there must be room for it.

        Args:
            number: of the step.
            numbers: one for each column.

        Sync: Does not block the host.
        """
        rows = self.rows
        if rows is None or rows.num_columns != len(numbers):
            rows = self._make_rows(len(numbers))
        stream = self._device.current_stream()
        is_new = stream not in self._writers
        if is_new:
            # Work queued where the rows were made may still use the memory that they are made of.
            self._device.wait_event(stream, rows.made)
        if rows.write(number, numbers) and is_new:
            self._device.record_stream(rows.memory, stream)
            self._writers.append(stream)

    def make_room(self, history: LossHistory) -> None:
        """Wait until rows of a full ring are free.

        Sync: Blocks the host until the oldest copy is done ("loss_ring").
        """
        # There is a pending copy: half of the ring is sent as soon as it is new. It has an event that is
        # not done: whatever had arrived was read before.
        self._host_waits.wait_event(self.pending[0].done, reason="loss_ring")
        self.take_arrived(history)

    def is_half_new(self, history: LossHistory) -> bool:
        """Return whether half of the ring is new and must be sent, so that it never fills with unsent rows.

        Sync: Does not block the host.
        """
        sent = self.pending[-1].end if self.pending else history.num_read
        return history.num_added - sent >= self.num_rows // 2

    def num_sent(self, history: LossHistory) -> int:
        """Return the number of steps that were sent, read or not.

        Sync: Does not block the host.
        """
        return self.pending[-1].end if self.pending else history.num_read

    def send(self, start: int, end: int) -> None:
        """Queue the copy of the rows of steps `start` to `end` to the host.

        Sync: Does not block the host on a GPU.
        """
        done = self._copy(start, end) if self._writers else None
        self.pending.append(_PendingCopy(done=done, end=end))
        self._writers = []

    def take_arrived(self, history: LossHistory) -> None:
        """Read the rows that have arrived into the history.

        Sync: Does not block the host.
        """
        while self.pending:
            copy = self.pending[0]
            if copy.done is not None and not self._device.query_event(copy.done):
                return
            assert self.rows is not None
            history.take(self.rows.read(history.num_read, copy.end))
            self.pending.popleft()
            if copy.done is not None:
                self._events.give_back(copy.done)

    def last_copy(self) -> Event | None:
        """Return the event of the last copy in flight, None if there is none.

        Sync: Does not block the host.
        """
        return next((copy.done for copy in reversed(self.pending) if copy.done is not None), None)

    def reset_events(self) -> None:
        """Take all events back, unless copies are in flight.

        Sync: Does not block the host.
        """
        if not self.pending:
            self._events.reset()

    def forget(self) -> None:
        """Forget all rows that were not read, also those in flight.

        Sync: Does not block the host.
        """
        self.pending = deque()
        self._writers = []

    def _make_rows(self, num_columns: int) -> LossRows:
        rows = LossRows(
            self._device,
            num_rows=self.num_rows,
            num_columns=num_columns,
            ranks=self.ranks,
            skips_on_all_ranks=not self._gathers_beside,
        )
        self._device.record_stream(rows.memory, self._stream)
        self.rows, self._writers = rows, []
        return rows

    def _copy(self, start: int, end: int) -> Event:
        assert self.rows is not None
        if self.ranks is not None and not self._gathers_beside:
            self._gather(self.rows, start, end)
        for stream in self._writers:
            written = self._events.record(stream)
            self._device.wait_event(self._stream, written)
            # The wait is queued on the readback stream, and nothing else waits for this record.
            self._events.give_back(written)
        with self._device.use_stream(self._stream):
            if self._gathers_beside:
                # Where ranks differ, this waits until they have compared. If the loop's stream waited for
                # it, the loop would hang before it comes to the comparison.
                self.rows.gather(start, end, for_stream=self._stream)
            self.rows.copy_to_host(start, end)
        return self._events.record(self._stream)

    def _gather(self, rows: LossRows, start: int, end: int) -> None:
        """Gather the rows of all ranks on the current stream, behind all that wrote them."""
        current = self._device.current_stream()
        for stream in self._writers:
            if stream != current:
                self._device.wait_stream(current, stream)
        rows.gather(start, end, for_stream=self._stream)
        self._writers = [current]
