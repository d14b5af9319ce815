"""Run a workload under one plan, from its seed, and keep what is compared afterwards."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from gapless.compare.state_watch import StateWatch
from gapless.device.numerics import seed_everything, set_numerics
from gapless.errors import BatchError, UserError
from gapless.loop.train_loop import TrainLoop
from gapless.pipeline.loaders import EpochBatches, LoaderPart, end_kept_workers
from gapless.records.epoch import EpochRecord
from gapless.records.wait_stats import WaitStats


if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch

    from gapless.compare.model_state import Entry
    from gapless.compare.workload import Workload
    from gapless.device.base import Device
    from gapless.pipeline.step import SplitStep, WholeStep
    from gapless.plans import Plan
    from gapless.records.epoch import Progress


OnStep: TypeAlias = Callable[[int], None]


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """What all runs of a comparison share.

    Attributes:
        device: where they run.
        precision: of float32 matrix products; see `gapless.device.numerics.set_numerics`.
        deterministic: whether only deterministic algorithms may be used.
        seed: of torch, numpy and random, set before the workload is built.
    """

    device: Device
    precision: str
    deterministic: bool
    seed: int


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


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """What one run did.

    Attributes:
        plan: name of its plan.
        losses: of every step.
        entries: what the checksums are of; item 0 is the state before the first step.
        checksums: of the tensors on the device, after every step; item 0 before the first.
        kept: copies on the host of the tensors that are not on the device, after the last step;
            of all tensors, and of one after an earlier step, if they were asked for.
        waits: host waits of the steps, by reason.
        rounds: batches taken each time that they were gone through.
        num_replays: steps that ran as a captured graph.
    """

    plan: str
    losses: list[float]
    entries: list[tuple[Entry, ...]]
    checksums: list[list[int]]
    kept: dict[str, torch.Tensor]
    waits: WaitStats
    rounds: list[int]
    num_replays: int = 0

    @property
    def num_steps(self) -> int:
        """Number of steps that were taken."""
        return len(self.losses)


def run_plan(
    make: Callable[[torch.device], Workload],
    *,
    plan: str | Plan,
    settings: RunSettings,
    steps: int,
    keep_all: bool,
    copy_of: tuple[int, str] | None = None,
    on_step: OnStep | None = None,
) -> RunRecord:
    """Build a workload anew and take so many steps of it.

    Batches are gone through again when they end before the steps do, each time as an epoch of
    its own.

    Args:
        make: builds the workload; called in the loop's compute context, after seeding.
        plan: a plan or its name.
        settings: shared by all runs.
        steps: how many, at least 1.
        keep_all: whether to keep the values of the last state.
        copy_of: number of a step, 0 for the start, and name of a tensor to keep as it was then.
        on_step: called with the number of steps queued so far.

    Raises:
        UserError: there are no batches, or a batch, loss or tensor cannot be dealt with.
        Exception: whatever the workload raises.

    Sync: Blocks the host as the plan says, and once at the end ("verify").
    """
    device = settings.device
    set_numerics(device, settings.precision, deterministic=settings.deterministic)
    seed_all(settings.seed)
    with TrainLoop(plan=plan, device=device) as loop:
        with loop.on_compute_stream():
            workload = make(device.torch_device)
            watch = StateWatch(workload, device=device, copy_of=copy_of)

        try:
            epochs = _take_watched(loop, workload, watch, steps=steps, on_step=on_step)
        finally:
            end_kept_workers(workload.batches)
        with loop.on_compute_stream(), loop.host_waits.blocking("verify"):
            checksums, kept = watch.read_checksums(), watch.read_tensors(keep_all=keep_all)
        return RunRecord(
            plan=loop.plan.name,
            losses=loop.losses.history,
            entries=watch.entries,
            checksums=checksums,
            kept=kept,
            waits=_total_waits(epochs),
            rounds=[result.num_batches for result in epochs],
            num_replays=0 if loop.capture_report is None else loop.capture_report.num_replays,
        )


def _take_watched(
    loop: TrainLoop, workload: Workload, watch: StateWatch, *, steps: int, on_step: OnStep | None
) -> list[EpochRecord]:
    def after_step(done: int) -> None:
        watch.step_done()
        if on_step is not None:
            on_step(done)

    taken = take_steps(loop, workload.batches, watch.step, steps=steps, after_step=after_step)
    return taken.epochs


def _total_waits(results: list[EpochRecord]) -> WaitStats:
    waits = WaitStats()
    for result in results:
        waits.merge(result.waits)
    return waits


def seed_all(seed: int) -> None:
    """Seed the generators that a workload may draw from: torch's, Python's and numpy's."""
    seed_everything(seed)
    random.seed(seed)
    # Users' code draws from numpy's global generator; it takes 32 bits.
    np.random.seed(seed % 2**32)  # noqa: NPY002


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
