"""Everything a training run is made of, new or resumed."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gapless.checkpoint.lock import RunLock
from gapless.checkpoint.manifest import Content
from gapless.device.find import find_device
from gapless.device.numerics import random_state, seed_everything, set_numerics, set_random_state
from gapless.loop.train_loop import TrainLoop
from gapless.nmt.model.decode import Decoder
from gapless.nmt.run.build import build_step, num_workers, sampler_of_task
from gapless.nmt.run.out_of_memory import naming_phase
from gapless.nmt.run.scores import num_compared, num_translated
from gapless.nmt.run.stopping import AgreedClock, TimeLimit, WallClock
from gapless.nmt.run_folder.checkpoints import set_weights
from gapless.nmt.run_folder.folder import LOCK
from gapless.nmt.run_folder.training_progress import TrainingProgress
from gapless.nmt.settings.effective_settings import check_shapes, settings_to_keep
from gapless.nmt.settings.interval import DueClock, seconds_of
from gapless.nmt.settings.score_tokenizer import choose_score_tokenizer
from gapless.pipeline.host_waits import HostWaits
from gapless.ranks import CollectiveDecision, SingleRank


if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    from gapless.device.base import Device
    from gapless.nmt.data.sampler import MicrobatchSampler
    from gapless.nmt.model.transformer import Transformer
    from gapless.nmt.run.task import Task
    from gapless.nmt.run.training_step import TranslationStep
    from gapless.nmt.settings.config import TrainConfig
    from gapless.nmt.settings.defaults import Choice
    from gapless.nmt.settings.effective_settings import EffectiveSettings
    from gapless.nmt.settings.interval import Interval
    from gapless.nmt.settings.score_tokenizer import ScoreTokenizer
    from gapless.ranks import Ranks


@dataclass(kw_only=True)
class TrainingRun:
    """A training run that is ready to start or to resume.

    Attributes:
        config: the settings as asked.
        effective: what they mean on this device.
        device: where it runs.
        task: what it learns.
        score_tokenizer: cuts its translations and references into tokens for BLEU.
        run_dir: folder of its files.
        loop: moves its work.
        sampler: of its training batches.
        padding_share: share of positions without a token in the first epoch, 0 to 1.
        step: trains the model.
        host_waits: the door for waits between epochs.
        time_limit: says when its time is up.
        clock: counts its seconds.
        progress: how far it is.
        choices: settings that its user left open when it was new.
        notes: that its user should read before it starts.
        changed: settings that a resumed run has now and had not before, with what they were.
        covered: size and hash of the metrics file when the state was saved from which it resumes;
            None if it is new.
        ranks: that train it together, of which this process is one.
        lock: of the folder, which one process writes; held from when the run was made to the end of
            its training.
    """

    config: TrainConfig
    effective: EffectiveSettings
    device: Device
    task: Task
    score_tokenizer: ScoreTokenizer
    run_dir: Path
    loop: TrainLoop
    sampler: MicrobatchSampler
    padding_share: float
    step: TranslationStep
    host_waits: HostWaits
    clock: WallClock | AgreedClock
    ranks: Ranks = field(default_factory=SingleRank)
    progress: TrainingProgress = field(default_factory=TrainingProgress)
    choices: list[Choice] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    covered: Content | None = None
    lock: RunLock = field(init=False)
    time_limit: TimeLimit = field(init=False)

    def __post_init__(self) -> None:
        """Name the lock of the folder, and set the limit of time."""
        self.write_to(self.run_dir)
        most = self.config.max_time
        self.time_limit = TimeLimit(
            None if most is None else seconds_of(most, name="max_time"),
            clock=self.clock.seconds,
            end_validations=self._end_validations(),
        )

    def write_to(self, run_dir: Path) -> None:
        """Take another folder, which is not locked yet."""
        self.run_dir, self.lock = run_dir, RunLock(run_dir / LOCK)

    def _end_validations(self) -> float:
        """Return how many validations take the time of the run's end."""
        corpus, config = self.task.corpus, self.config
        translated = max(1, num_translated(corpus.val))
        # A wider beam takes longer, but less so on a GPU.
        search = 1.5 if self.device.is_accelerator else (1 + config.beam) / 2
        compared = 3 * num_compared(corpus.val) / translated if config.average == "auto" else 0
        return 1 + compared + search * len(corpus.test) / translated

    @property
    def model(self) -> Transformer:
        """The model that is trained."""
        return self.step.model

    @cached_property
    def decoder(self) -> Decoder:
        """Translates with the model; one for all validations, which replay what it has captured."""
        return Decoder(
            self.model,
            device=self.device,
            host_waits=self.host_waits,
            precision=self.config.precision,
        )

    @property
    def workers(self) -> int:
        """Processes that make its batches."""
        return num_workers(self.config, plan=self.loop.plan, device=self.device)

    @property
    def num_parameters(self) -> int:
        """Weights of the model; shared ones count once."""
        return sum(weight.numel() for weight in self.model.parameters())

    @property
    def total_updates(self) -> int:
        """Updates of the whole run, if nothing ends it earlier."""
        updates = self.config.epochs * self.updates_per_epoch()
        return min(updates, self.config.max_steps or updates)

    @property
    def last_epoch(self) -> int:
        """The epoch in which the run ends, whole or not, if nothing ends it earlier."""
        if self.config.max_steps is None:
            return self.config.epochs
        return min(self.config.epochs, -(-self.config.max_steps // self.updates_per_epoch()))

    @property
    def updates_left(self) -> int | None:
        """Updates until the run ends by its number of updates; None if it has no such end."""
        if self.config.max_steps is None:
            return None
        return self.config.max_steps - self.step.num_updates

    @property
    def is_finished(self) -> bool:
        """Whether all epochs or all updates are done, its time is up, or it does not get better."""
        return bool(self.ended_by)

    @property
    def ended_by(self) -> list[str]:
        """The settings that end the run now, each of which has to be raised for it to go on."""
        left = self.updates_left
        ends = {
            "epochs": self.progress.epoch >= self.config.epochs,
            "max_steps": left is not None and left <= 0,
            "patience": self.is_out_of_patience,
            "max_time": self.time_limit.is_up,
        }
        return [name for name, ends_it in ends.items() if ends_it]

    @property
    def is_out_of_patience(self) -> bool:
        """Whether it has stopped getting better."""
        return 0 < self.config.patience <= self.progress.validations_without_better

    def updates_per_epoch(self) -> int:
        """Return the updates of a whole epoch."""
        return self.sampler.num_updates

    def due_clock(self, interval: Interval) -> DueClock:
        """Return what says when the next save or validation is due: by a time that all ranks agree on.

        Args:
            interval: between two.
        """
        now = None if self.ranks.world == 1 else self.clock.seconds
        return DueClock(interval, updates=self.step.num_updates, now=now)

    def naming_phase(self, phase: str, *, lower: str) -> AbstractContextManager[None]:
        """Let an error for want of memory say what the run was doing, and for which batch.

        Args:
            phase: of the run.
            lower: settings that take less memory when they are lower.
        """

        def graph_bytes() -> int:
            report = self.loop.capture_report
            return 0 if report is None else report.captured_bytes

        return naming_phase(phase, lower=lower, shape=self.step.shape, graph_bytes=graph_bytes)

    def state(self) -> dict[str, Any]:
        """Return everything but weights and history from which the run is resumed exactly.

        Call it on the compute stream.

        Sync: Does not block the host on the device; with several ranks it blocks until all are here.
        """
        return {
            "step": self.step.state(),
            **self._random_states(),
            "layout": settings_to_keep(self.config, self.effective),
            "pairs": self.task.fingerprint,
            "numerics": numerics_in_force(),
        }

    def _random_states(self) -> dict[str, Any]:
        own = random_state(self.device)
        if self.ranks.world == 1:
            return {"random": own}
        states = CollectiveDecision(self.ranks, self.host_waits.blocking).values(own)
        return {"random": states[0], "ranks": {"world": len(states), "random": states}}

    def history(self, covered: Content) -> dict[str, Any]:
        """Return the rest of the state: how far the run is, and what its metrics file holds."""
        self.progress.wall_seconds = self.clock.seconds()
        return {
            "position": self.progress.state(),
            "metrics": asdict(covered),
        }

    def load_state(self, state: dict[str, Any], *, path: Path) -> None:
        """Take up a saved state and its weights.

        Call it on the compute stream.

        Args:
            state: that was saved.
            path: of its checkpoint.

        Raises:
            RunFolderError: the weights belong to another model.
        """
        set_weights(self.model, state["model"], path=path)
        self.step.load_state(state["step"])
        self.progress = TrainingProgress.of_state(state["position"])
        self.covered = Content(**state["metrics"])
        self.clock.earlier_seconds = self.progress.wall_seconds
        self._load_random_state(state)

    def _load_random_state(self, state: dict[str, Any]) -> None:
        """Go on with the random numbers of this rank; with new ones where it had none."""
        rank = self.ranks.rank
        begun = state.get("ranks", {"world": 1, "random": [state["random"]]})
        if rank < begun["world"]:
            set_random_state(self.device, begun["random"][rank])
        else:
            seed_everything(_seed_of(self.config.seed, rank, updates=self.step.num_updates))


def _seed_of(seed: int, rank: int, *, updates: int = 0) -> int:
    """Return where a rank's random numbers begin: those of rank 0 are those of a rank alone."""
    if rank == 0:
        return seed
    drawn = np.random.SeedSequence((seed, rank, updates)).generate_state(1, np.uint64)
    return int(drawn[0]) >> 1


def numerics_in_force() -> dict[str, Any]:
    """Return what decides how sums are rounded, besides the settings."""
    return {"torch": str(torch.__version__), "threads": torch.get_num_threads()}


def changed_numerics(begun: dict[str, Any]) -> list[str]:
    """Return a line if a resumed run may round other than it did.

    Args:
        begun: what `numerics_in_force` returned for the run so far.
    """
    now = numerics_in_force()
    changed = [
        f"{name} {begun[name]} is {now[name]} now" for name in now if now[name] != begun[name]
    ]
    return (
        [f"{', '.join(changed)}: bits may differ from those of an uninterrupted run"]
        if changed
        else []
    )


def device_of(config: TrainConfig, device: Device | None) -> Device:
    """Return the device of a run, with its precision set: the one that is given, or as the settings say."""
    device = find_device(config.device) if device is None else device
    set_numerics(device, config.precision, deterministic=config.deterministic)
    return device


def assemble(
    config: TrainConfig,
    effective: EffectiveSettings,
    *,
    device: Device,
    task: Task,
    run_dir: Path,
    clock: WallClock,
    ranks: Ranks,
) -> TrainingRun:
    """Return a run that is made of these parts, with random weights.

    Args:
        config: of the run.
        effective: what its settings mean.
        device: where it runs.
        task: what it learns.
        run_dir: folder of its files.
        clock: counts its seconds.
        ranks: that train it together.
    """
    # All ranks begin with the same weights, and draw other numbers from then on.
    seed_everything(config.seed)
    loop = TrainLoop(
        plan=effective.plan,
        device=device,
        memory_budget_bytes=config.capture_memory_bytes(),
        ranks=ranks,
    )
    sampler = sampler_of_task(config, task, effective, rank=ranks.rank, world=ranks.world)
    check_shapes(effective, sampler, is_accelerator=device.is_accelerator)
    with loop.on_compute_stream():
        step = build_step(
            config,
            task.vocabs,
            compiles=effective.compiles,
            device=device,
            total_updates=config.max_steps or config.epochs * sampler.num_updates,
            ranks=ranks,
            lengths_vary=effective.layout != "packed",
        )
    if not ranks.is_first:
        seed_everything(_seed_of(config.seed, ranks.rank))
    return TrainingRun(
        config=config,
        effective=effective,
        device=device,
        task=task,
        score_tokenizer=choose_score_tokenizer(config),
        run_dir=run_dir,
        loop=loop,
        sampler=sampler,
        padding_share=sampler.padding_share(),
        step=step,
        host_waits=HostWaits(device),
        clock=clock if ranks.world == 1 else AgreedClock(clock),
        ranks=ranks,
    )
