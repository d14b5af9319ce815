"""Losses that stay on the device and come to the host in bulk, late, each exactly once.

A fixed ring of float64 rows (loss, weight) lies on the device; a ring of the same size lies in
page-locked memory. Row `n % size` holds batch `n` in both. `flush` queues the copy of all new
rows on the readback stream; `poll` reads the rows whose copy an event says is done.

One rule guards both rings: a row is written again only after the host has read it, because a
row that was read has been computed and copied.

One number and two lists say what was added, copied and read: `_num_added`, the ends of
`_pending`, and the length of `history`. Each grows by one assignment, after the work that it
stands for. So if something interrupts the work, the next `flush` or `poll` does it again.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import torch

from gapless.device.find import find_device
from gapless.errors import LossError, noted_on
from gapless.pipeline.host_waits import HostWaits
from gapless.pipeline.streams import EventPool


if TYPE_CHECKING:
    from types import TracebackType

    from gapless.device.base import Device, Event, Stream
    from gapless.records.wait_stats import WaitStats


_ROWS = 1024
_BYTES_PER_ROW = 16


@dataclass(frozen=True, kw_only=True)
class _PendingCopy:
    done: Event
    end: int


class DeferredLoss:
    """Collect the loss of every batch without waiting for it.

    Args:
        device: a device or its name.
        readback_stream: carries the copies to the host; a stream of its own by default.
        wait_stats: where host waits are counted.

    Attributes:
        history: the losses that have reached the host, one for each batch, in order.
        weights: their weights.
        first_nonfinite: batch number and value of the first NaN or infinite loss that was read,
            None while there is none.

    Example:
        losses = gapless.DeferredLoss(device)
        for epoch in range(num_epochs):
            for batch in batches:
                losses.add(train_step(batch), weight=batch.ntokens)
            print(losses.mean())
            losses.reset()
    """

    def __init__(
        self,
        device: str | torch.device | Device = "auto",
        *,
        readback_stream: Stream | None = None,
        wait_stats: WaitStats | None = None,
    ) -> None:
        self._device = find_device(device)
        self._host_waits = HostWaits(self._device, wait_stats=wait_stats)
        self._stream = readback_stream or self._device.shared_stream("gapless.readback")
        self._events = EventPool(self._device)
        self._rows = self._device.device_buffer(_ROWS * _BYTES_PER_ROW).view(torch.float64)
        self._rows = self._rows.view(_ROWS, 2)
        pinned = self._device.host_buffer(_ROWS * _BYTES_PER_ROW, pinned=True)
        self._host_rows = pinned.view(torch.float64).view(_ROWS, 2)
        self._pending: deque[_PendingCopy] = deque()
        self._num_added = 0
        self.history: list[float] = []
        self.weights: list[float] = []
        self.first_nonfinite: tuple[int, float] | None = None

    @property
    def wait_stats(self) -> WaitStats:
        """The account of host waits made for losses."""
        return self._host_waits.stats

    @property
    def num_added(self) -> int:
        """Number of losses added so far, read or not."""
        return self._num_added

    def add(self, loss: torch.Tensor, *, weight: torch.Tensor | float = 1.0) -> None:
        """Keep the loss of one batch, computed on the current stream.

        Args:
            loss: one number on the device, of any floating dtype. It is copied: the graph
                behind it is not kept alive.
            weight: of this batch in the mean, such as its number of tokens.

        Raises:
            LossError: one of them is not one number.

        Sync: Does not block the host, unless 1,024 losses wait to be read ("loss_ring").
        """
        _check(loss, weight)
        if self._num_added - len(self.history) >= _ROWS:
            self._make_room()
        write_row(self._rows[self._num_added % _ROWS], loss, weight)
        self._num_added += 1
        if self._num_added - self._num_flushed() >= _ROWS // 2:
            self.flush()

    def flush(self) -> None:
        """Queue the copy of all new losses to the host.

        Sync: Does not block the host.
        """
        num_flushed = self._num_flushed()
        if num_flushed == self._num_added:
            return
        written = self._events.record(self._device.current_stream())
        self._device.wait_event(self._stream, written)
        # The readback stream has taken its wait; nobody else will wait for this record.
        self._events.give_back(written)
        with self._device.use_stream(self._stream):
            for start, end in _ring_ranges(num_flushed, self._num_added):
                self._device.copy(self._host_rows[start:end], self._rows[start:end])
        done = self._events.record(self._stream)
        self._pending.append(_PendingCopy(done=done, end=self._num_added))

    def poll(self) -> int:
        """Take in the losses whose copy is done; return how many were new.

        Sync: Does not block the host.
        """
        before = len(self.history)
        while self._pending and self._device.query_event(self._pending[0].done):
            copy = self._pending[0]
            self._read_rows(len(self.history), copy.end)
            self._pending.popleft()
            self._events.give_back(copy.done)
        return len(self.history) - before

    def drain(self, *, reason: str = "loss_read") -> None:
        """Take in every loss added so far, and what an interrupted read left behind.

        Sync: Blocks the host until the last of them is computed and copied; one counted wait,
            none if all have been read already.
        """
        self.flush()
        if self._pending:
            self._host_waits.wait_event(self._pending[-1].done, reason=reason)
            self.poll()
        if not self._pending:
            self._events.reset()

    def mean(self) -> float:
        """Return the weighted mean of all losses added so far; NaN if there are none.

        The sum is correctly rounded (`math.fsum` over float64), so the mean does not depend on
        when or in which portions the losses were read.

        Sync: Blocks the host once, if losses are still on the device.
        """
        self.drain(reason="loss_mean")
        return self.running_mean()

    def reset(self) -> None:
        """Forget all losses, so that the next `add` is the first.

        `history` and `weights` are new lists afterwards; who holds the old ones keeps them.

        Sync: Blocks the host once, if losses are still on the device ("loss_read").
        """
        self.drain()
        self.history, self.weights, self._num_added = [], [], 0
        self.first_nonfinite = None

    def running_mean(self, *, since: int = 0) -> float:
        """Return the weighted mean of the losses read so far; NaN if there are none.

        Args:
            since: number of the first batch to count.

        Sync: Does not block the host.
        """
        total = math.fsum(self.weights[since:])
        if not total:
            return math.nan
        pairs = zip(self.history[since:], self.weights[since:], strict=True)
        weighted = [loss * weight for loss, weight in pairs]
        try:
            return math.fsum(weighted) / total
        except (OverflowError, ValueError):  # beyond float64, or infinities of both signs
            return sum(weighted) / total

    def _make_room(self) -> None:
        # A full ring has been flushed: `add` does so whenever half of it is new.
        self.poll()
        if self._num_added - len(self.history) >= _ROWS:
            self._host_waits.wait_event(self._pending[0].done, reason="loss_ring")
            self.poll()

    def _num_flushed(self) -> int:
        return self._pending[-1].end if self._pending else len(self.history)

    def _read_rows(self, start: int, end: int) -> None:
        rows = [
            row
            for first, last in _ring_ranges(start, end)
            for row in self._host_rows[first:last].tolist()
        ]
        losses, weights = [loss for loss, _ in rows], [weight for _, weight in rows]
        bad = (number for number, loss in enumerate(losses) if not math.isfinite(loss))
        first_bad = next(bad, None)
        if self.first_nonfinite is None and first_bad is not None:
            self.first_nonfinite = (start + first_bad, losses[first_bad])
        # The history last: its length says what has been read.
        self.weights[start:] = weights
        self.history[start:] = losses

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.drain()
        else:
            with noted_on(error):
                self.drain()


class RunningMean:
    """Weighted mean of an epoch's losses, updated with what was read since the last time."""

    def __init__(self, losses: DeferredLoss) -> None:
        self._losses = losses
        self._num_seen = losses.num_added
        self._total = 0.0
        self.weight = 0.0

    def update(self) -> float | None:
        """Take in what was read since; return the mean, None before the first loss.

        Sync: Does not block the host.
        """
        for number in range(self._num_seen, len(self._losses.history)):
            weight = self._losses.weights[number]
            self._total += self._losses.history[number] * weight
            self.weight += weight
        self._num_seen = len(self._losses.history)
        return self._total / self.weight if self.weight else None


def write_row(row: torch.Tensor, loss: torch.Tensor, weight: torch.Tensor | float) -> None:
    """Write a loss and its weight into two float64 numbers on the device, without their graph.

    Sync: Does not block the host.
    """
    row[0].copy_(loss.detach().reshape(()))
    if isinstance(weight, torch.Tensor) and weight.device == row.device:
        row[1].copy_(weight.detach().reshape(()))
    else:
        row[1].fill_(float(weight))


def _check(loss: object, weight: object) -> None:
    if not _is_number(loss):
        raise LossError(
            f"a loss must be a tensor with one number, but is {_described(loss)}; let the step "
            "return its loss, still on the device, or a gapless.StepLoss"
        )
    # Whatever `float` takes; of tensors, those with one number.
    is_tensor = isinstance(weight, torch.Tensor)
    if not (_is_number(weight) if is_tensor else hasattr(weight, "__float__")):
        raise LossError(
            "the weight of a loss must be a number, or a tensor with one, but is "
            f"{_described(weight)}"
        )


def _is_number(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.numel() == 1 and not value.is_complex()


def _described(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)} and {value.dtype}"
    return "None" if value is None else f"a {type(value).__qualname__}"


def _ring_ranges(start: int, end: int) -> list[tuple[int, int]]:
    """Return the slices of the ring that hold rows `start` to `end`."""
    if start == end:
        return []
    first, last = start % _ROWS, end % _ROWS
    if first < last:
        return [(first, last)]
    return [(first, _ROWS), (0, last)] if last else [(first, _ROWS)]
