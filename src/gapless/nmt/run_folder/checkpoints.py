"""The checkpoints of a run: full states, the best one, the weights of epochs and of the final model.

Each is a folder with a manifest (`gapless.checkpoint.store`), and holds the settings and vocabularies
of the run as well, so that what is read together was saved together.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from gapless.checkpoint.manifest import read_manifest, read_verified
from gapless.checkpoint.packed_state import unpack
from gapless.checkpoint.store import (
    META,
    CheckpointStore,
    list_checkpoint,
    read_checkpoint,
    remove_checkpoint,
)
from gapless.errors import CheckpointError, RunFolderError
from gapless.report.figures import counted, shell_name


if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from torch import nn

    from gapless.checkpoint.store import Checkpoint, Listed


FOLDER = "checkpoints"
FINAL = "final"
BEST = "best"

_EPOCH = re.compile(r"epoch-(\d{4,})")


# --- weights ---


def read_weights(path: Path, *, advice: str | None = None) -> dict[str, torch.Tensor]:
    """Return the weights in a checkpoint, verified.

    Args:
        path: folder of the checkpoint.
        advice: what to do where it is missing or damaged.

    Raises:
        RunFolderError: it is missing or damaged.
    """
    return weights_in(read_saved(path, advice=advice))


def weights_in(found: Checkpoint) -> dict[str, torch.Tensor]:
    """Return the weights of a checkpoint, which may be a full state."""
    if not found.meta:
        return found.tensors
    model: dict[str, torch.Tensor] = unpack(found.tensors, found.meta)["model"]
    return model


def checkpoint_path(run_dir: Path, name: str) -> Path:
    """Return the folder of a checkpoint of a run.

    Args:
        run_dir: of the run.
        name: of the checkpoint, or its path, as a shell completes it.

    Raises:
        RunFolderError: the path is not one of this run's checkpoints.
    """
    folder = run_dir / FOLDER
    given = Path(name)
    if len(given.parts) == 1:
        return folder / given
    if given.resolve().parent != folder.resolve():
        raise RunFolderError(
            f"`checkpoint={name}` is not in {folder}, expected the name of a checkpoint there, such as {BEST}"
        )
    return folder / given.name


def read_saved(path: Path, *, advice: str | None = None) -> Checkpoint:
    """Return a checkpoint of a run, verified.

    Args:
        path: folder of the checkpoint.
        advice: what to do where it is missing or damaged.

    Raises:
        RunFolderError: it is missing or damaged.
    """
    then = "" if advice is None else f"; {advice}"
    if not path.exists():
        run_dir = path.parents[1]
        others = [best_path(run_dir), final_path(run_dir), *epoch_paths(run_dir)]
        names = [other.name for other in others if other.exists()]
        if not names:
            raise _no_weights(run_dir)
        raise RunFolderError(f"{path} does not exist; the run has {', '.join(names)}{then}")
    try:
        return read_checkpoint(path)
    except CheckpointError as error:
        raise RunFolderError(f"{error}, so it is not a whole checkpoint{then}") from error


def _no_weights(run_dir: Path) -> RunFolderError:
    go_on = "start it anew"
    if state_store(run_dir).paths():
        go_on = f"go on with gapless train `resume={shell_name(run_dir)}`"
    return RunFolderError(
        f"{run_dir} has no weights to translate with yet: it was stopped before its first validation, "
        f"or still runs; wait for it, or {go_on}"
    )


def set_weights(model: nn.Module, weights: Mapping[str, torch.Tensor], *, path: Path) -> None:
    """Copy weights into a model.

    Raises:
        RunFolderError: they belong to another model.
    """
    parameters = dict(model.named_parameters())
    differing = [
        f"{name} is {_shape_of(weights.get(name))} there and {_shape_of(parameters.get(name))} here"
        for name in [*parameters, *(name for name in weights if name not in parameters)]
        if name not in weights
        or name not in parameters
        or parameters[name].shape != weights[name].shape
    ]
    if differing:
        raise RunFolderError(
            f"{path} holds the weights of another model: {differing[0]}; leave out what changes the "
            "model, or start a new run"
        )
    with torch.no_grad():
        for name, weight in weights.items():
            parameters[name].copy_(weight)


def _shape_of(weight: torch.Tensor | None) -> str:
    return "missing" if weight is None else " x ".join(map(str, weight.shape))


def average_weights(
    paths: Sequence[Path], *, advice: str | None = None
) -> dict[str, torch.Tensor]:
    """Return the mean of the weights in several checkpoints, summed in float64.

    Args:
        paths: folders of the checkpoints.
        advice: what to do where one is damaged.

    Raises:
        RunFolderError: one is missing or damaged; the message names it.
    """
    sums: dict[str, torch.Tensor] = {}
    for path in paths:
        weights = read_weights(path, advice=advice)
        for name, weight in weights.items():
            sums[name] = sums.get(name, torch.zeros(())) + weight.double()
    return {name: (total / len(paths)).float() for name, total in sums.items()}


# --- where they are ---


def epoch_path(run_dir: Path, epoch: int) -> Path:
    """Return where the weights after an epoch, counted from 1, are kept."""
    return run_dir / FOLDER / f"epoch-{epoch:04d}"


def best_path(run_dir: Path) -> Path:
    """Return where the state of the best validation is kept."""
    return run_dir / FOLDER / BEST


def final_path(run_dir: Path) -> Path:
    """Return where the final weights are kept."""
    return run_dir / FOLDER / FINAL


def epoch_paths(run_dir: Path) -> list[Path]:
    """Return the checkpoints of a run's epochs, oldest first."""
    found = (run_dir / FOLDER).glob("epoch-*")
    return sorted((path for path in found if _EPOCH.fullmatch(path.name)), key=_epoch_of)


def averaged_paths(run_dir: Path, *, epochs: int, average: int) -> list[Path]:
    """Return the checkpoints whose mean is the final model: those of the newest epochs, oldest first.

    Args:
        run_dir: of the run.
        epochs: done, or begun where the run ends inside one.
        average: how many epochs are averaged; fewer if the run has fewer.
    """
    first = max(1, epochs - average + 1)
    return [epoch_path(run_dir, epoch) for epoch in range(first, epochs + 1)]


def check_averaged(run_dir: Path, *, done: int, end: int, average: int) -> None:
    """Check that the epochs done that the final model is the mean of are there, whole.

    Args:
        run_dir: of the run.
        done: epochs done.
        end: the epoch in which the run is going to end.
        average: how many epochs are averaged.

    Raises:
        RunFolderError: one is missing or damaged; the message names it.
    """
    for path in averaged_paths(run_dir, epochs=end, average=average):
        problem = list_checkpoint(path).problem if _epoch_of(path) <= done else None
        if problem is not None:
            raise _not_averaged(path, problem, average=average)


def _not_averaged(path: Path, problem: str, *, average: int) -> RunFolderError:
    # To advise a lower `average` would be wrong: every mean needs the newest epoch.
    made, advice = "is that of the newest epoch", "use `average=auto`"
    if average > 1:
        made, advice = f"is the mean of the newest {average} epochs", "lower `average`"
    return RunFolderError(
        f"{path}: {problem}; the final model {made}, and cannot be made without it; {advice}"
    )


def _epoch_of(path: Path) -> int:
    return int(path.name.removeprefix("epoch-"))


def drop_old_epochs(run_dir: Path, *, keep: int, state_epochs: Collection[int]) -> None:
    """Remove old checkpoints of epochs.

    Keeps the newest ones, from which the final model is averaged, and as many up to each saved
    state, from which a killed run is resumed.

    Args:
        run_dir: of the run.
        keep: how many epochs are averaged.
        state_epochs: epochs done in each saved state.
    """
    paths = epoch_paths(run_dir)
    kept = set(paths[-keep:])
    for done in state_epochs:
        kept.update([path for path in paths if _epoch_of(path) <= done][-keep:])
    for path in paths:
        if path not in kept:
            remove_checkpoint(path)


def drop_later(run_dir: Path, *, updates: int, epochs: int, is_finished: bool) -> None:
    """Remove the checkpoints of what comes after a state that a run goes back to.

    Args:
        run_dir: of the run.
        updates: done in the state; a best state after them is of a future that is done again.
        epochs: done in the state.
        is_finished: whether the run is; the final model of one that goes on is out of date.
    """
    for path in epoch_paths(run_dir):
        if _epoch_of(path) > epochs:
            remove_checkpoint(path)
    if step_of(best_path(run_dir)) > updates:
        remove_checkpoint(best_path(run_dir))
    if not is_finished:
        remove_checkpoint(final_path(run_dir))


def step_of(path: Path) -> int:
    """Return the updates done in a checkpoint; 0 if it does not say, for it is damaged or missing."""
    try:
        return read_manifest(path).step
    except CheckpointError:
        return 0


def newest_epochs(run_dir: Path, count: int, *, every_epoch: bool = True) -> list[Path]:
    """Return the checkpoints of a run's newest epochs, oldest first, also those that are lost.

    Args:
        run_dir: of the run.
        count: how many.
        every_epoch: whether the run saves the weights of each epoch. Where it does not, those that
            are lost cannot be told from those that were not saved.

    Raises:
        RunFolderError: the run keeps fewer.
    """
    found = epoch_paths(run_dir)
    if not every_epoch and len(found) >= count:
        return found[-count:]
    done = max([*map(_epoch_of, found), *state_epochs(run_dir).values()], default=0)
    paths = averaged_paths(run_dir, epochs=done, average=count)
    are_enough = len(paths) == count
    if are_enough and paths[0].exists():
        return paths
    lower = f"lower it to {len(found)}" if found else "leave it out"
    raise RunFolderError(
        f"{run_dir} keeps {counted(len(found), 'epoch checkpoint')} of {counted(done, 'epoch')}, but "
        f"`average={count}` asks for {count}{f', from {paths[0].name} on' if are_enough else ''}; {lower}"
    )


# --- full states ---


def state_store(run_dir: Path, *, keep: int = 3) -> CheckpointStore:
    """Return the store of a run's full states.

    Raises:
        RunFolderError: its folder is a link that leads nowhere, or to an empty folder, as that of a
            disk that is not mounted.
    """
    folder = run_dir / FOLDER
    found = _why_no_folder(folder) if folder.is_symlink() else None
    if found is not None:
        raise RunFolderError(
            f"{folder} is a link to {folder.readlink()}, which {found}; bring it back, such as "
            "by mounting its disk, or remove the link to begin anew"
        )
    return CheckpointStore(run_dir / FOLDER, keep=keep, goes_back=True)


def _why_no_folder(folder: Path) -> str | None:
    if not folder.exists():
        return "is not there"
    # Nobody links to a folder before there are checkpoints in it: a run begins in an empty folder.
    return "is empty" if folder.is_dir() and not any(folder.iterdir()) else None


def load_state(
    run_dir: Path, *, on_damaged: Callable[[str], object] | None = None
) -> tuple[Checkpoint, dict[str, Any]]:
    """Return the newest whole state of a run, verified: the checkpoint, and the state in it.

    Args:
        run_dir: of the run.
        on_damaged: is called with a line for each newer one that is damaged.

    Raises:
        RunFolderError: there is no whole one.
    """
    try:
        found = state_store(run_dir).load_newest(on_damaged=on_damaged)
    except CheckpointError as error:
        raise RunFolderError(
            f"{error}; this run cannot be resumed; {instead_of_resuming(run_dir)}"
        ) from error
    if found is not None:
        return found, unpack(found.tensors, found.meta)
    raise RunFolderError(
        f"{run_dir / FOLDER} holds no state, so this run cannot be resumed: it was stopped before "
        f"it had saved one, or its states were removed; {instead_of_resuming(run_dir)}"
    )


def trained_path(run_dir: Path) -> Path:
    """Return the checkpoint of a run's trained model: the final one, or else the best so far."""
    final, best = final_path(run_dir), best_path(run_dir)
    return final if final.exists() or not best.exists() else best


def instead_of_resuming(run_dir: Path) -> str:
    """Return what can be done with a run that has no whole state."""
    if not trained_path(run_dir).exists():
        return "start it anew in another `run_dir`"
    return (
        f"begin another run with its weights by `init_from={shell_name(run_dir)}`, or start it anew in "
        "another `run_dir`"
    )


# --- all of them ---


def all_paths(run_dir: Path) -> list[Path]:
    """Return all checkpoints of a run, those that say most about it last: the newest full state."""
    states = state_store(run_dir).paths()
    others = [path for path in (best_path(run_dir), final_path(run_dir)) if path.exists()]
    return [*epoch_paths(run_dir), *others, *states]


def list_all(run_dir: Path) -> list[Listed]:
    """Return what is to be said of all checkpoints of a run, each verified."""
    listed = [list_checkpoint(path) for path in all_paths(run_dir)]
    # A run that trains meanwhile may have removed a checkpoint after it was listed.
    return [item for item in listed if item.path.exists()]


def newest_with(run_dir: Path, name: str) -> Path | None:
    """Return the newest checkpoint that keeps a file of this name, whole; None if none does.

    A file such as the settings is verified; the tensors beside it are not.
    """
    for path in reversed(all_paths(run_dir)):
        try:
            files = read_manifest(path).files
            if name in files:
                read_verified(path, name, files[name])
                return path
        except CheckpointError:
            continue
    return None


def state_epochs(run_dir: Path) -> dict[int, int]:
    """Return the epochs done in each full state of a run, by its updates; damaged ones are left out."""
    return {step: meta["position"]["epoch"] for step, meta in _metas(run_dir)}


def newest_meta(run_dir: Path) -> dict[str, Any] | None:
    """Return the plain values of the newest full state that is whole; None if there is none."""
    return next((meta for _, meta in reversed(_metas(run_dir))), None)


def _metas(run_dir: Path) -> list[tuple[int, dict[str, Any]]]:
    """Return the updates and plain values of each full state, oldest first, verified."""
    found = []
    for path in state_store(run_dir).paths():
        try:
            manifest = read_manifest(path)
            data = read_verified(path, META, manifest.files[META])
        except (CheckpointError, KeyError):
            continue
        meta = json.loads(data)
        if meta.keys() >= {"position", "metrics", "layout", "pairs"}:
            found.append((manifest.step, meta))
    return found
