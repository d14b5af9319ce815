"""What a run logs: `metrics.jsonl`, TensorBoard events, `summary.json` and `errors.log`."""

from __future__ import annotations

import json
import math
import os
import threading
import traceback
from contextlib import suppress
from datetime import UTC, datetime
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Self

from torch.utils.tensorboard import SummaryWriter

from gapless.checkpoint.files import may_pass, naming, replace_file
from gapless.checkpoint.manifest import HASH_BYTES, Content
from gapless.errors import GaplessError, RunFolderError, noted_on
from gapless.unnoticed import Patches


if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from types import TracebackType

    from gapless.nmt.run_folder.disk_space import DiskTroubles
    from gapless.nmt.run_folder.tracker import Tracker
    from gapless.pipeline.losses.deferred_loss import DeferredLoss
    from gapless.records.training import TrainingEpoch
    from gapless.records.wait_stats import WaitStats


SUMMARY = "summary.json"


class RunLogs:
    """The figures of one run, as files: `metrics.jsonl`, TensorBoard events, `summary.json`.

    Args:
        path: the folder, which exists.
        troubles: reports a full disk.
        tracker: gets the figures too; None: there is none.
    """

    def __init__(
        self, path: Path, *, troubles: DiskTroubles, tracker: Tracker | None = None
    ) -> None:
        self.path = path
        self._troubles = troubles
        self._tracker = tracker
        self.metrics = MetricsFile(path / METRICS, troubles=troubles)
        self._board: SummaryWriter | None = None
        self._patches = Patches()
        self._patches.put(threading, "excepthook", _unless_of_board(threading.excepthook))
        try:
            self._open_board()
        except BaseException:
            self._patches.take_out()
            self.metrics.close()
            raise

    def log(
        self,
        kind: str,
        *,
        step: int,
        waits: WaitStats | None = None,
        **values: float | None,
    ) -> None:
        """Append figures to `metrics.jsonl` and, but for waits, to what shows them."""
        self.write(kind, step=step, waits=waits, **values)
        self.show(kind, step=step, **values)

    def write(
        self,
        kind: str,
        *,
        step: int,
        waits: WaitStats | None = None,
        **values: float | None,
    ) -> None:
        """Append figures to `metrics.jsonl`."""
        by_reason = {} if waits is None else {"waits": waits.as_dict()}
        self.metrics.write({"kind": kind, "step": step, **_finite(values), **by_reason})

    def show(self, kind: str, *, step: int, **values: float | None) -> None:
        """Append figures to the TensorBoard events, and send them to the tracker."""
        finite = _finite(values)
        if self._tracker is not None:
            self._tracker.log(kind, step, finite)
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
            if self._tracker is not None:
                self._tracker.close()
        finally:
            self._patches.take_out()

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


def _finite(values: Mapping[str, float | None]) -> dict[str, float | None]:
    """Return figures, None for those that are not finite."""
    return {
        name: value if value is None or math.isfinite(value) else None
        for name, value in values.items()
    }


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
    """Logs the losses that have arrived on the host, each once, in order; shows the mean of those that came together.

    Args:
        logs: of the run.
        losses: of all batches of this process.
        first_batch: number of the next batch, counted over the whole run.
        look_at: called with the number of each batch, counted likewise, and its loss.
    """

    def __init__(
        self,
        logs: RunLogs | SilentRunLogs,
        losses: DeferredLoss,
        *,
        first_batch: int,
        look_at: Callable[[int, float], None],
    ) -> None:
        self._logs = logs
        self._losses = losses
        self._look_at = look_at
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
            self._look_at(number, loss)
            self._logs.write("train", step=number, loss=loss, tokens=tokens)
            if number + 1 in self._marks:
                self._marks[number + 1] = self._logs.metrics.content()
        self._next += len(new)
        self._logs.flush()
        # A figure for all that have arrived together: to show one takes the host longer than some steps.
        loss = sum(loss * tokens for loss, tokens in new if tokens) / (
            sum(tokens for _, tokens in new) or 1
        )
        self._logs.show("train", step=self._next - 1 + self._offset, loss=loss)

    def mark(self, batch: int) -> None:
        """Ask for what the metrics file holds when the losses of so many batches are logged.

        Args:
            batch: batches of the whole run; no loss of a later one may be logged yet.
        """
        is_logged = self._next + self._offset == batch
        self._marks[batch] = self._logs.metrics.content() if is_logged else None

    def content_at(self, batch: int) -> Content | None:
        """Return what the metrics file held at a mark, None until it is reached."""
        return self._marks[batch]


class Silent:
    """Is in place of what writes or shows something on rank 0: whatever is called does nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _do_nothing

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Do nothing."""


def _do_nothing(*values: Any, **named: Any) -> None:
    del values, named


class SilentMetrics(Silent):
    """Is in place of a `MetricsFile`."""

    def content(self) -> Content:
        """Return that of an empty file."""
        return Content.of(())


class SilentRunLogs(Silent):
    """Is in place of a `RunLogs`."""

    def __init__(self) -> None:
        self.metrics = SilentMetrics()


# --- metrics.jsonl ---


METRICS = "metrics.jsonl"


class MetricsFile:
    """Appends lines, and knows size and hash of all that was written.

    Lines that a full disk has no room for are kept, and written when it has.

    Args:
        path: of the file; what is in it stays.
        troubles: reports a lack of room.

    Raises:
        OSError: it cannot be opened.
    """

    def __init__(self, path: Path, *, troubles: DiskTroubles) -> None:
        found = _content(path)
        self._path = path
        self._troubles = troubles
        self._size, self._hash = len(found), blake2b(found, digest_size=HASH_BYTES)
        self._file = path.open("ab", buffering=0)
        self._waiting = bytearray()
        self._trouble: OSError | None = None
        # Held because the thread that writes states syncs this file too.
        self._lock = threading.Lock()

    def write(self, row: dict[str, Any]) -> None:
        """Append a line; `flush` hands it to the system."""
        line = f"{json.dumps(row)}\n".encode()
        with self._lock:
            self._waiting += line
            self._size += len(line)
            self._hash.update(line)

    def content(self) -> Content:
        """Return size and hash of all lines so far."""
        return Content(size=self._size, blake2b=self._hash.copy().hexdigest())

    def flush(self) -> None:
        """Hand everything to the operating system, so that it survives this process.

        Raises:
            OSError: the file cannot be written, for another reason than a full disk.
        """
        self._write_waiting()
        if self._trouble is None:
            self._troubles.end(METRICS)
        else:
            self._troubles.begin(METRICS, self._trouble)

    def sync(self) -> None:
        """Bring everything to the disk.

        Raises:
            OSError: the disk is full, or fails.
        """
        self._write_waiting()
        if self._trouble is not None:
            raise self._trouble
        with naming(self._path):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file.

        Raises:
            OSError: the disk is full.
        """
        try:
            self._write_waiting()
        finally:
            self._file.close()
        if self._trouble is not None:
            raise self._trouble

    def _write_waiting(self) -> None:
        with self._lock, naming(self._path):
            self._trouble = None
            while self._waiting:
                try:
                    del self._waiting[: self._file.write(self._waiting)]
                except OSError as error:
                    if not may_pass(error):
                        raise
                    error.filename = str(self._path)
                    self._trouble = error
                    return


def go_back(
    path: Path, *, covered: Content | None, batches: int, updates: int, epochs: int
) -> str | None:
    """Cut a metrics file to what a checkpoint covers: a resumed run does the rest again.

    Lines that are damaged never stop a run: the whole ones are kept.

    Args:
        path: of the file.
        covered: size and hash of what the checkpoint covers.
        batches: done in the checkpoint.
        updates: done in it.
        epochs: done in it.

    Returns:
        A line about damage, None if there was none.

    Raises:
        OSError: the file cannot be read or written.
        RunFolderError: it is a pipe.
    """
    data = _content(path)
    if covered is None:
        kept, note = b"", None
    elif covered.difference(data[: covered.size]) is None:
        kept, note = data[: covered.size], None
    else:
        lines = data.split(b"\n")
        # The last step that a line of each kind may have.
        last = {"train": batches - 1, "validation": updates, "epoch": epochs}
        whole = [line for line in lines if _is_before(line, last)]
        kept = b"".join(line + b"\n" for line in whole)
        note = (
            f"{path} was damaged or changed after it was saved; {len(whole)} lines of it are kept"
        )
    if kept != data:
        replace_file(path, kept)
    return note


def _content(path: Path) -> bytes:
    """Return what a file holds, nothing if it is not there.

    Raises:
        RunFolderError: it is a named pipe, whose reader would wait for ever.
    """
    if not path.exists():
        return b""
    if path.is_fifo():
        raise RunFolderError(f"{path} is a pipe, expected a file; remove it, and run again")
    return path.read_bytes()


def _is_before(line: bytes, last: Mapping[str, int]) -> bool:
    """Return whether a line is whole, and of what was done before a checkpoint."""
    try:
        row = json.loads(line)
        return bool(row["step"] <= last[row["kind"]])
    except (ValueError, TypeError, KeyError, RecursionError):
        return False


# --- errors.log ---


ERRORS = "errors.log"


class ErrorLog:
    """Appends a line for each warning of a run, and for the error that ends it.

    The file is made with its first line; a resumed run goes on with it. A disk that takes no line
    is no further error: the same text is on standard error.

    Args:
        folder: of the run.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / ERRORS

    def warning(self, text: str, *, update: int) -> None:
        """Append a line about something that the run goes on with.

        Args:
            text: one line.
            update: number of updates queued by then.
        """
        self._append(f"warning: {text}", update=update)

    def error(self, error: BaseException, *, update: int) -> None:
        """Append a line about the error that ends the run; its traceback, if it is not one of ours.

        Args:
            error: that was raised.
            update: number of updates queued by then.
        """
        if isinstance(error, GaplessError):
            self._append(f"error: {' '.join(str(error).split())}", update=update)
        else:
            lines = "".join(traceback.format_exception(error)).splitlines()
            self._append("\n  ".join([f"error: {lines[-1]}", *lines]), update=update)

    def _append(self, text: str, *, update: int) -> None:
        time = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        line = f"{time}  update {update}  {text}\n"
        # A folder's name may be bytes that are no text: strict encoding would raise instead of logging.
        with suppress(OSError), self._path.open("ab") as file:
            file.write(line.encode(errors="backslashreplace"))
