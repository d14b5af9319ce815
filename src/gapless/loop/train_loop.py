"""The training loop: takes batches through a step as its plan says."""

from __future__ import annotations

from collections import deque
from time import perf_counter
from typing import TYPE_CHECKING, Any, Self, TypeVar

from gapless.device.find import find_device
from gapless.errors import noted_on
from gapless.graphs.captured_step import CapturedStep
from gapless.loop.auto import AutoStep
from gapless.pipeline.meter import GapMeter
from gapless.pipeline.prefetch import Prefetcher
from gapless.pipeline.readback import DeferredLoss, RunningMean
from gapless.pipeline.staging import StagingRing
from gapless.pipeline.step import SplitStep, StepLoss, WholeStep, call_host_part, do_work, loss_of
from gapless.pipeline.streams import EventPool, StreamManager
from gapless.plans import Plan, get_plan
from gapless.records.bottleneck import ON_A_CPU, Diagnosis
from gapless.records.epoch import EpochResult, Progress
from gapless.records.wait_stats import WaitStats


if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable
    from types import TracebackType

    import torch

    from gapless.device.base import Device, Event
    from gapless.graphs.capture_report import CaptureReport
    from gapless.graphs.snapshot import Snapshot


BatchT = TypeVar("BatchT")


class TrainLoop:
    """Run epochs of a step over batches, moving the work as a plan says.

    Owns the streams, rings and meters of a run; make one and use it for all epochs.

    Args:
        plan: a plan or its name.
        device: a device or its name.
        memory_budget_bytes: device memory above which no further shape of batch is captured;
            None: four fifths of the device's. See `CapturedStep`.

    Attributes:
        losses: every loss of the run; `losses.history` holds those that were read.

    Raises:
        PlanError: the plan is unknown.
        DeviceError: the device is unknown or absent.
    """

    def __init__(
        self,
        *,
        plan: str | Plan = "gapless",
        device: str | torch.device | Device = "auto",
        memory_budget_bytes: int | None = None,
    ) -> None:
        self.plan = get_plan(plan)
        self._memory_budget_bytes = memory_budget_bytes
        self.device = find_device(device)
        self.streams = StreamManager(self.device, num_streams=self.plan.streams)
        self._lanes = self.streams.lanes
        self.losses = DeferredLoss(
            self.device,
            readback_stream=self.streams.get_stream(self._lanes.readback),
            wait_stats=self.streams.stats,
        )
        self._ring = StagingRing(
            self.device,
            host_waits=self.streams.host_waits,
            depth=self.plan.prefetch,
            transfer_streams=[self.streams.get_stream(n) for n in self._lanes.transfer],
            pin_memory=self.plan.pin_memory,
            max_host_slots=self.plan.run_ahead,
        )
        self._meter = GapMeter(self.device)
        self._events = EventPool(self.device)
        self._in_flight: deque[Event] = deque()
        self._captured: CapturedStep | None = None
        self._auto: AutoStep | None = None
        self._forward_stream = self.streams.get_compute_stream()
        self._backward_stream = self.streams.get_stream(self._lanes.backward)

    def on_compute_stream(self) -> Any:
        """Return a context whose work goes to the compute stream; build the model in it.

        Autograd binds each parameter's gradient to the stream on which it was first used.

        Sync: Does not block the host.
        """
        return self.device.use_stream(self._forward_stream)

    def prefetch(self, batches: Iterable[BatchT]) -> Prefetcher[BatchT]:
        """Iterate over batches on the device, outside an epoch; for evaluation.

        Sync: Does not block the host on the device.
        """
        return Prefetcher(batches, ring=self._ring, device=self.device, depth=self.plan.prefetch)

    def run_epoch(
        self,
        batches: Iterable[Any],
        step: SplitStep | WholeStep,
        *,
        on_batch: Callable[[Progress], None] | None = None,
    ) -> EpochResult:
        """Take every batch through the step.

        Args:
            batches: batches on the CPU.
            step: a `SplitStep`, or a function that takes a batch on the device, trains on it and
                returns its loss (a tensor or a `StepLoss`). It must not wait for the device.
            on_batch: called after each batch was queued; may raise to stop the epoch.

        Returns:
            The losses and times of the epoch.

        Raises:
            BatchError: a batch holds something that cannot be moved.
            Exception: whatever the loader, the step or `on_batch` raises; an error in the
                clean-up is a note on it. By then the loss of every step that ended is in
                `losses.history`, the device is idle, the loader's workers are gone, and the next
                epoch can start. A second interrupt, during that clean-up, gets through at once;
                the next `losses.drain()` completes the history then.

        Sync: Blocks the host as the plan says and at the end, until the last loss is read.
        """
        run = _EpochRun(self)
        # Work queued before, such as building the model, comes first.
        self.device.wait_stream(self._forward_stream, self.device.current_stream())
        try:
            with self.on_compute_stream():
                run.take_all(batches, self._prepared(step), on_batch)
            run.finish()
        except BaseException as failure:
            # Also if the failure is an interrupt of `finish`, which is where the host waits.
            run.finish_after(failure)
            raise
        return run.result()

    @property
    def captures(self) -> bool:
        """Whether steps are captured: the plan says so, and the device gains by it."""
        return self.plan.capture and self.device.is_accelerator

    @property
    def capture(self) -> CaptureReport | None:
        """What is captured of the step that ran last; None if the plan captures nothing here."""
        return None if self._captured is None else self._captured.report

    @property
    def diagnosis(self) -> Diagnosis | None:
        """What plan `auto` found out last; None before, and under other plans."""
        if self.plan.auto and not self.device.is_accelerator:
            return ON_A_CPU
        return None if self._auto is None else self._auto.diagnosis

    def warm_up(
        self,
        batches: Iterable[Any],
        step: SplitStep | WholeStep,
        *,
        snapshot: Snapshot,
        on_batch: Callable[[int], None] | None = None,
    ) -> CaptureReport | None:
        """Capture the step for the shapes of these batches, ahead of a run; train on none.

        Args:
            batches: on the CPU, one of each shape.
            step: that `run_epoch` will be given.
            snapshot: of what the step changes, which is put back.
            on_batch: called with the number of shapes done so far.

        Returns:
            What is captured; None if the plan captures nothing here.

        Sync: Blocks the host.
        """
        captured = self._prepared(step)
        if not isinstance(captured, CapturedStep):
            return None
        self.device.wait_stream(self._forward_stream, self.device.current_stream())
        with self.on_compute_stream():
            captured.warm_up(self.prefetch(batches), snapshot=snapshot, on_batch=on_batch)
        return captured.report

    def _prepared(self, step: SplitStep | WholeStep) -> SplitStep | WholeStep:
        if not (self.plan.capture or self.plan.auto) or not self.device.is_accelerator:
            return step
        if self._captured is None or self._captured.step != step:
            self._captured = CapturedStep(
                step,
                device=self.device,
                host_waits=self.streams.host_waits,
                memory_budget_bytes=self._memory_budget_bytes,
            )
            if self.plan.auto:
                self._auto = AutoStep(self._captured, device=self.device, meter=self._meter)
        return self._auto or self._captured

    def close(self) -> None:
        """Give the streams back.

        Sync: Does not block the host.
        """
        self.streams.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class _EpochRun:
    """One pass of a `TrainLoop` over its batches."""

    def __init__(self, loop: TrainLoop) -> None:
        self._loop = loop
        self._plan = loop.plan
        self._device = loop.device
        self._host_waits = loop.streams.host_waits
        self._host_waits.stats.by_reason.clear()
        self.progress = Progress(waits=self._host_waits.stats)
        self._first_loss = loop.losses.num_added
        self._meter_before = loop._meter.reading()
        self._started_at = perf_counter()
        self._launch_ms = 0.0
        self._wall_ms = 0.0
        self._running = RunningMean(loop.losses)
        self._outer_stream = self._device.current_stream()
        self._prefetcher: Prefetcher[Any] | None = None
        self._batches: Generator[Any] | None = None

    def take_all(
        self,
        batches: Iterable[Any],
        step: SplitStep | WholeStep,
        on_batch: Callable[[Progress], None] | None,
    ) -> None:
        self._prefetcher = self._loop.prefetch(batches)
        self._batches = iter(self._prefetcher)
        if isinstance(step, AutoStep):
            step.begin_epoch(self._prefetcher, batches)
        for batch in self._batches:
            self.take(step, batch)
            if on_batch is not None:
                on_batch(self.progress)

    def take(self, step: SplitStep | WholeStep, batch: Any) -> None:
        start = perf_counter()
        loop = self._loop
        stream = loop._forward_stream
        loop._meter.start_step(stream)
        call_host_part(step, batch)
        out = self._run_step(step, batch)
        loop.losses.add(out.loss if out.logged is None else out.logged, weight=out.weight)
        loop._meter.end_step(stream)
        self._launch_ms += (perf_counter() - start) * 1000.0
        self.progress.batch += 1
        self._follow_plan()
        self._update_progress()

    def _run_step(self, step: SplitStep | WholeStep, batch: Any) -> StepLoss:
        forward, backward = self._loop._forward_stream, self._loop._backward_stream
        if forward is backward or not isinstance(step, SplitStep):
            return loss_of(do_work(step, batch))
        out = step.forward(batch)
        self._chain(forward, backward)
        with self._device.use_stream(backward):
            step.backward(out)
        self._chain(backward, forward)
        return loss_of(out)

    def _chain(self, before: Any, after: Any) -> None:
        """Let stream `after` wait for what was queued on `before`."""
        event = self._loop._events.record(before)
        self._device.wait_event(after, event)
        self._loop._events.give_back(event)

    def _follow_plan(self) -> None:
        plan, losses = self._plan, self._loop.losses
        batch = self.progress.batch
        read_due = batch % plan.loss_interval == 0
        wait_due = batch % plan.sync_interval == 0
        if plan.wait_with == "nothing":
            if read_due:
                losses.flush()
            self._limit_run_ahead()
        elif plan.wait_with == "event":
            if read_due:
                losses.flush()
            if wait_due:
                self._wait_for_event(reason=self._wait_reason())
        else:
            if wait_due:
                self._host_waits.wait_stream(
                    self._loop._forward_stream, reason=self._wait_reason()
                )
            if read_due:
                losses.drain(reason="loss_read")
        losses.poll()

    def _wait_reason(self) -> str:
        return "batch" if self._plan.sync_interval == 1 else "interval"

    def _wait_for_event(self, *, reason: str) -> None:
        # The event follows the copy of the losses, so that one wait brings both.
        loop = self._loop
        readback = loop.streams.get_stream(loop._lanes.readback)
        if readback is not loop._forward_stream:
            self._chain(readback, loop._forward_stream)
        event = loop._events.record(loop._forward_stream)
        self._host_waits.wait_event(event, reason=reason)
        loop._events.give_back(event)

    def _limit_run_ahead(self) -> None:
        loop, in_flight = self._loop, self._loop._in_flight
        in_flight.append(loop._events.record(loop._forward_stream))
        while in_flight and self._device.query_event(in_flight[0]):
            loop._events.give_back(in_flight.popleft())
        if len(in_flight) >= self._plan.run_ahead:
            oldest = in_flight.popleft()
            self._host_waits.wait_event(oldest, reason="run_ahead")
            loop._events.give_back(oldest)

    def _update_progress(self) -> None:
        loop = self._loop
        loop._meter.poll()
        self.progress.mean_loss = self._running.update()
        self.progress.weight = self._running.weight
        self.progress.gap_share = self._gap_share()
        self.progress.diagnosis = loop.diagnosis

    def _gap_share(self) -> float | None:
        reading = self._loop._meter.reading() - self._meter_before
        return reading.gap_share if self._device.is_accelerator else None

    def finish(self) -> None:
        """Read what is still on the device, and leave streams and events as they were found.

        Can be called again when it was interrupted.
        """
        loop = self._loop
        with loop.on_compute_stream():
            self._read_losses()
        # An interrupt in the instant in which a `with` is left may leave its stream current.
        if self._device.current_stream() != self._outer_stream:
            self._device.set_current_stream(self._outer_stream)
        self._device.wait_stream(self._outer_stream, loop._forward_stream)
        loop._meter.pause()
        loop._in_flight.clear()
        loop._events.reset()
        self._wall_ms = (perf_counter() - self._started_at) * 1000.0

    def _read_losses(self) -> None:
        losses = self._loop.losses
        if self._plan.wait_with == "nothing":
            losses.flush()
            self._wait_for_event(reason="epoch_end")
            losses.poll()
        losses.drain(reason="epoch_end")

    def finish_after(self, failure: BaseException) -> None:
        """Finish an epoch that was cut short, and wait for whatever it had queued."""
        with noted_on(failure):
            self.finish()
        with noted_on(failure):
            self._loop.streams.synchronize_all(reason="epoch_end")
        if self._batches is not None:
            with noted_on(failure):
                self._batches.close()

    def result(self) -> EpochResult:
        losses = self._loop.losses
        assert self._prefetcher is not None
        reading = self._loop._meter.reading() - self._meter_before
        waits = WaitStats()
        waits.merge(self._host_waits.stats)
        return EpochResult(
            losses=losses.history[self._first_loss :],
            mean_loss=losses.running_mean(since=self._first_loss),
            weight=sum(losses.weights[self._first_loss :]),
            waits=waits,
            data_wait_ms=self._prefetcher.data_wait_ms,
            launch_ms=self._launch_ms,
            wall_ms=self._wall_ms,
            busy_ms=reading.busy_ms,
            gap_ms=reading.gap_ms if self._device.is_accelerator else None,
        )
