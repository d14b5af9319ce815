"""One epoch: every batch of a loader through the step, as the plan says."""

from __future__ import annotations

import weakref
from time import perf_counter
from typing import TYPE_CHECKING, Any

from gapless.errors import noted_on
from gapless.pipeline.losses.deferred_loss import RunningMean
from gapless.pipeline.step import loss_of
from gapless.records.epoch_record import EpochRecord, Progress
from gapless.records.wait_stats import WaitStats


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gapless.loop.engine import Engine
    from gapless.loop.plan_waits import PlanWaits
    from gapless.loop.runners import StepRunner
    from gapless.pipeline.prefetch import Pass, Prefetcher


class Epoch:
    """One pass over a loader's batches.

    Args:
        engine: of the run.
        runner: runs the steps.
        waits: of the host, as the plan says.
    """

    def __init__(self, engine: Engine, runner: StepRunner, waits: PlanWaits) -> None:
        self._engine = engine
        self._runner = runner
        self._waits = waits
        engine.host_waits.stats.by_reason.clear()
        # Not bound to itself: a cycle would keep the loader, and its worker processes, for a while.
        this = weakref.proxy(self)
        self._progress = Progress(waits=engine.host_waits.stats, so_far=lambda: this._record())
        self._running = RunningMean(engine.losses)
        self._first_loss = engine.losses.num_added
        self._meter_before = engine.meter.reading()
        self._launch_ms = 0.0
        self._wall_ms = 0.0
        self._started_at = perf_counter()
        self._outer_stream = engine.device.current_stream()
        self._prefetcher: Prefetcher[Any] | None = None
        self._pass: Pass[Any] | None = None

    def run(
        self, batches: Iterable[Any], on_batch: Callable[[Progress], None] | None
    ) -> EpochRecord:
        """Take all batches through the step, and read every loss.

        Raises:
            Exception: whatever the loader, the step or `on_batch` raises, when the losses of the
                steps that ended are read and the device is idle.

        Sync: Blocks the host as the plan says and at the end.
        """
        # Work queued before, such as building the model, comes first.
        self._engine.device.wait_stream(self._engine.streams.compute, self._outer_stream)
        try:
            with self._engine.on_compute_stream():
                self._take_all(batches, on_batch)
            self._finish()
        except BaseException as failure:
            # Also an interrupt of `_finish`, which is where the host waits.
            self._finish_after(failure)
            raise
        return self._record()

    # --- steps ---

    def _take_all(
        self, batches: Iterable[Any], on_batch: Callable[[Progress], None] | None
    ) -> None:
        self._prefetcher = self._engine.prefetch(batches)
        self._runner.begin_epoch(self._prefetcher, batches)
        self._pass = self._runner.start_pass(self._prefetcher)
        for batch in self._pass:
            self._take(batch)
            if on_batch is not None:
                on_batch(self._progress)

    def _take(self, batch: Any) -> None:
        engine, start = self._engine, perf_counter()
        stream = engine.streams.compute
        engine.meter.start_step(stream)
        returned, launch = self._runner.run(batch)
        out = loss_of(returned)
        engine.losses.add(out.loss if out.logged is None else out.logged, weight=out.weight)
        engine.meter.end_step(stream, launch)
        self._launch_ms += (perf_counter() - start) * 1000.0
        if engine.host_waits.log is not None:
            engine.host_waits.log.note("step", "step", since=start)
        self._progress.batch += 1
        self._waits.after_step(self._progress.batch)
        self._update_progress()

    def _update_progress(self) -> None:
        self._engine.meter.poll()
        self._observe_steps()
        progress = self._progress
        progress.diagnosis = self._runner.diagnosis
        progress.mean_loss = self._running.update()
        progress.loss = self._running.newest
        progress.weight = self._running.weight
        reading = self._engine.meter.reading() - self._meter_before
        progress.gap_share = reading.gap_share if self._engine.device.is_accelerator else None

    def _observe_steps(self) -> None:
        for step in self._engine.meter.take_read():
            self._runner.observe(step.launch, step.busy_ms, step.period_ms)

    # --- the end ---

    def _finish(self) -> None:
        """Read what is still on the device, and leave streams and events as they were found.

        Can be called again when it was interrupted.
        """
        engine = self._engine
        self._waits.at_end()
        # An interrupt in the instant in which a `with` is left may leave its stream current.
        if engine.device.current_stream() != self._outer_stream:
            engine.device.set_current_stream(self._outer_stream)
        engine.device.wait_stream(self._outer_stream, engine.streams.compute)
        engine.meter.pause()
        self._observe_steps()
        self._waits.clear()
        engine.events.reset()
        self._wall_ms = self._ms_since_start()

    def _finish_after(self, failure: BaseException) -> None:
        """Finish an epoch that was cut short, and wait for whatever it had queued.

        Not on several ranks: what is queued may wait for those that went on, for ever.
        """
        if self._engine.ranks.world == 1:
            with noted_on(failure):
                self._finish()
            with noted_on(failure):
                self._engine.wait_for_all(reason="epoch_end")
        if self._pass is not None:
            with noted_on(failure):
                self._pass.close()

    def _ms_since_start(self) -> float:
        return (perf_counter() - self._started_at) * 1000.0

    def _record(self) -> EpochRecord:
        engine, first = self._engine, self._first_loss
        assert self._prefetcher is not None
        reading = engine.meter.reading() - self._meter_before
        waits = WaitStats()
        waits.merge(engine.host_waits.stats)
        losses = engine.losses.history[first:]
        return EpochRecord(
            num_batches=len(losses),
            losses=losses,
            mean_loss=engine.losses.running_mean(since=first),
            weight=sum(engine.losses.weights[first:]),
            waits=waits,
            data_wait_ms=self._prefetcher.data_wait_ms,
            launch_ms=self._launch_ms,
            wall_ms=self._wall_ms or self._ms_since_start(),
            busy_ms=reading.busy_ms,
            gap_ms=reading.gap_ms if engine.device.is_accelerator else None,
        )
