"""Whether the disk has room: for the checkpoints of a run, and for each file while it is written."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from gapless.errors import RunFolderError


if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch import nn

    from gapless.nmt.settings.config import TrainConfig


# The weights and two moments of Adam.
_STATE_COPIES = 3


def check_disk_space(run_dir: Path, config: TrainConfig, model: nn.Module) -> None:
    """Check that the checkpoints of a run find room on the disk.

    States: those that are kept, the best one, and one that is being written. Weights: of the epochs
    that are averaged, up to the oldest state that is kept, and the final ones.

    Args:
        run_dir: of the run; what it holds already counts as room.
        config: of the run.
        model: that is saved.

    Raises:
        RunFolderError: they do not.
    """
    weight_bytes = sum(weight.numel() * weight.itemsize for weight in model.parameters())
    states, weights = config.keep + 2, 2 * config.num_averaged + 1
    needed = weight_bytes * (_STATE_COPIES * states + weights)
    used = sum(path.lstat().st_size for path in run_dir.glob("checkpoints/*/*"))
    # The folder of a new run is not there yet.
    there = next(path for path in (run_dir, *run_dir.absolute().parents) if path.exists())
    disk = shutil.disk_usage(there)
    free = disk.free
    # Some file systems, such as ramfs, report size 0: every run would be refused there.
    if disk.total and free + used < needed:
        raise RunFolderError(
            f"{run_dir} needs up to {_shown(needed - used)} for its checkpoints, but its disk has "
            f"{_shown(free)} free; make room, or lower `keep` or `average`"
        )


def _shown(size: int) -> str:
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"


# --- while a run writes ---


class DiskTroubles:
    """Keeps which writers find no room, and warns when the first of them does.

    Args:
        warn: is called with a line; again when all had room in the meantime.
    """

    def __init__(self, warn: Callable[[str], object] = lambda line: None) -> None:
        self._warn = warn
        self._writers: set[str] = set()

    def begin(self, writer: str, error: OSError) -> None:
        """Take note that a writer finds no room."""
        if not self._writers:
            self._warn(
                f"{error.filename}: {error.strerror}; training goes on, and what is to be saved is "
                "written when it can be"
            )
        self._writers.add(writer)

    def end(self, writer: str) -> None:
        """Take note that a writer finds room."""
        self._writers.discard(writer)
