"""Take a number of steps of a workload, whatever the number of its batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any, TypeAlias

from gapless.device.instruments.processor import cpu_seconds
from gapless.errors import BatchError, UserError
from gapless.pipeline.loaders import EpochOf
from gapless.records.comparison import Round
from gapless.records.epoch_record import EpochRecord, total


if TYPE_CHECKING:
    from collections.abc import Iterable

    from gapless.loop.train_loop import TrainLoop
    from gapless.pipeline.step import SplitStep, WholeStep
    from gapless.records.epoch_record import Progress


OnStep: TypeAlias = Callable[[int], None]


def take_round(
    loop: TrainLoop,
    batches: Iterable[Any],
    step: SplitStep | WholeStep,
    *,
    steps: int,
    after_step: OnStep | None = None,
) -> Round:
    """Take steps; if the batches end before, pass over them again, each time as an epoch.

    Args:
        loop: takes the steps.
        batches: of the workload, on the CPU.
        step: of the workload.
        steps: number of steps, at least 1.
        after_step: called with the number of steps queued so far.

    Raises:
        UserError: there are no batches, or one cannot be moved.
        Exception: whatever the workload raises; the loader's workers are gone by then.

    Sync: Blocks the host as the plan says, and until workers that a loader started have ended.
    """
    graphs, start = _num_graphs(loop), perf_counter()
    cpu, own_cpu = cpu_seconds(), process_time()
    epochs, done, start_ms = list[EpochRecord](), 0, 0.0
    while done < steps:
        on_batch = None if after_step is None else partial(_after_batch, after_step, done)
        try:
            with EpochOf(batches, steps - done) as epoch:
                found = loop.run_epoch(epoch, step, on_batch=on_batch)
        except BatchError as error:
            raise UserError(f"a batch of the workload: {error}") from error
        require_batches(found.num_batches, done=done)
        epochs.append(_without_start(found, epoch.start_ms))
        done += found.num_batches
        start_ms += epoch.start_ms
    return Round(
        total=total(epochs),
        passes=tuple(epoch.num_batches for epoch in epochs),
        start_ms=start_ms,
        elapsed_ms=(perf_counter() - start) * 1000.0,
        cpu_seconds=cpu_seconds() - cpu,
        own_cpu_seconds=process_time() - own_cpu,
        num_graphs=_num_graphs(loop) - graphs,
    )


def require_batches(count: int, *, done: int) -> None:
    """Refuse a pass over the batches that gave none: further passes would repeat for ever.

    Args:
        count: number of batches of the pass.
        done: number of steps before it.

    Raises:
        UserError: there were none.
    """
    if not count:
        when = f"in another pass after {done} steps" if done else "at all"
        raise UserError(
            f"the workload's batches gave no batch {when}, expected at least one in each pass; "
            "give a list or a loader"
        )


def skip_round(batches: Iterable[Any], *, steps: int) -> None:
    """Ask for the batches that `take_round` would take, and drop them.

    Args:
        batches: on the CPU; they have given batches before.
        steps: number of steps, at least 1.

    Sync: Does not block the host on the device; waits for the loader.
    """
    done = 0
    while done < steps:
        with EpochOf(batches, steps - done) as epoch:
            found = sum(1 for _ in epoch)
        if not found:
            return
        done += found


def _num_graphs(loop: TrainLoop) -> int:
    return 0 if loop.capture_report is None else loop.capture_report.num_graphs


def _without_start(record: EpochRecord, start_ms: float) -> EpochRecord:
    # Nothing of the epoch runs before its first batch, so all of this time is a delay. Never below 0:
    # on a simulated device waiting for a loader does not move the virtual clock.
    return replace(
        record,
        wall_ms=record.wall_ms - start_ms,
        data_wait_ms=max(0.0, record.data_wait_ms - start_ms),
    )


def _after_batch(after_step: OnStep, done_before: int, progress: Progress) -> None:
    after_step(done_before + progress.batch)
