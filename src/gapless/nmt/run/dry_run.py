"""What a run is going to take, measured on a few of its updates and without its folder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gapless.nmt.data.sampler import PairBatches, make_loader
from gapless.nmt.run.build import sampler_of_task
from gapless.nmt.run.stopping import WallClock
from gapless.nmt.run.training_run import assemble, device_of
from gapless.nmt.run_folder.disk_space import check_disk_space
from gapless.nmt.run_folder.folder import check_writable, choose_run_dir
from gapless.nmt.settings.effective_settings import resolve
from gapless.ranks import SingleRank
from gapless.report.figures import megabytes, time_left


if TYPE_CHECKING:
    from gapless.nmt.run.task import Task
    from gapless.nmt.run.training_run import TrainingRun
    from gapless.nmt.settings.config import TrainConfig


# Updates before those that are measured, which compile and capture; and those that are.
_NUM_WARM, _NUM_MEASURED = 3, 10


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What training takes.

    Attributes:
        parameters: weights of the model.
        updates: of the run, at most.
        measured: updates that the rest is measured on.
        update_seconds: time of one, on average.
        memory_bytes: most memory in use; on a CPU, that of the process.
        max_time: that the run may take; None: it has no limit.
        world: number of ranks.
        accumulate: batches of each rank in an update.
        gradient_bytes: that the ranks sum in an update.
    """

    parameters: int
    updates: int
    measured: int
    update_seconds: float
    memory_bytes: int
    max_time: str | None
    world: int = 1
    accumulate: int = 1
    gradient_bytes: int = 0

    @property
    def lines(self) -> list[str]:
        """The figures, for people."""
        time = time_left(self.updates * self.update_seconds)
        limit = f", {self.max_time} at most" if self.max_time else ""
        return [
            f"model: {self.parameters:,} parameters",
            f"time: about {time}{limit}, for up to {self.updates:,} updates of "
            f"{self.update_seconds * 1000:.1f} ms, measured on {self.measured}; validations and the "
            "scores of the final model take longer",
            f"memory: {megabytes(self.memory_bytes)}, measured",
            *([self._of_ranks] if self.world > 1 else []),
        ]

    @property
    def _of_ranks(self) -> str:
        gradients = megabytes(self.gradient_bytes)
        return (
            f"ranks: {self.world}, each with the whole model and as much memory, and {gradients} for "
            f"sums; they share an update of {self.world} x {self.accumulate} batches, and sum "
            f"{gradients} of gradients in each; the time above is one rank's without these sums"
        )


def estimate_run(config: TrainConfig, task: Task, *, world: int = 1) -> Estimate:
    """Measure a few updates of a new run on this process alone; nothing that is written stays.

    Args:
        config: of the run.
        task: what it learns.
        world: number of ranks that are to train it.

    Raises:
        UserError: the device or the run folder cannot be used, or packing was asked for without a
            budget of tokens.
        OSError: the run folder cannot be made or written.

    Sync: Blocks the host until the updates are done.
    """
    run_dir = choose_run_dir(config)
    device = device_of(config, None)
    effective = resolve(config, is_accelerator=device.is_accelerator)
    run = assemble(
        config,
        effective,
        device=device,
        task=task,
        run_dir=run_dir,
        clock=WallClock(),
        ranks=SingleRank(),
    )
    with run.loop:
        check_disk_space(run_dir, config, run.model)
        check_writable(run_dir)
        updates = _num_updates(run, world=world)
        run.model.train()
        if run.loop.captures_ahead:
            pairs = PairBatches(task.train)
            run.step.capture_ahead(run.loop, [pairs[one] for one in run.sampler.one_of_each()])
        _train(run, epoch=0, updates=_NUM_WARM)
        seconds, measured = _train(run, epoch=1, updates=_NUM_MEASURED)
        return Estimate(
            parameters=run.num_parameters,
            updates=updates,
            measured=measured,
            update_seconds=seconds / measured,
            memory_bytes=device.peak_memory_bytes(),
            max_time=config.max_time,
            world=world,
            accumulate=effective.accumulate,
            gradient_bytes=sum(one.nbytes for one in run.model.parameters()),
        )


def _num_updates(run: TrainingRun, *, world: int) -> int:
    """Return the updates of a run that so many ranks are to train."""
    config, task = run.config, run.task
    if world == 1:
        return run.total_updates
    effective = resolve(config, is_accelerator=run.device.is_accelerator, world=world)
    sampler = sampler_of_task(config, task, effective, world=world)
    updates = config.epochs * sampler.num_updates
    return min(updates, config.max_steps or updates)


def _train(run: TrainingRun, *, epoch: int, updates: int) -> tuple[float, int]:
    """Train on the first updates of an epoch; return their seconds and their number."""
    run.sampler.set_epoch(epoch, max_updates=updates)
    before = run.step.num_updates
    record = run.loop.run_epoch(make_loader(run.task.train, run.sampler, workers=0), run.step)
    return record.wall_ms / 1000.0, run.step.num_updates - before
