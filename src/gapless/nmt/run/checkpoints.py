"""The files of checkpoints: weights as safetensors, and the rest of a run's state."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING, Any

import safetensors.torch
import torch

from gapless.checkpoint.files import replace_file
from gapless.errors import RunFolderError


if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from torch import nn


FOLDER = "checkpoints"
FINAL = "final.safetensors"
BEST = "best.safetensors"
STATE = "state.pt"


def write_weights(weights: dict[str, torch.Tensor], path: Path) -> None:
    """Write weights that are in host memory, dense.

    Raises:
        OSError: the disk is full; the previous file is still there.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, safetensors.torch.save(weights))


def load_weights(model: nn.Module, path: Path) -> None:
    """Read the weights of a model.

    Raises:
        RunFolderError: the file is missing or broken, or belongs to another model.

    Sync: Blocks the host until the weights are copied.
    """
    set_weights(model, read_weights(path), path=path)


def set_weights(model: nn.Module, weights: dict[str, torch.Tensor], *, path: Path) -> None:
    """Copy weights into a model.

    Raises:
        RunFolderError: they belong to another model.
    """
    parameters = dict(model.named_parameters())
    fits = parameters.keys() == weights.keys() and all(
        parameters[name].shape == weight.shape for name, weight in weights.items()
    )
    if not fits:
        raise RunFolderError(f"{path} holds the weights of another model than config.yaml says")
    with torch.no_grad():
        for name, weight in weights.items():
            parameters[name].copy_(weight)


def read_weights(path: Path) -> dict[str, torch.Tensor]:
    """Return the weights in a file.

    Raises:
        RunFolderError: the file is missing or broken.
    """
    if not path.is_file():
        raise RunFolderError(f"{path} does not exist; the run has not saved it yet")
    try:
        return safetensors.torch.load(path.read_bytes())
    except safetensors.SafetensorError as error:
        raise RunFolderError(f"{path} is not a whole checkpoint: {error}") from error


def average_weights(paths: Sequence[Path]) -> dict[str, torch.Tensor]:
    """Return the mean of the weights in several files, summed in float64.

    Raises:
        RunFolderError: a file is missing or broken.
    """
    sums: dict[str, torch.Tensor] = {}
    for path in paths:
        for name, weight in read_weights(path).items():
            sums[name] = sums.get(name, torch.zeros(())) + weight.double()
    return {name: (total / len(paths)).float() for name, total in sums.items()}


def epoch_path(run_dir: Path, epoch: int) -> Path:
    """Return where the weights after an epoch, counted from 1, are kept."""
    return run_dir / FOLDER / f"epoch{epoch:04d}.safetensors"


def best_path(run_dir: Path) -> Path:
    """Return where the weights of the lowest validation loss are kept."""
    return run_dir / FOLDER / BEST


def final_path(run_dir: Path) -> Path:
    """Return where the final weights are kept."""
    return run_dir / FOLDER / FINAL


def epoch_paths(run_dir: Path) -> list[Path]:
    """Return the epoch checkpoints of a run, oldest first."""
    found = (run_dir / FOLDER).glob("epoch*.safetensors")
    return sorted((path for path in found if re.fullmatch(r"epoch\d+", path.stem)), key=_epoch_of)


def _epoch_of(path: Path) -> int:
    return int(path.stem.removeprefix("epoch"))


def drop_old_epochs(run_dir: Path, *, keep: int, state_epoch: int) -> None:
    """Remove old epoch checkpoints.

    Keeps the newest ones, from which the final model is averaged, and as many up to the saved
    state, from which a killed run is resumed.

    Args:
        run_dir: of the run.
        keep: how many epochs are averaged.
        state_epoch: epochs done in the saved state.
    """
    for path in epoch_paths(run_dir)[:-keep]:
        if not state_epoch - keep < _epoch_of(path) <= state_epoch:
            path.unlink(missing_ok=True)


def drop_later_epochs(run_dir: Path, *, epochs: int) -> None:
    """Remove the checkpoints after this number of epochs."""
    for path in epoch_paths(run_dir):
        if _epoch_of(path) > epochs:
            path.unlink(missing_ok=True)


def state_path(run_dir: Path) -> Path:
    """Return where the state of a run is kept."""
    return run_dir / FOLDER / STATE


def save_state(state: dict[str, Any], path: Path) -> None:
    """Write optimizer, random generators and position, from which a run is resumed exactly.

    Raises:
        OSError: the disk is full; the previous file is still there.

    Sync: Blocks the host until tensors on a device are copied.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    torch.save(state, buffer)
    replace_file(path, buffer.getvalue())


def load_state(path: Path) -> dict[str, Any]:
    """Read what `save_state` wrote.

    Raises:
        RunFolderError: the file is missing or broken.
    """
    if not path.is_file():
        raise RunFolderError(f"{path} does not exist; this run cannot be resumed")
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch.load raises many kinds for a broken file
        raise RunFolderError(f"{path} is not a whole checkpoint: {error}") from error
    if "pairs" not in state:
        raise RunFolderError(
            f"{path} is of an older version, whose state does not say what its batches are made of; "
            "start a new run"
        )
    return state
