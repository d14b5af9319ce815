"""Resume a run: whether a folder holds one, and the newest whole state that it goes on from."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gapless.checkpoint.lock import RunLock
from gapless.errors import RunFolderError, UserError
from gapless.nmt.data.vocab import VOCAB_FILES, Vocabs
from gapless.nmt.run.out_of_memory import OF_MODELS, naming_phase
from gapless.nmt.run.stopping import WallClock
from gapless.nmt.run.task import check_pairs, prepare, read_corpus, read_recorded
from gapless.nmt.run.training_run import TrainingRun, assemble, changed_numerics, device_of
from gapless.nmt.run_folder.checkpoints import (
    FOLDER,
    best_path,
    check_averaged,
    final_path,
    load_state,
    newest_with,
    state_store,
)
from gapless.nmt.run_folder.disk_space import check_disk_space
from gapless.nmt.run_folder.folder import (
    CONFIG,
    LOCK,
    changed_files,
    files_of_run,
    read_config,
    write_files,
)
from gapless.nmt.run_folder.logs import ERRORS, METRICS, SUMMARY
from gapless.nmt.settings.effective_settings import (
    changed_settings,
    changed_world,
    resolve_resumed,
)
from gapless.nmt.settings.score_tokenizer import has_same_score_tokenizer
from gapless.ranks import SingleRank, on_first_rank


if TYPE_CHECKING:
    from pathlib import Path

    from gapless.device.base import Device
    from gapless.nmt.run.task import Task
    from gapless.nmt.settings.config import TrainConfig
    from gapless.nmt.settings.effective_settings import EffectiveSettings
    from gapless.ranks import Ranks


def is_to_resume(run_dir: Path) -> bool:
    """Return whether the run in a folder is gone on with; otherwise it begins there.

    A run that was killed before it had saved a state begins anew: what it had written is removed.
    Nothing else ever is. A folder that holds no run is left to the new run, which wants it empty.

    Args:
        run_dir: folder of the run, which may not be there.

    Raises:
        RunLockedError: another process writes to it.
        RunFolderError: its checkpoints are a link that leads nowhere, or to an empty folder.
    """
    if not (run_dir / CONFIG).is_file():
        # Settings that were deleted from the folder are also in each state.
        return newest_with(run_dir, CONFIG) is not None
    if _has_results(run_dir):
        return True
    with RunLock(run_dir / LOCK):
        # Asked again under the lock: a process that has just ended may have saved a checkpoint meanwhile.
        if _has_results(run_dir):
            return True
        _remove_beginning(run_dir)
    return False


def _has_results(run_dir: Path) -> bool:
    kept = (best_path(run_dir), final_path(run_dir), run_dir / SUMMARY)
    return bool(state_store(run_dir).paths()) or any(path.exists() for path in kept)


def _remove_beginning(run_dir: Path) -> None:
    for name in (FOLDER, "tensorboard"):
        shutil.rmtree(run_dir / name, ignore_errors=True)
    # The settings last: killed in between, a folder without them is no run, and the rest would stay.
    for name in (METRICS, ERRORS, *VOCAB_FILES, CONFIG):
        (run_dir / name).unlink(missing_ok=True)


# --- the run as it was saved ---


# Parts of each full state.
_PARTS = frozenset({"model", "step", "position", "layout", "metrics", "numerics", "pairs"})


@naming_phase("building the model", lower=OF_MODELS)
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
    ranks = SingleRank() if ranks is None else ranks
    clock = WallClock()
    device = device_of(config, device)
    lock = RunLock(run_dir / LOCK)
    on_first_rank(ranks, lock.acquire)
    try:
        run = _read_run(config, run_dir, ranks=ranks, device=device, clock=clock)
    except BaseException:
        lock.release()
        raise
    run.lock = lock
    return run


@dataclass(frozen=True, kw_only=True)
class _Saved:
    """What is read of a run that is resumed.

    Attributes:
        config: its settings.
        effective: what they mean.
        task: what it learns.
        state: its newest whole state.
        path: of the checkpoint that the state is in.
        begun: settings as the run had them before.
        validates_anew: whether validations have other pairs than before, or are scored otherwise.
        notes: that its user should read.
    """

    config: TrainConfig
    effective: EffectiveSettings
    task: Task
    state: dict[str, Any]
    path: Path
    begun: TrainConfig
    validates_anew: bool
    notes: list[str]


def _read_run(
    config: TrainConfig, run_dir: Path, *, ranks: Ranks, device: Device, clock: WallClock
) -> TrainingRun:
    saved = on_first_rank(ranks, lambda: _read_saved(config, run_dir, world=ranks.world))
    run = assemble(
        saved.config,
        saved.effective,
        device=device,
        task=saved.task,
        run_dir=run_dir,
        clock=clock,
        ranks=ranks,
    )
    run.notes = saved.notes
    run.changed = changed_settings(config, saved.begun)
    with run.loop.on_compute_stream():
        run.load_state(saved.state, path=saved.path)
    if saved.validates_anew:
        run.progress.forget_validations()
    on_first_rank(ranks, lambda: _check_folder(run))
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
    notes += changed_files(run_dir) + changed_numerics(state["numerics"])
    notes += changed_world(state["layout"], world=world)
    effective = resolve_resumed(config, state["layout"], world=world)
    vocabs = Vocabs.of_files(saved.files, is_shared=config.shared_vocab, where=saved.path)
    is_recorded = config.data == begun.data
    corpus = read_recorded(config, run_dir=run_dir) if is_recorded else read_corpus(config)
    config = replace(config, accumulate=effective.accumulate)
    task = prepare(config, corpus=corpus, vocabs=vocabs)
    notes += task.corpus.notes
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
        effective=effective,
        task=task,
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
    return not has_same_score_tokenizer(config, begun) or now != dict(pairs["validation"])


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
            done=run.progress.epoch,
            # With fewer epochs than are done, the run ends where it is.
            end=max(run.progress.epoch, run.last_epoch),
            average=run.config.num_averaged,
        )
    check_disk_space(run.run_dir, run.config, run.model)
    write_files(run.run_dir, files_of_run(run.config, run.task.vocabs))
