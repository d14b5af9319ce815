"""Losses and metrics that stay on the device and come to the host in bulk, late, each exactly once.

`add` writes the values of a step into a ring (`loss_ring.py`), `flush` sends new rows to the host, and
`poll` reads those that have arrived into a history, which computes the means (`loss_history.py`). Then
the user's callbacks are called (`loss_callbacks.py`). Several ranks check that they add the same before
they wait for each other (`loss_agreement.py`).

A lock guards all of this, because `add` may be called on any thread. `on_values` is called without the
lock, and the host waits without it, unless the ring is full.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Self, overload

from gapless.device.find import find_device
from gapless.errors import LossError, RanksDifferError, UserError, noted_on
from gapless.pipeline.host_waits import HostWaits
from gapless.pipeline.losses.loss_agreement import ranks_of_losses
from gapless.pipeline.losses.loss_callbacks import LossCallbacks
from gapless.pipeline.losses.loss_history import LossHistory
from gapless.pipeline.losses.loss_numbers import number_of
from gapless.pipeline.losses.loss_ring import LossRing


if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    import torch

    from gapless.device.base import Device, Stream
    from gapless.pipeline.losses.loss_history import NonFinite, StepValues
    from gapless.pipeline.losses.loss_numbers import Number
    from gapless.ranks import Peers
    from gapless.records.wait_stats import WaitStats


_BY_NAME: Any = object()


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
        readback_stream: carries the copies to the host; by default a stream for this alone.
        wait_stats: where host waits are counted.
        ranks: True in a loop of several ranks that has made a process group of its own: values
            are the weighted means over all ranks, on each of them. All ranks make it, add as many
            steps with the same names and call `mean`, `drain`, `reset` and `flush` after the same
            steps; a rank that needs no values gives `every` alone. Or the ranks themselves,
            which do all of this by construction.

    Raises:
        UserError: only one of `every` and `on_values` is given, or `every` is below 1. Or
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
        stream = "gapless.gather" if ranks is True else "gapless.readback"
        peers, self._agreement = ranks_of_losses(ranks, host_waits=self._host_waits, every=every)
        self._lock = threading.RLock()
        self._callbacks = LossCallbacks(every, on_values, warns=warn_nonfinite, lock=self._lock)
        self._ring = LossRing(
            self._device,
            host_waits=self._host_waits,
            stream=readback_stream or self._device.shared_stream(stream),
            ranks=peers,
            gathers_beside=self._agreement is not None,
        )
        self._history = LossHistory()

    @property
    def wait_stats(self) -> WaitStats:
        """The account of host waits made for losses."""
        return self._host_waits.stats

    @property
    def num_added(self) -> int:
        """Number of steps added so far, read or not."""
        return self._history.num_added

    @property
    def history(self) -> list[float] | Any:
        """The values that have reached the host, one for each step, in order; lists by name."""
        with self._lock:
            read = self._history
            columns = {name: list(column) for name, column in read.columns.items()}
            return columns if read.is_by_name else columns["loss"]

    @property
    def weights(self) -> list[float]:
        """The weights of the steps in `history`."""
        with self._lock:
            return list(self._history.weights)

    @property
    def first_nonfinite(self) -> NonFinite | None:
        """The first value read that is NaN or infinite, None while there is none."""
        return self._history.first_nonfinite

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
            ring, history, agreement = self._ring, self._history, self._agreement
            if ring.pending:
                ring.take_arrived(history)
            values = history.in_order(values, is_by_name=is_by_name)
            numbers = [number_of(value, name, self._device) for name, value in values.items()]
            numbers.append(number_of(weight, "weight", self._device))
            if agreement is not None and not history.num_added:
                agreement.begin(tuple(values) if is_by_name else None)
            if history.num_added - history.num_read >= ring.num_rows:
                ring.make_room(history)
            ring.write(history.num_added, numbers)
            if agreement is not None:
                agreement.connect(ring.rows)
            history.count(values, is_by_name=is_by_name)
            callbacks = self._callbacks
            if callbacks.are_due(history.num_added) or ring.is_half_new(history):
                self.flush()
        if history.first_nonfinite is not None:
            callbacks.warn(history.first_nonfinite)
        if callbacks.on_values is not None and callbacks.can_call(history):
            callbacks.call(self._current)

    def flush(self) -> None:
        """Queue the copy of all new values to the host.

        Raises:
            RanksError: of several ranks another one is gone.

        Sync: Does not block the host; on a CPU, with several ranks, until all are here.
        """
        with self._lock:
            start, end = self._ring.num_sent(self._history), self._history.num_added
            if self._agreement is not None:
                self._agreement.sends(start, end)
            if start < end:
                self._ring.send(start, end)

    def poll(self) -> int:
        """Take in the values whose copy is done; return the number of new steps.

        Sync: Does not block the host.
        """
        with self._lock:
            before = self._history.num_read
            self._ring.take_arrived(self._history)
            num_new = self._history.num_read - before
        self._callbacks.warn(self._history.first_nonfinite)
        return num_new

    def latest(self) -> StepValues | None:
        """Return the newest values that have reached the host, None before the first.

        If nothing is in flight, newer values are sent, so that a later call returns them. They are
        sent by these calls alone: called every 50 steps, it returns values that are 50 steps old.

        Sync: Does not block the host.
        """
        with self._lock:
            ring = self._ring
            ring.take_arrived(self._history)
            # When this is called differs between ranks, and what they gather must not.
            if not ring.pending and ring.ranks is None:
                self.flush()
                ring.take_arrived(self._history)
            read = self._history
            found = read.step(read.num_read - 1) if read.num_read else None
        self._callbacks.warn(self._history.first_nonfinite)
        return found

    def drain(self, *, reason: str = "loss_read") -> None:
        """Take in the values of every step added so far, and what an interrupted read left behind.

        Raises:
            Exception: what `on_values` raises; all values are read.

        Sync: Blocks the host until the last of them is computed and copied; one counted wait,
            none if all have been read already.
        """
        self._drain(reason)
        self._callbacks.warn(self._history.first_nonfinite)
        self._callbacks.call(self._current)

    def wait_for_flushed(self, *, reason: str = "loss_read") -> None:
        """Take in the values of every step that was flushed so far.

        Sync: Blocks the host until the last of them is computed and copied; one counted wait,
            none if all have been read already.
        """
        self._wait(reason)
        self._callbacks.warn(self._history.first_nonfinite)
        self._callbacks.call(self._current)

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
        self._callbacks.warn(self._history.first_nonfinite)
        self._callbacks.call(self._current)
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
            read = self._history
            if name is None and read.is_by_name:
                return {each: read.mean(each, since=since) for each in read.columns}
            return read.mean("loss" if name is None else name, since=since)

    def read_since(self, step: int) -> list[tuple[float, float]]:
        """Return the losses read from a step on, given by position, each with its weight.

        Sync: Does not block the host.
        """
        with self._lock:
            read = self._history
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
                if self._history.num_read == self._history.num_added:
                    self._history = LossHistory()
                    return

    def _forget(self) -> None:
        """Forget all values, also those in flight."""
        with self._lock:
            self._history = LossHistory()
            self._ring.forget()

    def _current(self) -> LossHistory:
        # `on_values` may call `reset`, which makes a new history. It does not empty the old one: an
        # interrupt in the middle would leave counts that do not match the values.
        return self._history

    def _drain(self, reason: str) -> None:
        with self._lock:
            if self._agreement is not None:
                self._agreement.reads(self._history.num_added, self._ring.rows)
            self.flush()
        self._wait(reason)

    def _wait(self, reason: str) -> None:
        with self._lock:
            last = self._ring.last_copy()
        if last is not None:
            self._host_waits.wait_event(last, reason=reason)
        with self._lock:
            self._ring.take_arrived(self._history)
            self._ring.reset_events()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
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
        weight: of all losses read.
        newest: the last loss read, None before the first.
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
