"""Everything a training run is made of, new or resumed."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gapless.checkpoint.lock import RunLock
from gapless.checkpoint.manifest import Content
from gapless.device.find import find_device
from gapless.device.numerics import random_state, seed_everything, set_numerics, set_random_state
from gapless.errors import RunFolderError, RunLockedError, UserError
from gapless.loop.train_loop import TrainLoop
from gapless.nmt.run.build import build_step, num_workers, training_sampler
from gapless.nmt.run.checkpoints import check_averaged, load_state, set_weights
from gapless.nmt.run.config_file import check_removed
from gapless.nmt.run.disk_space import check_disk_space
from gapless.nmt.run.first_rank import made_by_first
from gapless.nmt.run.first_weights import read_first_weights
from gapless.nmt.run.folder import (
    LOCK,
    begun_files,
    changed_files,
    check_unused,
    choose_run_dir,
    files_of_run,
    read_config,
    settings_file,
    write_files,
)
from gapless.nmt.run.position import Position
from gapless.nmt.run.resolved import resolve
from gapless.nmt.run.resume import (
    changed_settings,
    changed_world,
    resolve_resumed,
    settings_to_keep,
)
from gapless.nmt.run.scoring import decide_scoring, is_scored_alike
from gapless.nmt.run.task import Vocabs, check_pairs, prepare, read_corpus, read_recorded
from gapless.nmt.run.time_limit import AgreedClock, TimeLimit, WallClock
from gapless.nmt.run.trained_on import add_trained_on, begin_trained_on, notes_of_known
from gapless.nmt.run.translated_pairs import num_compared, num_translated
from gapless.nmt.run.update_size import check_shapes, grown_update
from gapless.pipeline.host_waits import HostWaits
from gapless.ranks import OneRank


if TYPE_CHECKING:
    from collections.abc import Iterator

    from gapless.device.base import Device
    from gapless.nmt.data.sampler import MicrobatchSampler
    from gapless.nmt.model.transformer import Transformer
    from gapless.nmt.run.chosen_run import ChosenRun
    from gapless.nmt.run.config import TrainConfig
    from gapless.nmt.run.defaults import Choice
    from gapless.nmt.run.first_weights import FirstWeights
    from gapless.nmt.run.resolved import Resolved
    from gapless.nmt.run.scoring import Scoring
    from gapless.nmt.run.task import Task
    from gapless.nmt.run.translation_step import TranslationStep
    from gapless.ranks import Ranks


# Parts of each full state.
_PARTS = frozenset({"model", "step", "position", "layout", "metrics", "numerics", "pairs"})


@dataclass(kw_only=True)
class TrainingRun:
    """A training run that is ready to start or to resume.

    Attributes:
        config: the settings as asked.
        resolved: what they mean on this device.
        device: where it runs.
        task: what it learns.
        scoring: how its translations are scored.
        run_dir: folder of its files.
        loop: moves its work.
        sampler: of its training batches.
        padding_share: share of positions without a token in the first epoch, 0 to 1.
        step: trains the model.
        host_waits: the door for waits between epochs.
        time_limit: says when its time is up.
        clock: counts its seconds.
        position: how far it is.
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
    resolved: Resolved
    device: Device
    task: Task
    scoring: Scoring
    run_dir: Path
    loop: TrainLoop
    sampler: MicrobatchSampler
    padding_share: float
    step: TranslationStep
    host_waits: HostWaits
    clock: WallClock | AgreedClock
    ranks: Ranks = field(default_factory=OneRank)
    position: Position = field(default_factory=Position)
    choices: list[Choice] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    covered: Content | None = None
    lock: RunLock = field(init=False)
    time_limit: TimeLimit = field(init=False)

    def __post_init__(self) -> None:
        """Name the lock of the folder, and set the limit of time."""
        self.write_to(self.run_dir)
        self.time_limit = TimeLimit(
            self.config.time_limit_seconds(),
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
            "epochs": self.position.epoch >= self.config.epochs,
            "max_steps": left is not None and left <= 0,
            "patience": self.is_out_of_patience,
            "max_time": self.time_limit.is_up,
        }
        return [name for name, ends_it in ends.items() if ends_it]

    @property
    def is_out_of_patience(self) -> bool:
        """Whether it has stopped getting better."""
        return 0 < self.config.patience <= self.position.validations_without_better

    def updates_per_epoch(self) -> int:
        """Return the updates of a whole epoch."""
        return self.sampler.num_updates

    def state(self) -> dict[str, Any]:
        """Return everything but weights and history from which the run is resumed exactly.

        Call it on the compute stream.

        Sync: Does not block the host on the device; with several ranks it blocks until all are here.
        """
        return {
            "step": self.step.state(),
            **self._random_states(),
            "layout": settings_to_keep(self.config, self.resolved),
            "pairs": self.task.fingerprint,
            "numerics": numerics_in_force(),
        }

    def note_training(self) -> None:
        """Keep what the run is trained on from now on; call it on all ranks, before the first update.

        A run that is resumed and trains nothing has not learned from its text, whatever that is.

        Sync: Blocks the host until rank 0 has written it.
        """
        sources = self.task.batched_sources
        made_by_first(self.ranks, lambda: add_trained_on(self.run_dir, sources()))

    def _random_states(self) -> dict[str, Any]:
        own = random_state(self.device)
        if self.ranks.world == 1:
            return {"random": own}
        with self.host_waits.blocking("agreement"):
            states = self.ranks.agree(own)
        return {"random": states[0], "ranks": {"world": len(states), "random": states}}

    def history(self, covered: Content) -> dict[str, Any]:
        """Return the rest of the state: how far the run is, and what its metrics file holds."""
        self.position.wall_seconds = self.clock.seconds()
        return {
            "position": self.position.state(),
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
        self.position = Position.of_state(
            state["position"], accumulate=state["layout"]["accumulate"]
        )
        self.covered = Content(**state["metrics"])
        self.clock.earlier_seconds = self.position.wall_seconds
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


def new_run(
    config: TrainConfig,
    *,
    chosen: ChosenRun | None = None,
    ranks: Ranks | None = None,
    device: Device | None = None,
) -> TrainingRun:
    """Make a new run and its folder.

    Args:
        config: of the run.
        chosen: how these settings were chosen, if they were. With several ranks they were, by rank
            0 for all.
        ranks: that train it together; None: this process alone.
        device: of this rank; None: as the settings say.

    Raises:
        UserError: anything about settings, data, device or run folder that cannot be used; it is
            raised before anything is written.
    """
    ranks = OneRank() if ranks is None else ranks
    clock = WallClock() if chosen is None else chosen.clock
    device = _device_of(config, device)
    resolved = resolve(config, is_accelerator=device.is_accelerator, world=ranks.world)
    corpus = read_corpus(config) if chosen is None else chosen.task.corpus
    scoring = decide_scoring(config)
    first = made_by_first(ranks, lambda: _first_weights(config))
    vocabs = None if first is None else first.vocabs
    task = prepare(config, corpus=corpus, vocabs=vocabs) if chosen is None else chosen.task
    run = _assemble(
        config,
        resolved,
        device=device,
        task=task,
        scoring=scoring,
        run_dir=made_by_first(ranks, lambda: _free_folder(config)),
        clock=clock,
        ranks=ranks,
    )
    if first is not None:
        with run.loop.on_compute_stream(), run.host_waits.blocking("checkpoint"):
            set_weights(run.model, first.weights, path=first.path)
    run.notes += corpus.notes
    run.choices = [] if chosen is None else list(chosen.choices)
    if chosen is None or not chosen.holds_update:
        run.choices += grown_update(resolved)
    run_dir = made_by_first(ranks, lambda: _make_folder(run))
    if not ranks.is_first:
        run.write_to(run_dir)
    return run


def _first_weights(config: TrainConfig) -> FirstWeights | None:
    if config.init_from is None:
        return None
    first = read_first_weights(Path(config.init_from))
    first.check(asdict(config))
    return first


def _free_folder(config: TrainConfig) -> Path:
    """Return the folder of a new run; if nobody named one, one that no other process takes meanwhile."""
    while True:
        try:
            return choose_run_dir(config)
        except RunLockedError:
            if config.run_dir:
                raise


def _make_folder(run: TrainingRun) -> Path:
    """Make the folder of a new run, and keep it locked; return which it is.

    Of several processes that chose the same one, each but the first takes the next, unless its user
    named the folder.
    """
    check_disk_space(run.run_dir, run.config, run.model)
    while True:
        try:
            _begin_folder(run)
        except (RunFolderError, RunLockedError):
            if run.config.run_dir:
                raise
            run.write_to(_free_folder(run.config))
        else:
            return run.run_dir


def _begin_folder(run: TrainingRun) -> None:
    run.run_dir.mkdir(parents=True, exist_ok=True)
    with _kept_locked(run.lock):
        # Of two that chose it at once, the second finds what the first has written.
        check_unused(run.run_dir)
        for path in begun_files(run.run_dir):
            path.unlink(missing_ok=True)
        # The folder keeps the settings as asked, so that they serve on another device too.
        write_files(run.run_dir, files_of_run(run.config, run.task.vocabs))
        first = run.config.init_from
        earlier = None if first is None else Path(first)
        begin_trained_on(run.run_dir, earlier=earlier)
    if earlier is not None:
        run.notes += notes_of_known(earlier, run.task.corpus)


def resumed_run(
    config: TrainConfig,
    run_dir: Path,
    *,
    ranks: Ranks | None = None,
    device: Device | None = None,
) -> TrainingRun:
    """Make a run that resumes from the newest whole state in its folder.

    Args:
        config: of the run; the folder keeps it for the next resume.
        run_dir: folder of the run.
        ranks: that train it together; None: this process alone.
        device: of this rank; None: as the settings say.

    Raises:
        UserError: anything about settings, data, device or run folder that cannot be used; it is
            raised before anything is written.
    """
    ranks = OneRank() if ranks is None else ranks
    clock = WallClock()
    device = _device_of(config, device)
    lock = RunLock(run_dir / LOCK)
    made_by_first(ranks, lock.acquire)
    try:
        run = _read_run(config, run_dir, ranks=ranks, device=device, clock=clock)
    except BaseException:
        lock.release()
        raise
    run.lock = lock
    return run


@contextmanager
def _kept_locked(lock: RunLock) -> Iterator[None]:
    """Take a lock, and give it back only if the body fails."""
    lock.acquire()
    try:
        yield
    except BaseException:
        lock.release()
        raise


@dataclass(frozen=True, kw_only=True)
class _Saved:
    """What is read of a run that is resumed.

    Attributes:
        config: its settings.
        resolved: what they mean.
        task: what it learns.
        scoring: how its translations are scored.
        state: its newest whole state.
        path: of the checkpoint that the state is in.
        begun: settings as the run had them before.
        validates_anew: whether validations have other pairs than before, or are scored otherwise.
        notes: that its user should read.
    """

    config: TrainConfig
    resolved: Resolved
    task: Task
    scoring: Scoring
    state: dict[str, Any]
    path: Path
    begun: TrainConfig
    validates_anew: bool
    notes: list[str]


def _read_run(
    config: TrainConfig, run_dir: Path, *, ranks: Ranks, device: Device, clock: WallClock
) -> TrainingRun:
    saved = made_by_first(ranks, lambda: _read_saved(config, run_dir, world=ranks.world))
    run = _assemble(
        saved.config,
        saved.resolved,
        device=device,
        task=saved.task,
        scoring=saved.scoring,
        run_dir=run_dir,
        clock=clock,
        ranks=ranks,
    )
    run.notes = saved.notes
    run.changed = changed_settings(config, saved.begun)
    with run.loop.on_compute_stream():
        run.load_state(saved.state, path=saved.path)
    if saved.validates_anew:
        run.position.forget_validations()
    made_by_first(ranks, lambda: _check_folder(run))
    return run


def _read_saved(config: TrainConfig, run_dir: Path, *, world: int) -> _Saved:
    notes: list[str] = []
    saved, state = load_state(run_dir, on_damaged=notes.append)
    _check_state(state, path=saved.path)
    begun = read_config(run_dir)
    if config.init_from != begun.init_from:
        raise UserError(
            f"`init_from` is {config.init_from}, but a resumed run goes on with its own weights; leave it "
            "out, or begin a new run"
        )
    notes += check_removed(settings_file(run_dir), advice="start a new run")
    notes += changed_files(run_dir) + changed_numerics(state["numerics"])
    notes += changed_world(state["layout"], world=world)
    # States of older runs do not say what the sides were called.
    sides = {"src": begun.src, "tgt": begun.tgt}
    resolved = resolve_resumed(config, {**sides, **state["layout"]}, world=world)
    vocabs = Vocabs.of_files(saved.files, is_shared=config.shared_vocab, where=saved.path)
    is_recorded = config.data == begun.data
    corpus = read_recorded(config, run_dir=run_dir) if is_recorded else read_corpus(config)
    notes += corpus.notes
    scoring = decide_scoring(config)
    config = replace(config, accumulate=resolved.accumulate)
    task = prepare(config, corpus=corpus, vocabs=vocabs)
    if not config.allow_changed_data:
        check_pairs(task.fingerprint, begun=state["pairs"])
    validates_anew = _validates_anew(config, task, begun=begun, pairs=state["pairs"])
    if validates_anew:
        notes.append(
            "validations have other pairs than before, or are scored otherwise: what was best so far does "
            "not count any more"
        )
    return _Saved(
        config=config,
        resolved=resolved,
        task=task,
        scoring=scoring,
        state=state,
        path=saved.path,
        begun=begun,
        validates_anew=validates_anew,
        notes=notes,
    )


def _validates_anew(
    config: TrainConfig, task: Task, *, begun: TrainConfig, pairs: dict[str, dict[str, int]]
) -> bool:
    """Return whether the scores of validations cannot be compared with those of the state."""
    now = task.fingerprint["validation"]
    return not is_scored_alike(config, begun) or now != dict(pairs.get("validation", now))


def _check_state(state: dict[str, Any], *, path: Path) -> None:
    """Refuse a whole state of another program, such as a loop of somebody's own."""
    missing = sorted(_PARTS - state.keys())
    if missing:
        raise RunFolderError(
            f"{path} is no state of gapless train: it holds no {', '.join(missing)}; a loop of your "
            "own goes on by `load_newest`"
        )


def _check_folder(run: TrainingRun) -> None:
    """Check that the folder of a resumed run has what it needs, and write its settings there."""
    if run.config.average != "auto":
        check_averaged(
            run.run_dir,
            done=run.position.epoch,
            # A run that was asked to end earlier ends where it is.
            end=max(run.position.epoch, run.last_epoch),
            average=run.config.num_averaged,
        )
    check_disk_space(run.run_dir, run.config, run.model)
    write_files(run.run_dir, files_of_run(run.config, run.task.vocabs))
    run.notes += notes_of_known(run.run_dir, run.task.corpus)


def _device_of(config: TrainConfig, device: Device | None) -> Device:
    device = find_device(config.device) if device is None else device
    set_numerics(device, config.precision, deterministic=config.deterministic)
    return device


def _assemble(
    config: TrainConfig,
    resolved: Resolved,
    *,
    device: Device,
    task: Task,
    scoring: Scoring,
    run_dir: Path,
    clock: WallClock,
    ranks: Ranks,
) -> TrainingRun:
    # All ranks begin with the same weights, and draw other numbers from then on.
    seed_everything(config.seed)
    loop = TrainLoop(
        plan=resolved.plan,
        device=device,
        memory_budget_bytes=config.capture_memory_bytes(),
        ranks=ranks,
    )
    sampler = training_sampler(
        config,
        task.train,
        layout=resolved.layout,
        one_shape=resolved.one_shape,
        rank=ranks.rank,
        world=ranks.world,
    )
    check_shapes(resolved, sampler, is_accelerator=device.is_accelerator)
    with loop.on_compute_stream():
        step = build_step(
            config,
            task.vocabs,
            compiles=resolved.compiles,
            device=device,
            total_updates=config.max_steps or config.epochs * sampler.num_updates,
            ranks=ranks,
        )
    if not ranks.is_first:
        seed_everything(_seed_of(config.seed, ranks.rank))
    return TrainingRun(
        config=config,
        resolved=resolved,
        device=device,
        task=task,
        scoring=scoring,
        run_dir=run_dir,
        loop=loop,
        sampler=sampler,
        padding_share=sampler.padding_share(),
        step=step,
        host_waits=HostWaits(device),
        clock=clock if ranks.world == 1 else AgreedClock(clock),
        ranks=ranks,
    )
