"""The folder of a run: what a run writes, and how it is read again."""

from __future__ import annotations

import json
import math
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, Self

from torch.utils.tensorboard import SummaryWriter

from gapless.checkpoint.files import may_pass, naming, replace_file
from gapless.checkpoint.lock import RunLock
from gapless.errors import RunFolderError, RunLockedError, UserError, noted_on
from gapless.nmt.run.checkpoints import (
    FOLDER as CHECKPOINTS,
    drop_later,
    how_to_use_weights,
    newest_metrics,
    newest_with,
    state_store,
)
from gapless.nmt.run.config import make_config
from gapless.nmt.run.config_file import shown, to_yaml
from gapless.nmt.run.metrics_file import METRICS, MetricsFile, go_back
from gapless.nmt.run.shell_name import shell_name
from gapless.nmt.run.task import VOCAB_FILES, Vocabs
from gapless.nmt.run.trained_on import TRAINED_ON, is_damaged


if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from gapless.checkpoint.manifest import Content
    from gapless.nmt.run.config import TrainConfig
    from gapless.nmt.run.disk_troubles import DiskTroubles
    from gapless.nmt.run.silent import SilentFolder
    from gapless.pipeline.losses.deferred_loss import DeferredLoss
    from gapless.records.training import TrainingEpoch
    from gapless.records.wait_stats import WaitStats


CONFIG = "config.yaml"
SUMMARY = "summary.json"
LOCK = "lock"


class RunFolder:
    """The files of one run.

    Args:
        path: the folder, which exists.
        troubles: are told when a full disk takes no figures.
    """

    def __init__(self, path: Path, *, troubles: DiskTroubles) -> None:
        self.path = path
        self._troubles = troubles
        self.metrics = MetricsFile(path / METRICS, troubles=troubles)
        self._thread_hook = threading.excepthook
        threading.excepthook = _unless_of_board(self._thread_hook)
        self._board: SummaryWriter | None = None
        self._open_board()

    def log(
        self,
        kind: str,
        *,
        step: int,
        waits: WaitStats | None = None,
        **values: float | None,
    ) -> None:
        """Append figures to `metrics.jsonl` and, but for waits, to the TensorBoard events."""
        finite = {
            name: value if value is None or math.isfinite(value) else None
            for name, value in values.items()
        }
        by_reason = {} if waits is None else {"waits": waits.as_dict()}
        self.metrics.write({"kind": kind, "step": step, **finite, **by_reason})
        for name, value in finite.items():
            if value is not None:
                self._show(f"{kind}/{name}", value, step)

    def _show(self, name: str, value: float, step: int) -> None:
        """Append a figure to the TensorBoard events; what a full disk does not take is lost."""
        if self._board is None:
            return
        try:
            with naming(self.path / "tensorboard"):
                self._board.add_scalar(name, value, step)
        except OSError as error:
            if not may_pass(error):
                raise
            self._board = None
            self._troubles.begin("tensorboard", error)

    def _open_board(self) -> None:
        """Open the TensorBoard events, at first or when there may be room for them again."""
        path = str(self.path / "tensorboard")
        if not _is_text(path):
            # TensorBoard writes no file under such a name; nothing else needs it.
            return
        try:
            self._board = SummaryWriter(path)
        except OSError as error:
            if not may_pass(error):
                raise
            self._troubles.begin("tensorboard", error)
        else:
            self._troubles.end("tensorboard")

    def log_epoch(self, record: TrainingEpoch) -> None:
        """Append the figures of an epoch, and hand everything logged to the system."""
        if self._board is None:
            self._open_board()
        self.log(
            "epoch",
            step=record.number,
            waits=record.work.waits,
            loss=record.work.mean_loss,
            tokens_per_second=record.tokens_per_second,
            **record.work.utilisation(),
            peak_memory_bytes=record.peak_memory_bytes,
            **record.validation,
        )
        self.flush()

    def flush(self) -> None:
        """Hand everything logged to the operating system, so that it survives this process."""
        self.metrics.flush()

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Write `summary.json`."""
        text = json.dumps(summary, indent=2, ensure_ascii=False)
        replace_file(self.path / SUMMARY, f"{text}\n".encode())

    def close(self) -> None:
        """Close the files."""
        try:
            self.metrics.close()
            if self._board is not None:
                with naming(self.path):
                    self._board.close()
        finally:
            threading.excepthook = self._thread_hook

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
            return
        with noted_on(error):
            self.close()


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _unless_of_board(
    hook: Callable[[threading.ExceptHookArgs], object],
) -> Callable[[threading.ExceptHookArgs], None]:
    """Return a hook for errors of threads that leaves failed writes of TensorBoard out.

    They are raised once more in our next call. A thread that starts meanwhile keeps the hook for as
    long as it lives, so the hook holds nothing of the run.
    """

    def tell(error: threading.ExceptHookArgs) -> None:
        is_board = type(error.thread).__module__.startswith("tensorboard.")
        if not (is_board and isinstance(error.exc_value, OSError)):
            hook(error)

    return tell


class LossLog:
    """Logs the losses that have arrived on the host, each once, in order.

    Args:
        folder: of the run.
        losses: of all batches of this process.
        first_batch: number of the next batch, counted over the whole run.
    """

    def __init__(
        self, folder: RunFolder | SilentFolder, losses: DeferredLoss, *, first_batch: int
    ) -> None:
        self._folder = folder
        self._losses = losses
        self._next = losses.num_added
        self._offset = first_batch - losses.num_added
        self._marks: dict[int, Content | None] = {}

    def write_new(self) -> None:
        """Log the losses that arrived since the last call.

        Sync: Does not block the host.
        """
        new = self._losses.read_since(self._next)
        if not new:
            return
        for number, (loss, tokens) in enumerate(new, start=self._next + self._offset):
            self._folder.log("train", step=number, loss=loss, tokens=tokens)
            if number + 1 in self._marks:
                self._marks[number + 1] = self._folder.metrics.content()
        self._next += len(new)
        self._folder.flush()

    def mark(self, batch: int) -> None:
        """Ask for what the metrics file holds when the losses of so many batches are logged.

        Args:
            batch: batches of the whole run; no loss of a later one may be logged yet.
        """
        is_logged = self._next + self._offset == batch
        self._marks[batch] = self._folder.metrics.content() if is_logged else None

    def content_at(self, batch: int) -> Content | None:
        """Return what the metrics file held at a mark, None until it is reached."""
        return self._marks[batch]


def forget_later(
    path: Path,
    *,
    covered: Content | None,
    updates: int,
    batches: int,
    epochs: int,
    is_finished: bool,
) -> str | None:
    """Remove what a run logged, and the weights it saved, after the state that it resumes from.

    A run that was killed had done more than its state says. It will do the same again.

    Args:
        path: the run folder.
        covered: size and hash of the metrics file when the state was saved; None for a new run.
        updates: done in the state.
        batches: done in the state.
        epochs: done in the state.
        is_finished: whether the run is; otherwise its final model is removed too.

    Returns:
        A line about damage to the metrics file, None if there was none.
    """
    drop_later(path, updates=updates, epochs=epochs, is_finished=is_finished)
    return go_back(
        path / METRICS, covered=covered, batches=batches, updates=updates, epochs=epochs
    )


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
    # A run that was killed while it made its folder has left no more than begun files.
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
            # Another process may have begun to write there.
            with suppress(OSError):
                folder.rmdir()


def _what_to_do_with(path: Path) -> str:
    """Return what a folder that is not empty holds, as far as it matters, and what to do."""
    if not ((path / CONFIG).is_file() or newest_with(path, CONFIG) is not None):
        return ", and holds no run; choose another `run_dir`"
    if state_store(path).paths():
        return f"; choose another `run_dir`, or resume it with `resume={shell_name(path)}`"
    advice = how_to_use_weights(path)
    if advice is not None:
        return (
            ", and holds a run without a state, which can be translated with, but not resumed; choose "
            f"another `run_dir`, and {advice}"
        )
    return (
        ", and holds a run without a state, which cannot be resumed; remove it, or choose another "
        "`run_dir`"
    )


def begun_files(path: Path) -> list[Path]:
    """Return the files of a run's begin that killed processes have not written to the end."""
    names = (CONFIG, *VOCAB_FILES, TRAINED_ON)
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
    # What allows other data is asked for with each resume.
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
    run = _run_around(path)
    if run is not None:
        raise RunFolderError(f"{path} is not a run folder, but inside one; name the run: {run}")
    if not (path / CONFIG).is_file():
        found = "does not exist" if not path.exists() else f"holds no {CONFIG}"
        raise RunFolderError(f"{path} is not a run folder: it {found}; gapless train makes one")
    return path / CONFIG


def _run_around(path: Path) -> Path | None:
    """Return the run that a folder is the checkpoints of, or one of them; None: it is neither."""
    # Given as `.`, a folder does not say its name.
    path = path if path.name else path.absolute()
    for folder in (path, path.parent):
        run = folder.parent
        if folder.name == CHECKPOINTS and newest_with(run, CONFIG) is not None:
            return run
    return None


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
            told = f"{file} is not what was saved with {kept.name}, which is used"
            if name == CONFIG:
                differing = _what_differs(file, kept / name)
                lines.append(f"{told}{differing}; settings are changed by flags")
            else:
                lines.append(told)
    return lines


def _what_differs(file: Path, saved: Path) -> str:
    """Return which settings a file has otherwise, or why it cannot be read; nothing if they are equal."""
    try:
        now = vars(make_config({}, file=file))
    except UserError as error:
        return f": it cannot be read: {' '.join(str(error).split())}"
    try:
        before = vars(make_config({}, file=saved))
    except UserError:
        return ""
    differing = [
        f"{name} {shown(now[name])} instead of {shown(before[name])}"
        for name in now
        if now[name] != before[name]
    ]
    return f": it says {', '.join(differing)}" if differing else ""


def damaged_files(path: Path) -> list[str]:
    """Return a line for each file beside the checkpoints that is not what they say.

    Raises:
        RunFolderError: the folder is not a run.
    """
    settings_file(path)
    lines = changed_files(path)
    covered = newest_metrics(path)
    if covered is not None:
        file = path / METRICS
        data = file.read_bytes() if file.is_file() else b""
        difference = covered.difference(data[: covered.size])
        if difference is not None:
            lines.append(f"{file}: {difference}")
    if is_damaged(path):
        lines.append(f"{path / TRAINED_ON}: holds other bytes than were written")
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
