"""Take a number of steps of a workload, whatever the number of its batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from gapless.errors import BatchError, UserError
from gapless.pipeline.loaders import EpochBatches, LoaderPart
from gapless.records.epoch import EpochRecord


if TYPE_CHECKING:
    from collections.abc import Iterable

    from gapless.loop.train_loop import TrainLoop
    from gapless.pipeline.step import SplitStep, WholeStep
    from gapless.records.epoch import Progress


OnStep: TypeAlias = Callable[[int], None]


@dataclass(frozen=True, kw_only=True)
class StepsTaken:
    """Epochs that were taken one after the other.

    Attributes:
        epochs: the result of each; times are without `start_ms`.
        start_ms: time in which loaders started their workers, until the first batch of each
            epoch was there.
    """

    epochs: list[EpochRecord]
    start_ms: float


def take_steps(
    loop: TrainLoop,
    batches: Iterable[Any],
    step: SplitStep | WholeStep,
    *,
    steps: int,
    after_step: OnStep | None = None,
) -> StepsTaken:
    """Take so many steps; batches that end before are gone through again, as a further epoch.

    Args:
        loop: takes them.
        batches: on the CPU.
        step: of the workload.
        steps: how many, at least 1.
        after_step: called with the number of steps queued so far.

    Raises:
        UserError: there are no batches, or one cannot be moved.
        Exception: whatever the workload raises; the loader's workers are gone by then.

    Sync: Blocks the host as the plan says, and until workers that a loader started have ended.
    """
    results, done, start_ms = list[EpochRecord](), 0, 0.0
    while done < steps:
        on_batch = None if after_step is None else partial(_after_batch, after_step, done)
        epoch = EpochBatches(batches, steps - done)
        try:
            part = LoaderPart(batches, epoch.take)
            result = loop.run_epoch(part, step, on_batch=on_batch)
        except BatchError as error:
            raise UserError(f"a batch of the workload: {error}") from error
        finally:
            epoch.end()
        if not result.num_batches:
            when = f"when gone through again after {done} steps" if done else "at all"
            raise UserError(
                f"the workload's batches gave no batch {when}, expected at least one each time; "
                "give a list or a loader"
            )
        results.append(_without_start(result, epoch.start_ms))
        done += result.num_batches
        start_ms += epoch.start_ms
    return StepsTaken(epochs=results, start_ms=start_ms)


def pass_over(batches: Iterable[Any], *, steps: int) -> None:
    """Ask for the batches of so many steps, as `take_steps` does, and drop them.

    Args:
        batches: on the CPU; they have given batches before.
        steps: how many, at least 1.

    Sync: Does not block the host on the device; waits for the loader.
    """
    done = 0
    while done < steps:
        epoch = EpochBatches(batches, steps - done)
        try:
            found = sum(1 for _ in epoch.take(batches))
        finally:
            epoch.end()
        if not found:
            return
        done += found


def _without_start(result: EpochRecord, start_ms: float) -> EpochRecord:
    # Nothing of the epoch is under way before its first batch, so the whole of it is a delay.
    # A simulated device has a clock of its own, which waiting for a loader does not move.
    return replace(
        result,
        wall_ms=result.wall_ms - start_ms,
        data_wait_ms=max(0.0, result.data_wait_ms - start_ms),
    )


def _after_batch(after_step: OnStep, done_before: int, progress: Progress) -> None:
    after_step(done_before + progress.batch)
