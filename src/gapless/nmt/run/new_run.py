"""Begin a run: choose the settings that its user left open, take over weights of another, make its folder."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gapless.device.find import find_device
from gapless.errors import RunFolderError, RunLockedError, UserError
from gapless.nmt.data.sampler import weighted
from gapless.nmt.run.initial_weights import InitialWeights, read_initial_weights
from gapless.nmt.run.out_of_memory import OF_MODELS, naming_phase
from gapless.nmt.run.stopping import WallClock
from gapless.nmt.run.task import Task, make_vocabs, prepare, read_corpus
from gapless.nmt.run.training_run import TrainingRun, assemble, device_of
from gapless.nmt.run_folder.checkpoints import set_weights
from gapless.nmt.run_folder.disk_space import check_disk_space
from gapless.nmt.run_folder.folder import (
    begun_files,
    check_unused,
    choose_run_dir,
    files_of_run,
    write_files,
)
from gapless.nmt.run_folder.tracker import check_tracker
from gapless.nmt.settings.config import DEMO, make_config
from gapless.nmt.settings.defaults import (
    Choice,
    Facts,
    TextFacts,
    choose,
    choose_update,
    choose_vocabulary,
    chosen_settings,
)
from gapless.nmt.settings.effective_settings import grown_update, resolve
from gapless.nmt.settings.score_tokenizer import choose_score_tokenizer
from gapless.ranks import SingleRank, on_first_rank


if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gapless.checkpoint.lock import RunLock
    from gapless.device.base import Device
    from gapless.nmt.data.vocab import Vocabs
    from gapless.nmt.settings.config import TrainConfig
    from gapless.ranks import Ranks


# --- settings ---


@dataclass(frozen=True, kw_only=True)
class ChosenRun:
    """What a new run is to be.

    Attributes:
        config: all of its settings.
        choices: those that its user left open, with reasons; none for the embedded corpus.
        task: what it learns.
        clock: runs since its text was read.
        initial: the weights that it starts with; None: random ones.
        holds_update: whether its batches were chosen for the number of ranks.
    """

    config: TrainConfig
    choices: list[Choice]
    task: Task
    clock: WallClock
    initial: InitialWeights | None = None
    holds_update: bool = False


def choose_run(given: Mapping[str, Any], *, world: int = 1) -> ChosenRun:
    """Read the text of a new run, and choose the settings that were not given.

    The embedded corpus has settings of its own.

    Args:
        given: settings of the user, by name.
        world: number of ranks that are going to train it.

    Raises:
        UserError: anything about settings, data or device that cannot be used.
    """
    clock = WallClock()
    check_tracker(given.get("track"))
    holds_update = given.get("accumulate") == "auto"
    if holds_update:
        given = {name: value for name, value in given.items() if name != "accumulate"}
    if given.get("data") is None:
        if given.get("init_from") is not None:
            raise UserError(
                f"`init_from={given['init_from']}` goes on with other text, and none is named; name it "
                "with `data`"
            )
        return _embedded(given, clock=clock, world=world, holds_update=holds_update)
    initial, choices = None, list[Choice]()
    if given.get("init_from") is not None:
        initial = read_initial_weights(Path(given["init_from"]))
        initial.check(given)
        choices = _choices_of(initial, given)
        given = {**given, **initial.settings()}
    draft = _draft(given)
    device = find_device(draft.device)
    corpus = read_corpus(draft)
    # Refuses a tokenizer that is missing before the work on the vocabulary.
    choose_score_tokenizer(draft)
    if initial is None:
        train = corpus.train
        text = TextFacts(characters=train.characters, alphabet=train.alphabet)
        choices = choose_vocabulary(text, given)
        config = _so_far(choices, given)
        vocabs = make_vocabs(corpus, config, nearest=given.get("vocab_size") is None)
        choices = _with_real_size(choices, vocabs)
    else:
        vocabs = initial.vocabs
    known = {**given, **chosen_settings(choices)}
    config = _so_far(choices, given)
    task = prepare(config, vocabs=vocabs, corpus=corpus)
    facts = _facts(task, config, device, is_trained=initial is not None)
    choices += choose(replace(facts, world=world, holds_update=holds_update), known)
    return ChosenRun(
        config=_with(choices, given),
        choices=choices,
        task=task,
        clock=clock,
        initial=initial,
        holds_update=holds_update,
    )


def _embedded(
    given: Mapping[str, Any], *, clock: WallClock, world: int, holds_update: bool
) -> ChosenRun:
    config, choices = make_config(given), list[Choice]()
    task = prepare(config)
    if holds_update:
        facts = _facts(task, config, find_device(config.device), is_trained=False)
        known = {**asdict(config), "batch_tokens": given.get("batch_tokens")}
        tokens = DEMO["batch_tokens"]
        choices = [choose_update(replace(facts, world=world), known, update_tokens=tokens)]
        config = replace(config, **chosen_settings(choices))
    return ChosenRun(
        config=config, choices=choices, task=task, clock=clock, holds_update=holds_update
    )


def _draft(given: Mapping[str, Any]) -> TrainConfig:
    """Return settings of which only those that were given count; they are checked."""
    return _so_far(choose_vocabulary(TextFacts(characters=1, alphabet=1), given), given)


def _so_far(choices: list[Choice], given: Mapping[str, Any]) -> TrainConfig:
    """Return settings of which only those that were given or chosen count; what fits them stands beside."""
    one = Facts(pairs=1, tokens=1, vocabulary=1, is_accelerator=False)
    return _with([*choose(one, {**given, **chosen_settings(choices)}), *choices], given)


def _with(choices: list[Choice], given: Mapping[str, Any]) -> TrainConfig:
    return make_config(
        chosen_settings(choices) | {name: v for name, v in given.items() if v is not None}
    )


def _choices_of(initial: InitialWeights, given: Mapping[str, Any]) -> list[Choice]:
    """Return the settings that come with the weights of another run, if any was left open."""
    settings = {
        name: value
        for name, value in initial.settings().items()
        if given.get(name) is None and value is not None
    }
    reason = f"as in {initial.path}, whose weights it starts with"
    return [Choice(settings=settings, reason=reason)] if settings else []


def _with_real_size(choices: list[Choice], vocabs: Vocabs) -> list[Choice]:
    """Return the choices with the size of the vocabulary that the text could give."""

    def real(choice: Choice) -> Choice:
        size = max(len(vocabs.src), len(vocabs.tgt))
        if choice.settings.get("vocab_size", size) == size or not vocabs.is_shared:
            return choice
        return replace(choice, settings={"vocab_size": size}, reason="all that the text can give")

    return [real(choice) for choice in choices]


def _facts(task: Task, config: TrainConfig, device: Device, *, is_trained: bool) -> Facts:
    longer = np.maximum(task.train.src_lengths, task.train.tgt_lengths)
    if (weights := config.weight_numbers()) is not None:
        longer = longer[weighted(task.counts, weights, np.random.default_rng(0))]
    return Facts(
        pairs=len(task.train),
        tokens=int(longer.sum()),
        vocabulary=len(task.vocabs.tgt),
        is_accelerator=device.is_accelerator,
        cores=torch.get_num_threads(),
        memory_bytes=device.total_memory_bytes(),
        is_trained=is_trained,
    )


# --- the run and its folder ---


@naming_phase("building the model", lower=OF_MODELS)
def new_run(
    chosen: ChosenRun, *, ranks: Ranks | None = None, device: Device | None = None
) -> TrainingRun:
    """Make a new run and its folder.

    Args:
        chosen: what it is to be; with several ranks rank 0 chose it for all.
        ranks: that train it together; None: this process alone.
        device: of this rank; None: as the settings say.

    Raises:
        UserError: anything about settings, device or run folder that cannot be used; it is raised
            before anything is written.
    """
    ranks = SingleRank() if ranks is None else ranks
    config, task, initial = chosen.config, chosen.task, chosen.initial
    device = device_of(config, device)
    effective = resolve(config, is_accelerator=device.is_accelerator, world=ranks.world)
    run = assemble(
        config,
        effective,
        device=device,
        task=task,
        run_dir=on_first_rank(ranks, lambda: _free_folder(config)),
        clock=chosen.clock,
        ranks=ranks,
    )
    if initial is not None:
        with run.loop.on_compute_stream(), run.host_waits.blocking("checkpoint"):
            set_weights(run.model, initial.weights, path=initial.path)
    run.notes += task.corpus.notes
    run.choices = list(chosen.choices)
    if not chosen.holds_update:
        run.choices += grown_update(effective)
    run_dir = on_first_rank(ranks, lambda: _make_folder(run))
    if not ranks.is_first:
        run.write_to(run_dir)
    return run


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
        # Again under the lock: two runs may have chosen this folder at once, and the second must not write here.
        check_unused(run.run_dir)
        for path in begun_files(run.run_dir):
            path.unlink(missing_ok=True)
        # The folder keeps the settings as asked, so that they serve on another device too.
        write_files(run.run_dir, files_of_run(run.config, run.task.vocabs))


@contextmanager
def _kept_locked(lock: RunLock) -> Iterator[None]:
    """Take a lock, and give it back only if the body fails."""
    lock.acquire()
    try:
        yield
    except BaseException:
        lock.release()
        raise
