"""One writer for a folder: locks that die with their process."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from gapless.checkpoint.files import naming
from gapless.errors import RunLockedError


if TYPE_CHECKING:
    from pathlib import Path


# Errors of a lock that another process holds.
_HELD_BY_ANOTHER = (errno.EWOULDBLOCK, errno.EACCES)


class RunLock:
    """Lets one process at a time write to a folder; `acquire` never waits.

    It is a `flock` that forked children let go of at once. The three locks that a system offers:

    - `lockf` belongs to a process, but is lost as soon as the process closes *any* descriptor of the
      file, even one that was opened only to read it.
    - `flock` belongs to an open file, and is kept until its last descriptor is closed. A forked
      child inherits one, so a stuck loader worker would keep a dead run locked.
    - A lock of an open file description (`F_OFD_SETLK`) is inherited too, and not every system
      has it.

    So it is `flock`, and every child that Python forks closes its descriptor first of all, which
    leaves the parent's lock alone. A program that a child executes gets none (close-on-exec). The
    kernel takes the lock back however the process ends. A library that forks in C, without Python
    and without executing a program, would share the lock.

    On NFS, FUSE and other network file systems a lock may hold on one host alone, or not at all:
    nothing is promised there.

    Args:
        path: of the file; it is made, and stays when the lock is given back. While the lock is
            held it names process and host.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: int | None = None

    def acquire(self) -> None:
        """Take the lock.

        Raises:
            RunLockedError: another process has it, or another lock of this process.
            OSError: the file cannot be made or locked.

        Sync: Does not block the host.
        """
        with naming(self.path):
            file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                holder = _named_in(file)
                os.close(file)
                if error.errno not in _HELD_BY_ANOTHER:
                    raise
                raise RunLockedError(
                    f"{self.path.parent} is being written by {holder}; wait until it ends, or end it"
                ) from None
        self._file = file
        _held.add(self)
        self._write(f"process {os.getpid()} on host {socket.gethostname()}\n")

    def holder(self) -> str | None:
        """Return who has the lock, such as `process 12 on host a`; None: nobody, or no file is there.

        It makes no file and changes none. A lock of this process counts as well.

        Sync: Does not block the host.
        """
        try:
            file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            fcntl.flock(file, fcntl.LOCK_UN)
        except OSError as error:
            return _named_in(file) if error.errno in _HELD_BY_ANOTHER else None
        finally:
            os.close(file)
        return None

    def release(self) -> None:
        """Give the lock back; nothing happens if it is not held."""
        self._write("")
        self._let_go()

    def _write(self, text: str) -> None:
        # For people. A disk that is full or gone does not unlock the lock.
        if self._file is not None:
            with suppress(OSError):
                os.ftruncate(self._file, 0)
                os.pwrite(self._file, text.encode(), 0)

    def _let_go(self) -> None:
        """Close the descriptor. In a forked child this leaves the lock to the parent."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
            _held.discard(self)

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


def _named_in(file: int) -> str:
    """Return whom a lock's open file names."""
    text = os.pread(file, 1000, 0).decode(errors="replace")
    return " ".join(text.split()) or "another process"


class FolderLock:
    """Lets one process at a time save into a folder, and waits for its turn; also a `flock`.

    It locks the folder itself, so no file is left behind. Between two saves it is free.

    Args:
        folder: which exists.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder
        self._file: int | None = None

    def __enter__(self) -> Self:
        with naming(self.path):
            self._file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            _held.add(self)
            fcntl.flock(self._file, fcntl.LOCK_EX)
        return self

    def __exit__(self, *error: object) -> None:
        self._let_go()

    def _let_go(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
            _held.discard(self)


# Those that this process holds; a child must find them although no variable names them any more.
_held: set[RunLock | FolderLock] = set()


def _let_go_in_child() -> None:
    for lock in list(_held):
        lock._let_go()


os.register_at_fork(after_in_child=_let_go_in_child)
