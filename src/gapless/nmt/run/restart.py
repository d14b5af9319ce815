"""What the same command finds when it is started again: a run to go on with, or none."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from gapless.checkpoint.lock import RunLock
from gapless.nmt.run.checkpoints import FOLDER, best_path, final_path, newest_with, state_store
from gapless.nmt.run.error_log import ERRORS
from gapless.nmt.run.folder import CONFIG, LOCK, SUMMARY
from gapless.nmt.run.metrics_file import METRICS
from gapless.nmt.run.task import VOCAB_FILES
from gapless.nmt.run.trained_on import TRAINED_ON


if TYPE_CHECKING:
    from pathlib import Path


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
        # Each state keeps the settings too.
        return newest_with(run_dir, CONFIG) is not None
    if _has_results(run_dir):
        return True
    with RunLock(run_dir / LOCK):
        # The process that has just ended may have saved one before it did.
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
    # The settings last: without them this would be no run, and nothing of it would be removed.
    for name in (METRICS, ERRORS, TRAINED_ON, *VOCAB_FILES, CONFIG):
        (run_dir / name).unlink(missing_ok=True)
