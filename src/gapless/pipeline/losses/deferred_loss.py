"""Losses and metrics that stay on the device and come to the host in bulk, late, each exactly once.

`add` writes the values of a step into a row of a ring on the device (`loss_ring.py`). `flush` queues
the copy of all new rows on the readback stream, behind every stream that wrote one. `poll` reads the
rows whose copy an event says is done (`loss_history.py`).

One rule guards the ring: a row is written again only after the host has read it, because a row that
was read has been computed and copied.

Two numbers and a queue say what was added, copied and read: `num_added` and `num_read` of the
history, and the ends of `_pending`. Each grows by one assignment, after the work that it stands for.
So if something interrupts the work, the next `flush` or `poll` does it again.

A lock guards all of this, for `add` may be called on any thread. `on_values` is called outside of it,
and so does the host wait, unless the ring is full.
"""

from __future__ import annotations

import threading
import warnings
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, overload

from gapless.device.find import find_device
from gapless.errors import LossError, RanksDifferError, UserError, noted_on
from gapless.pipeline.host_waits import HostWaits
from gapless.pipeline.losses.loss_agreement import LossAgreement
from gapless.pipeline.losses.loss_history import LossHistory
from gapless.pipeline.losses.loss_numbers import number_of
from gapless.pipeline.losses.loss_rows import LossRows
from gapless.pipeline.streams import EventPool
from gapless.ranks import ranks_of_user


if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    import torch

    from gapless.device.base import Device, Event, Stream
    from gapless.pipeline.losses.loss_numbers import Number
    from gapless.ranks import Peers
    from gapless.records.step_values import NonFinite, StepValues
    from gapless.records.wait_stats import WaitStats


_ROWS = 1024

_BY_NAME: Any = object()


@dataclass(frozen=True, kw_only=True)
class _PendingCopy:
    """Rows on their way to the host, up to step `end`; without an event if they are there."""

    done: Event | None
    end: int


class DeferredLoss:
    """Collect the loss of every step, or several values by name, without waiting for them.

    Can be used on any stream and any thread. Steps are counted from 0, and again after `reset`.

    To log every so many steps, give `every` and `on_values`; `latest` is for what asks in every
    step, such as a progress bar.

    Args:
        device: a device or its name.
        every: steps between two calls of `on_values`.
        on_values: is called with the values of steps `every` - 1, 2 * `every` - 1 and so on, in order,
            each once, when they have reached the host: by a later `add` on its thread, or by
            `drain`, `mean` or `reset`. With `every=10` these are steps 9, 19 and so on. What it
            raises comes out of that call.
        warn_nonfinite: give a RuntimeWarning when the first value that is NaN or infinite is read.
        readback_stream: carries the copies to the host; a stream of its own by default.
        wait_stats: where host waits are counted.
        ranks: True in a loop of several ranks that has made a process group of its own: values
            are the weighted means over all ranks, on each of them. All ranks make it, add as many
            steps with the same names and call `mean`, `drain`, `reset` and `flush` after the same
            steps; a rank that is not told values gives `every` alone. Or the ranks themselves,
            which do all of this by construction.

    Raises:
        UserError: `every` is given without `on_values`, or the other way round, or is below 1. Or
            `ranks` is True, and torchrun started several processes without a process group, or
            theirs would make the host wait for the device.
        RanksError: `ranks` is True, and not all ranks come.

    Example:
        losses = gapless.DeferredLoss(device)
        for epoch in range(num_epochs):
            for batch in batches:
                losses.add(train_step(batch), weight=batch.ntokens)
            print(losses.mean())
            losses.reset()

    Sync: Does not block the host; with `ranks=True` the first time until all ranks are here.
    """

    def __init__(
        self,
        device: str | torch.device | Device = "auto",
        *,
        every: int | None = None,
        on_values: Callable[[StepValues], object] | None = None,
        warn_nonfinite: bool = True,
        readback_stream: Stream | None = None,
        wait_stats: WaitStats | None = None,
        ranks: bool | Peers | None = None,
    ) -> None:
        if (every is None) != (on_values is None) and not (ranks and on_values is None):
            raise UserError("`every` and `on_values` must be given together, but only one is")
        if every is not None and every < 1:
            raise UserError(f"`every` must be at least 1, but is {every}")
        self._device = find_device(device)
        self._host_waits = HostWaits(self._device, wait_stats=wait_stats)
        name = "gapless.gather" if ranks is True else "gapless.readback"
        self._stream = readback_stream or self._device.shared_stream(name)
        self._events = EventPool(self._device)
        self._agreement: LossAgreement | None = None
        self._is_connected = False
        if not (ranks is None or isinstance(ranks, bool) or hasattr(ranks, "gather_rows")):
            raise LossError(
                f"`ranks` must be True in a loop of several ranks, else False, but is {ranks!r}; how many "
                "there are is read from the process group"
            )
        if isinstance(ranks, bool):
            ranks = self._ranks_of_user(every) if ranks else None
        self._ranks = None if ranks is None or ranks.world == 1 else ranks
        self._every, self._on_values = every, on_values
        self._is_telling = False
        self._warned_of: NonFinite | None = None
        self._warns = warn_nonfinite
        self._lock = threading.RLock()
        self._ring: LossRows | None = None
        self._writers: list[Stream] = []  # streams with rows that are not flushed
        self._pending: deque[_PendingCopy] = deque()
        self._read = LossHistory()

    def _ranks_of_user(self, every: int | None) -> Peers:
        ranks = ranks_of_user(self._device.torch_device)
        if ranks.world > 1:
            self._agreement = LossAgreement(ranks, host_waits=self._host_waits, every=every)
        return ranks

    @property
    def wait_stats(self) -> WaitStats:
        """The account of host waits made for losses."""
        return self._host_waits.stats

    @property
    def num_added(self) -> int:
        """Number of steps added so far, read or not."""
        return self._read.num_added

    @property
    def history(self) -> list[float] | Any:
        """The values that have reached the host, one for each step, in order; lists by name."""
        with self._lock:
            read = self._read
            columns = {name: list(column) for name, column in read.columns.items()}
            return columns if read.is_by_name else columns["loss"]

    @property
    def weights(self) -> list[float]:
        """The weights of the steps in `history`."""
        with self._lock:
            return list(self._read.weights)

    @property
    def first_nonfinite(self) -> NonFinite | None:
        """The first value read that is NaN or infinite, None while there is none."""
        return self._read.first_nonfinite

    def add(self, loss: Number = _BY_NAME, /, *, weight: Number = 1.0, **values: Number) -> None:
        """Keep the loss of one step, or several values by name, computed on the current stream.

        Args:
            loss: one number: a tensor of any real dtype, or one of Python's or numpy's. A tensor is
                copied: it may change afterwards, and the graph behind it is not kept alive.
            weight: of this step in the means, such as its number of tokens.
            values: such numbers by name, instead of `loss`, as in `add(loss=loss, lr=lr)` with the
                rate of a schedule. Each step has those of the first.

        Raises:
            LossError: one of them is not one number, or the names are not those of the first step.
                Nothing is added then.
            RanksError: as of `mean`.
            Exception: what `on_values` raises, for an earlier step; this step is added.

        Sync: Does not block the host, unless 1,024 steps wait to be read ("loss_ring"). With
            `ranks=True` the first step waits for the other ranks ("agreement").
        """
        is_by_name = loss is _BY_NAME
        if not is_by_name:
            if values:
                raise LossError(
                    f"there is a loss by position beside {', '.join(map(repr, values))} by name; "
                    "give all values by name, as in add(loss=loss, ...)"
                )
            values = {"loss": loss}
        with self._lock:
            if self._pending:
                self._take_arrived()
            values = self._read.in_order(values, is_by_name=is_by_name)
            numbers = [number_of(value, name, self._device) for name, value in values.items()]
            numbers.append(number_of(weight, "weight", self._device))
            if self._agreement is not None and not self._read.num_added:
                self._agreement.begin(tuple(values) if is_by_name else None)
            if self._read.num_added - self._read.num_read >= _ROWS:
                self._make_room()
            self._write(numbers)
            if self._agreement is not None and not self._is_connected:
                self._connect()
            self._read.count(values, is_by_name=is_by_name)
            if self._is_flush_due():
                self.flush()
        if self._read.first_nonfinite is not None:
            self._warn()
        if self._on_values is not None:
            self._tell()

    def flush(self) -> None:
        """Queue the copy of all new values to the host.

        Raises:
            RanksError: of several ranks another one is gone.

        Sync: Does not block the host; on a CPU, with several ranks, until all are here.
        """
        with self._lock:
            start, end = self._num_flushed(), self._read.num_added
            if self._agreement is not None and not self._device.is_accelerator:
                self._agreement.compare("sends", end, answer=None)
            if start == end:
                return
            if self._agreement is not None and self._device.is_accelerator:
                self._agreement.note_gathered(start, end)
            done = self._copy(start, end) if self._writers else None
            self._pending.append(_PendingCopy(done=done, end=end))
            self._writers = []

    def poll(self) -> int:
        """Take in the values whose copy is done; return the number of new steps.

        Sync: Does not block the host.
        """
        with self._lock:
            before = self._read.num_read
            self._take_arrived()
            num_new = self._read.num_read - before
        self._warn()
        return num_new

    def latest(self) -> StepValues | None:
        """Return the newest values that have reached the host, None before the first.

        If nothing is on its way, newer values are sent, so that a later call returns them. They are
        sent by these calls alone: called every 50 steps, it returns values that are 50 steps old.

        Sync: Does not block the host.
        """
        with self._lock:
            self._take_arrived()
            # When this is called differs between ranks, and what they gather must not.
            if not self._pending and self._ranks is None:
                self.flush()
                self._take_arrived()
            read = self._read
            found = read.step(read.num_read - 1) if read.num_read else None
        self._warn()
        return found

    def drain(self, *, reason: str = "loss_read") -> None:
        """Take in the values of every step added so far, and what an interrupted read left behind.

        Raises:
            Exception: what `on_values` raises; all values are read.

        Sync: Blocks the host until the last of them is computed and copied; one counted wait,
            none if all have been read already.
        """
        self._drain(reason)
        self._warn()
        self._tell()

    def wait_for_flushed(self, *, reason: str = "loss_read") -> None:
        """Take in the values of every step that was flushed so far.

        Sync: Blocks the host until the last of them is computed and copied; one counted wait,
            none if all have been read already.
        """
        self._wait(reason)
        self._warn()
        self._tell()

    @overload
    def mean(self) -> float | Any: ...
    @overload
    def mean(self, name: str) -> float: ...
    def mean(self, name: str | None = None) -> float | Any:
        """Return the weighted mean of all values added so far; NaN if there are none.

        The sum is correctly rounded (`math.fsum` over float64), so the mean does not depend on
        when or in which portions the values were read.

        Args:
            name: of one value; by default the mean of each, by name, or of the loss by position.

        Raises:
            LossError: no value has that name.
            RanksDifferError: `ranks` is True, and ranks have added other numbers of steps, or
                other values; raised on all ranks.
            PeerLostError: a rank is gone, or does not come within the time limit of the user's
                process group.
            Exception: what `on_values` raises.

        Sync: Blocks the host once, if values are still on the device; with `ranks=True` also
            until all ranks are here ("agreement").
        """
        self._drain("loss_mean")
        found = self.running_mean(name)
        self._warn()
        self._tell()
        return found

    @overload
    def running_mean(self, *, since: int = 0) -> float | Any: ...
    @overload
    def running_mean(self, name: str, *, since: int = 0) -> float: ...
    @overload
    def running_mean(self, name: str | None, *, since: int = 0) -> float | Any: ...
    def running_mean(self, name: str | None = None, *, since: int = 0) -> float | Any:
        """Return the weighted mean of the values read so far; NaN if there are none.

        Args:
            name: as for `mean`.
            since: number of the first step to count.

        Raises:
            LossError: no value has that name.

        Sync: Does not block the host.
        """
        with self._lock:
            read = self._read
            if name is None and read.is_by_name:
                return {each: read.mean(each, since=since) for each in read.columns}
            return read.mean("loss" if name is None else name, since=since)

    def read_since(self, step: int) -> list[tuple[float, float]]:
        """Return the losses read from a step on, given by position, each with its weight.

        Sync: Does not block the host.
        """
        with self._lock:
            read = self._read
            return list(zip(read.columns["loss"][step:], read.weights[step:], strict=True))

    def reset(self) -> None:
        """Forget all values and their names, so that the next `add` is step 0.

        Raises:
            RanksDifferError: as of `mean`; all is forgotten then.
            Exception: what `on_values` raises; nothing is forgotten then.

        Sync: Blocks the host once, if values are still on the device ("loss_read"); with `ranks=True`
            also until all ranks are here ("agreement").
        """
        while True:
            try:
                self.drain()
            except RanksDifferError:
                self._forget()
                raise
            with self._lock:
                # Another thread may have added since.
                if self._read.num_read == self._read.num_added:
                    self._read = LossHistory()
                    return

    def _forget(self) -> None:
        """Forget all values, those on their way among them."""
        with self._lock:
            self._read = LossHistory()
            self._pending = deque()
            self._writers = []

    def _write(self, numbers: list[torch.Tensor | float]) -> None:
        ring = self._ring
        if ring is None or ring.num_columns != len(numbers):
            ring = LossRows(
                self._device,
                num_rows=_ROWS,
                num_columns=len(numbers),
                ranks=self._ranks,
                skips_together=self._agreement is None,
            )
            self._device.record_stream(ring.rows, self._stream)
            self._ring, self._writers = ring, []
        stream = self._device.current_stream()
        if stream not in self._writers:
            # Work queued where the ring was made may still use the memory that it is made of.
            self._device.wait_event(stream, ring.made)
        if ring.write(self._read.num_added, numbers):
            self._note_writer(ring, stream)

    def _connect(self) -> None:
        """Let the ranks of a user connect their devices now, when all of them are at the first step.

        NCCL connects at the first collective of a group, and its host waits there for all ranks. Were
        that the first gathering, a rank with a step more would wait for others that never come.
        """
        assert self._ring is not None
        if self._device.is_accelerator:
            self._ring.take_part(0, 1)
        self._is_connected = True

    def _note_writer(self, ring: LossRows, stream: Stream) -> None:
        if stream not in self._writers:
            self._device.record_stream(ring.rows, stream)
            self._writers.append(stream)

    def _is_flush_due(self) -> bool:
        num_added = self._read.num_added
        if self._every is not None and num_added % self._every == 0:
            return True
        return num_added - self._num_flushed() >= _ROWS // 2

    def _copy(self, start: int, end: int) -> Event:
        assert self._ring is not None
        if self._ranks is not None and self._agreement is None:
            self._gather(start, end)
        for stream in self._writers:
            written = self._events.record(stream)
            self._device.wait_event(self._stream, written)
            # The readback stream has taken its wait; nobody else will wait for this record.
            self._events.give_back(written)
        with self._device.use_stream(self._stream):
            if self._agreement is not None:
                # Where ranks differ, this waits until they have compared. So the stream of the loop
                # must not wait for it: a loop that stands still would never compare.
                self._ring.gather(start, end, for_stream=self._stream)
            self._ring.copy_to_host(start, end)
        return self._events.record(self._stream)

    def _gather(self, start: int, end: int) -> None:
        """Gather the rows of all ranks on the current stream, behind all that wrote them."""
        assert self._ring is not None
        current = self._device.current_stream()
        for stream in self._writers:
            if stream != current:
                self._device.wait_stream(current, stream)
        self._ring.gather(start, end, for_stream=self._stream)
        self._writers = [current]

    def _take_arrived(self) -> None:
        """Read the rows that have arrived."""
        while self._pending:
            copy = self._pending[0]
            if copy.done is not None and not self._device.query_event(copy.done):
                return
            self._read_rows(copy.end)
            self._pending.popleft()
            if copy.done is not None:
                self._events.give_back(copy.done)

    def _read_rows(self, end: int) -> None:
        assert self._ring is not None
        self._read.take(self._ring.read(self._read.num_read, end))

    def _drain(self, reason: str) -> None:
        with self._lock:
            self._compare_added()
            self.flush()
        self._wait(reason)

    def _compare_added(self) -> None:
        """Let the ranks of a user's loop see that they have added as much."""
        if self._agreement is None:
            return
        answer = None
        if self._device.is_accelerator and self._ring is not None:
            answer = self._ring.take_part
        self._agreement.compare("reads", self._read.num_added, answer=answer)

    def _wait(self, reason: str) -> None:
        with self._lock:
            on_their_way = [copy.done for copy in self._pending if copy.done is not None]
        if on_their_way:
            self._host_waits.wait_event(on_their_way[-1], reason=reason)
        with self._lock:
            self._take_arrived()
            if not self._pending:
                self._events.reset()

    def _make_room(self) -> None:
        # A full ring has been flushed, for `add` does so whenever half of it is new; and what has
        # arrived was taken in.
        self._host_waits.wait_event(self._pending[0].done, reason="loss_ring")
        self._take_arrived()

    def _num_flushed(self) -> int:
        return self._pending[-1].end if self._pending else self._read.num_read

    def _warn(self) -> None:
        """Warn of the first value that is NaN or infinite, once; called by what the user called."""
        found = self._read.first_nonfinite
        if found is None or found is self._warned_of or not self._warns:
            return
        self._warned_of = found
        warnings.warn(
            f"`{found.name}` of step {found.step} is {found.value}, expected a finite number",
            RuntimeWarning,
            stacklevel=3,
        )

    def _tell(self) -> None:
        """Call `on_values` with the steps that are due and have arrived."""
        if self._on_values is None:
            return
        while (values := self._next_to_tell()) is not None:
            try:
                self._on_values(values)
            finally:
                self._is_telling = False

    def _next_to_tell(self) -> StepValues | None:
        # One call at a time, in whichever thread, keeps them in order.
        assert self._every is not None
        with self._lock:
            due = self._read.num_told + self._every
            if self._is_telling or due > self._read.num_read:
                return None
            self._is_telling = True
            self._read.num_told = due
            return self._read.step(due - 1)

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
        elif self._agreement is None:
            with noted_on(error):
                self.drain()
        # Other ranks may be waiting where this one does not come any more.


class RunningMean:
    """Weighted mean of an epoch's losses, updated with what was read since the last time.

    Args:
        losses: given by position.

    Attributes:
        weight: of all losses taken in.
        newest: the last loss taken in, None before the first.
    """

    def __init__(self, losses: DeferredLoss) -> None:
        self._losses = losses
        self._num_seen = losses.num_added
        self._total = 0.0
        self.weight = 0.0
        self.newest: float | None = None

    def update(self) -> float | None:
        """Take in what was read since; return the mean, None before the first loss.

        Sync: Does not block the host.
        """
        new = self._losses.read_since(self._num_seen)
        for loss, weight in new:
            if not weight:  # may be no number
                continue
            self._total += loss * weight
            self.weight += weight
        if new:
            self.newest = new[-1][0]
        self._num_seen += len(new)
        return self._total / self.weight if self.weight else None
