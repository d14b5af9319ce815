"""Who watches a training run, and what it is told at the start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch


if TYPE_CHECKING:
    from gapless.device.base import Device
    from gapless.nmt.data.sampler import MicrobatchSampler
    from gapless.nmt.run.config import TrainConfig
    from gapless.nmt.run.task import Task
    from gapless.plans import Plan
    from gapless.records.epoch_record import Progress
    from gapless.records.training import TrainingEpoch


class Observer(Protocol):
    """Sees a run go by; the command line draws its progress from it."""

    def started(self, facts: dict[str, str]) -> None:
        """The run is ready; the facts say what is in force."""

    def noted(self, text: str) -> None:
        """Something about the run that its user should know; each is said once."""

    def warming_up(self, done: int, *, of: int) -> None:
        """So many shapes of batches are compiled and captured, ahead of the run."""

    def epoch_started(self, epoch: int, *, num_batches: int, num_epochs: int) -> None:
        """An epoch of so many batches begins; epochs count from 1."""

    def batch_queued(self, progress: Progress, *, num_updates: int) -> None:
        """A batch was queued."""

    def epoch_ended(self, record: TrainingEpoch) -> None:
        """An epoch is over."""

    def testing(self, count: int) -> None:
        """The final model begins to translate so many test sentences."""


def describe_run(
    config: TrainConfig, task: Task, *, device: Device, plan: Plan, workers: int
) -> dict[str, str]:
    """Return lines about device, plan and data of a run, each under its title.

    Args:
        config: of the run, resolved for its device.
        task: what it learns.
        device: where it runs.
        plan: that moves its work.
        workers: processes that make its batches.
    """
    # On a CPU the plan's wish means nothing: its buffers are ordinary memory.
    pinned = plan.pin_memory and device.is_accelerator
    skipped = f", {task.skipped_long} too long" if task.skipped_long else ""
    return {
        "device": f"{device.torch_device} ({device.describe()}), "
        f"torch {torch.__version__}, {config.precision}",
        "plan": f"{plan.name}: {plan.streams} streams, waits with {plan.wait_with}, "
        f"prefetch {plan.prefetch}, {workers} workers, "
        f"{'pinned' if pinned else 'pageable'} staging"
        f"{', layers compiled' if config.compile else ''}",
        "data": f"{config.data or 'embedded corpus'}, {config.src} to {config.tgt}: "
        f"{len(task.train)} training pairs{skipped}, {len(task.corpus.val)} validation, "
        f"{len(task.corpus.test)} test",
    }


def describe_model(task: Task, *, parameters: int, sampler: MicrobatchSampler) -> dict[str, str]:
    """Return lines about model and batches of a run, each under its title."""
    return {
        "model": f"{parameters:,} parameters, vocabulary {len(task.vocabs.src)} to "
        f"{len(task.vocabs.tgt)}",
        "batches": f"{len(sampler)} an epoch, {sampler.describe()}",
    }
