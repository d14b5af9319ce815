"""`metrics.jsonl`: one line of JSON for each figure, and how much of it a checkpoint covers."""

from __future__ import annotations

import json
import os
import threading
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from gapless.checkpoint.files import may_pass, naming, replace_file
from gapless.checkpoint.manifest import HASH_BYTES, Content
from gapless.errors import RunFolderError


if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from gapless.nmt.run.disk_troubles import DiskTroubles


METRICS = "metrics.jsonl"


class MetricsFile:
    """Appends lines, and knows size and hash of all that was written.

    Lines that a full disk has no room for are kept, and written when it has.

    Args:
        path: of the file; what is in it stays.
        troubles: are told when there is no room.

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
        # The thread that saves states syncs the file.
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
