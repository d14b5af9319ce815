"""Everything a training run is made of, new or resumed."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any

from gapless.device.find import find_device
from gapless.device.numerics import random_state, seed_everything, set_numerics, set_random_state
from gapless.loop.train_loop import TrainLoop
from gapless.nmt.run.build import build_step, num_workers, training_sampler
from gapless.nmt.run.checkpoints import load_state, set_weights, state_path
from gapless.nmt.run.folder import create_run, read_vocabs, write_config
from gapless.nmt.run.position import Position
from gapless.nmt.run.resolved import resolve
from gapless.nmt.run.resume import resolve_resumed, settings_to_keep
from gapless.nmt.run.task import check_pairs, prepare
from gapless.pipeline.host_waits import HostWaits


if TYPE_CHECKING:
    from pathlib import Path

    from gapless.device.base import Device
    from gapless.nmt.data.sampler import MicrobatchSampler
    from gapless.nmt.model.transformer import Transformer
    from gapless.nmt.run.config import TrainConfig
    from gapless.nmt.run.resolved import Resolved
    from gapless.nmt.run.task import Task
    from gapless.nmt.run.translation_step import TranslationStep


class WallClock:
    """Counts the seconds of a run, in all its processes.

    Attributes:
        earlier_seconds: of the processes before this one.
    """

    def __init__(self) -> None:
        self._started_at = perf_counter()
        self.earlier_seconds = 0.0

    def seconds(self) -> float:
        """Return the seconds of the run so far."""
        return self.earlier_seconds + perf_counter() - self._started_at


@dataclass(kw_only=True)
class TrainingRun:
    """A training run that is ready to start or to resume.

    Attributes:
        config: the settings as asked.
        resolved: what they mean on this device.
        device: where it runs.
        task: what it learns.
        run_dir: folder of its files.
        loop: moves its work.
        sampler: of its training batches.
        padding_share: share of positions without a token in the first epoch, 0 to 1.
        step: trains the model.
        host_waits: the door for waits between epochs.
        clock: counts its seconds.
        position: how far it is.
    """

    config: TrainConfig
    resolved: Resolved
    device: Device
    task: Task
    run_dir: Path
    loop: TrainLoop
    sampler: MicrobatchSampler
    padding_share: float
    step: TranslationStep
    host_waits: HostWaits
    clock: WallClock
    position: Position = field(default_factory=Position)

    @property
    def model(self) -> Transformer:
        """The model that is trained."""
        return self.step.model

    @property
    def workers(self) -> int:
        """Processes that make its batches."""
        return num_workers(self.config, plan=self.loop.plan, device=self.device)

    @property
    def num_parameters(self) -> int:
        """Weights of the model; shared ones count once."""
        return sum(weight.numel() for weight in self.model.parameters())

    @property
    def updates_left(self) -> int | None:
        """Updates until the run ends by its number of updates; None if it has no such end."""
        if self.config.max_steps is None:
            return None
        return self.config.max_steps - self.step.num_updates

    @property
    def is_finished(self) -> bool:
        """Whether all epochs or all updates are done."""
        left = self.updates_left
        return self.position.epoch >= self.config.epochs or (left is not None and left <= 0)

    def state(self) -> dict[str, Any]:
        """Return everything but the weights from which the run is resumed exactly.

        Call it on the compute stream.

        Sync: Does not block the host, unless gradients are scaled: see `TranslationStep.state`.
        """
        self.position.wall_seconds = self.clock.seconds()
        return {
            "step": self.step.state(host_waits=self.host_waits),
            "random": random_state(self.device),
            "position": self.position.state(),
            "layout": settings_to_keep(self.config, self.resolved),
            "pairs": self.task.fingerprint,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Take up a saved state and its weights.

        Call it on the compute stream.

        Raises:
            RunFolderError: the weights belong to another model.
        """
        set_weights(self.model, state["model"], path=state_path(self.run_dir))
        self.step.load_state(state["step"])
        self.position = Position.of_state(state["position"])
        self.clock.earlier_seconds = self.position.wall_seconds
        set_random_state(self.device, state["random"])


def new_run(config: TrainConfig) -> TrainingRun:
    """Make a new run and its folder.

    Args:
        config: of the run.

    Raises:
        UserError: anything about settings, data, device or run folder that cannot be used; it is
            raised before anything is written.
    """
    clock = WallClock()
    device = _device_of(config)
    resolved = resolve(config, is_accelerator=device.is_accelerator)
    task = prepare(config)
    return _assemble(
        config,
        resolved,
        device=device,
        task=task,
        # The folder keeps the settings as asked, so that they serve on another device too.
        run_dir=create_run(config, task.vocabs),
        clock=clock,
    )


def resumed_run(config: TrainConfig, run_dir: Path) -> TrainingRun:
    """Make a run that resumes from the last state in its folder.

    Args:
        config: of the run; the folder keeps it for the next resume.
        run_dir: folder of the run.

    Raises:
        UserError: anything about settings, data, device or run folder that cannot be used; it is
            raised before anything is written.
    """
    clock = WallClock()
    device = _device_of(config)
    vocabs = read_vocabs(run_dir, config)
    state = load_state(state_path(run_dir))
    resolved = resolve_resumed(config, state["layout"])
    task = prepare(config, vocabs=vocabs)
    check_pairs(task.fingerprint, begun=state["pairs"])
    run = _assemble(config, resolved, device=device, task=task, run_dir=run_dir, clock=clock)
    with run.loop.on_compute_stream():
        run.load_state(state)
    write_config(run_dir, config)
    return run


def _device_of(config: TrainConfig) -> Device:
    device = find_device(config.device)
    set_numerics(device, config.precision, deterministic=config.deterministic)
    return device


def _assemble(
    config: TrainConfig,
    resolved: Resolved,
    *,
    device: Device,
    task: Task,
    run_dir: Path,
    clock: WallClock,
) -> TrainingRun:
    seed_everything(config.seed)
    loop = TrainLoop(
        plan=resolved.plan,
        device=device,
        memory_budget_bytes=config.capture_memory_bytes(),
    )
    sampler = training_sampler(config, task.train, layout=resolved.layout)
    updates_per_epoch = -(-len(sampler) // config.accumulate)
    with loop.on_compute_stream():
        step = build_step(
            config,
            task.vocabs,
            compiles=resolved.compiles,
            device=device,
            total_updates=config.max_steps or config.epochs * updates_per_epoch,
        )
    return TrainingRun(
        config=config,
        resolved=resolved,
        device=device,
        task=task,
        run_dir=run_dir,
        loop=loop,
        sampler=sampler,
        padding_share=sampler.padding_share(),
        step=step,
        host_waits=HostWaits(device),
        clock=clock,
    )
