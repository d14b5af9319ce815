"""The folder of a run: which it is, its settings and vocabularies, and what is damaged in it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING

from gapless.checkpoint.files import naming, replace_file
from gapless.checkpoint.lock import RunLock
from gapless.checkpoint.manifest import Content
from gapless.errors import RunFolderError, RunLockedError
from gapless.nmt.data.vocab import VOCAB_FILES, Vocabs
from gapless.nmt.run_folder.checkpoints import (
    instead_of_resuming,
    newest_meta,
    newest_with,
    read_saved,
    state_store,
    weights_in,
)
from gapless.nmt.run_folder.logs import METRICS
from gapless.nmt.settings.config import make_config
from gapless.nmt.settings.config_file import to_yaml
from gapless.report.figures import shell_name


if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from gapless.nmt.settings.config import TrainConfig


CONFIG = "config.yaml"
LOCK = "lock"


def choose_run_dir(config: TrainConfig) -> Path:
    """Return the folder of a new run, which is empty or does not exist.

    Raises:
        RunFolderError: the folder that was asked for is not empty.
        RunLockedError: another process writes to it, whatever it has written so far.
    """
    path = Path(config.run_dir) if config.run_dir else _next_free(Path("runs"))
    holder = RunLock(path / LOCK).holder()
    if holder is not None:
        raise RunLockedError(
            f"run folder {path} is being written by {holder}; choose another `run_dir`"
        )
    check_unused(path)
    return path


def check_unused(path: Path) -> None:
    """Check that a folder is empty, but for its lock, or does not exist.

    Raises:
        RunFolderError: it is not empty, or no folder, or lies in none, or is a link that leads nowhere.
    """
    if path.is_symlink() and not path.exists():
        raise RunFolderError(
            f"run folder {path} is a link that leads nowhere; remove it, or choose another `run_dir`"
        )
    there = next((part for part in (path, *path.parents) if part.exists()), path)
    if there.exists() and not there.is_dir():
        raise RunFolderError(f"{there} is no folder; choose another `run_dir`")
    # A run killed while it made its folder leaves a lock and unfinished files: the folder counts as empty.
    begun = begun_files(path)
    if not path.exists() or all(item.name == LOCK or item in begun for item in path.iterdir()):
        return
    raise RunFolderError(f"run folder {path} is not empty{_what_to_do_with(path)}")


def check_writable(path: Path) -> None:
    """Check that the folder of a new run can be made and written; nothing stays.

    Raises:
        OSError: it cannot; the error is that of the run.
    """
    made = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        path.mkdir(parents=True, exist_ok=True)
        with naming(path / LOCK), TemporaryFile(dir=path):
            pass
    finally:
        for folder in made:
            # Not empty any more if another process has begun to write there.
            with suppress(OSError):
                folder.rmdir()


def _what_to_do_with(path: Path) -> str:
    """Return what a folder that is not empty holds, as far as it matters, and what to do."""
    if not ((path / CONFIG).is_file() or newest_with(path, CONFIG) is not None):
        return ", and holds no run; choose another `run_dir`"
    if state_store(path).paths():
        return f"; choose another `run_dir`, or resume it with `resume={shell_name(path)}`"
    return (
        f", and holds a run without a state, which cannot be resumed; {instead_of_resuming(path)}"
    )


def begun_files(path: Path) -> list[Path]:
    """Return the files of a run's begin that killed processes have not written to the end."""
    names = (CONFIG, *VOCAB_FILES)
    return [found for name in names for found in path.glob(f".{name}.*.tmp") if found.is_file()]


def write_files(path: Path, files: Mapping[str, bytes]) -> None:
    """Write settings and vocabularies of a run to its folder, which is made if it is not there.

    Raises:
        OSError: the disk is full or the folder cannot be made.
    """
    path.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        replace_file(path / name, content)


def files_of_run(config: TrainConfig, vocabs: Vocabs) -> dict[str, bytes]:
    """Return settings and vocabularies of a run as its files, by name; each checkpoint keeps them."""
    # Not kept: one resume with other data would allow it for all later ones.
    kept = replace(config, allow_changed_data=False)
    return {CONFIG: to_yaml(kept).encode(), **vocabs.files()}


def _next_free(parent: Path) -> Path:
    number = 1
    while (parent / f"train{number if number > 1 else ''}").exists():
        number += 1
    return parent / f"train{number if number > 1 else ''}"


def read_config(path: Path) -> TrainConfig:
    """Return the settings of a run: those of its newest checkpoint, or of its folder.

    Args:
        path: folder of the run.

    Raises:
        RunFolderError: the folder is not a run.
    """
    return make_config({}, file=settings_file(path))


def settings_file(path: Path) -> Path:
    """Return where the settings of a run are read from: its newest checkpoint, or its folder.

    What a checkpoint keeps is verified, and is of the same moment as its state.

    Raises:
        RunFolderError: the folder is not a run.
    """
    kept = newest_with(path, CONFIG)
    if kept is not None:
        return kept / CONFIG
    if not (path / CONFIG).is_file():
        found = "does not exist" if not path.exists() else f"holds no {CONFIG}"
        raise RunFolderError(f"{path} is not a run folder: it {found}; gapless train makes one")
    return path / CONFIG


def changed_files(path: Path) -> list[str]:
    """Return a line for each file of settings and vocabularies that is not as it was saved."""
    lines = []
    for name in (CONFIG, *VOCAB_FILES):
        kept = newest_with(path, name)
        if kept is None:
            continue
        file = path / name
        if not file.is_file():
            lines.append(f"{file} is missing; the one in {kept} is used")
        elif file.read_bytes() != (kept / name).read_bytes():
            advice = "; settings are changed by flags" if name == CONFIG else ""
            lines.append(f"{file} is not what was saved with {kept.name}, which is used{advice}")
    return lines


def damaged_files(path: Path) -> list[str]:
    """Return a line for each file beside the checkpoints that is not what they say.

    Raises:
        RunFolderError: the folder is not a run.
    """
    settings_file(path)
    lines = changed_files(path)
    meta = newest_meta(path)
    if meta is not None:
        covered = Content(**meta["metrics"])
        file = path / METRICS
        data = file.read_bytes() if file.is_file() else b""
        difference = covered.difference(data[: covered.size])
        if difference is not None:
            lines.append(f"{file}: {difference}")
    return lines


def read_vocabs(path: Path, config: TrainConfig) -> Vocabs:
    """Return the vocabularies of a run: those of its newest checkpoint, or of its folder.

    Raises:
        RunFolderError: they are missing.
    """
    kept = newest_with(path, CONFIG)
    path = path if kept is None else kept
    files = {file.name: file.read_bytes() for file in path.glob("vocab*") if file.is_file()}
    return Vocabs.of_files(files, is_shared=config.shared_vocab, where=path)


def read_model(path: Path, *, advice: str) -> tuple[TrainConfig, Vocabs, dict[str, torch.Tensor]]:
    """Return the settings, vocabularies and weights that a checkpoint of a run keeps, verified.

    Those of the run's folder may be newer.

    Args:
        path: of the checkpoint.
        advice: what to do where it is missing or damaged.

    Raises:
        RunFolderError: it is missing or damaged.
    """
    saved = read_saved(path, advice=advice)
    config = make_config({}, file=path / CONFIG)
    vocabs = Vocabs.of_files(saved.files, is_shared=config.shared_vocab, where=path)
    return config, vocabs, weights_in(saved)
