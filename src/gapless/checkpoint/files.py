"""Write files so that a reader never sees half of one, also after a power cut.

A written file is on the disk when `fsync` of the file has returned, and its name when `fsync` of its
folder has. So everything is written under a temporary name, synced, renamed, and the folder synced.
"""

from __future__ import annotations

import ctypes
import errno
import os
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path


# Written at a time, and the size below which parts are written together.
PART_BYTES = 1 << 20
_SMALL_BYTES = 1 << 16

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

_NOT_OFFERED = (errno.ENOSYS, errno.EINVAL, errno.EPERM)


class Disk:
    """The operations that writers ask of a file system, one method each.

    A subclass can record them, or let one fail. Files are descriptors, because an error of
    writing is reported only by descriptors that were open when it happened.
    """

    def create(self, path: Path) -> int:
        """Make an empty file and open it for writing; an older one is replaced."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)

    def write(self, file: int, data: memoryview) -> None:
        """Append bytes to a file."""
        while data:
            data = data[os.write(file, data) :]

    def sync(self, file: int) -> None:
        """Wait until the content of a file is on the disk."""
        os.fsync(file)

    def close(self, file: int) -> None:
        """Close a file."""
        os.close(file)

    def make_folder(self, path: Path) -> None:
        """Make a folder."""
        path.mkdir()

    def sync_folder(self, path: Path) -> None:
        """Wait until the names in a folder are on the disk."""
        folder = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def rename(self, old: Path, new: Path) -> None:
        """Give a file or folder another name; a file of that name is replaced."""
        old.replace(new)

    def exchange(self, one: Path, other: Path) -> bool:
        """Let two names change places in one step; return whether the file system can."""
        try:
            call = ctypes.CDLL(None, use_errno=True).renameat2
        except AttributeError:
            return False
        paths = os.fsencode(one), os.fsencode(other)
        if not call(_AT_FDCWD, paths[0], _AT_FDCWD, paths[1], _RENAME_EXCHANGE):
            return True
        code = ctypes.get_errno()
        if code in _NOT_OFFERED:
            return False
        raise OSError(code, os.strerror(code), str(other))

    def unlink(self, path: Path) -> None:
        """Remove a file."""
        path.unlink()

    def remove_folder(self, path: Path) -> None:
        """Remove an empty folder."""
        path.rmdir()


DISK = Disk()


def may_pass(error: OSError) -> bool:
    """Return whether an error of writing may be over later: a disk may have room again."""
    return error.errno in (errno.EIO, *_FULL)


class SyncFailedError(OSError):
    """The system could not sync; what is on the disk is unknown."""


def write_file(path: Path, parts: Sequence[memoryview], *, disk: Disk = DISK) -> None:
    """Write a file and sync it; its name is synced with its folder.

    Raises:
        SyncFailedError: it could not be synced.
        OSError: the disk is full or fails.
    """
    with naming(path):
        file = disk.create(path)
        try:
            for chunk in _chunks(parts):
                disk.write(file, chunk)
            with _sync_errors():
                disk.sync(file)
        finally:
            disk.close(file)


def _chunks(parts: Sequence[memoryview]) -> Iterator[memoryview]:
    """Yield what is written at a time: parts of large ones, and small ones together."""
    small = bytearray()
    for part in parts:
        if len(part) < _SMALL_BYTES:
            small += part
            if len(small) < PART_BYTES:
                continue
        if small:
            yield memoryview(bytes(small))
            small.clear()
        if len(part) >= _SMALL_BYTES:
            for start in range(0, len(part), PART_BYTES):
                yield part[start : start + PART_BYTES]
    if small:
        yield memoryview(bytes(small))


def sync_folder(path: Path, *, disk: Disk = DISK) -> None:
    """Sync the names in a folder.

    Raises:
        SyncFailedError: they could not be synced.
    """
    with naming(path), _sync_errors():
        disk.sync_folder(path)


def write_anew_if_not_synced(write: Callable[[], None]) -> None:
    """Call a function that writes, and once more if a sync in it fails.

    Another sync of the same file may claim success for pages that the system has thrown away.
    """
    try:
        write()
    except SyncFailedError:
        try:
            write()
        except SyncFailedError as error:
            raise OSError(error.errno, error.strerror, error.filename) from error


def replace_file(path: Path, content: bytes, *, disk: Disk = DISK) -> None:
    """Write a file under a temporary name beside it, then rename it into place.

    Raises:
        OSError: the disk is full or the folder cannot be written; nothing is left behind.
    """
    temporary = temporary_path(path)

    def write() -> None:
        write_file(temporary, [memoryview(content)], disk=disk)
        disk.rename(temporary, path)
        sync_folder(path.parent, disk=disk)

    try:
        with naming(path):
            write_anew_if_not_synced(write)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def temporary_path(path: Path) -> Path:
    """Return the name under which this process writes a file or folder before it is whole."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def remove_tree(path: Path, *, disk: Disk = DISK) -> None:
    """Remove a file, or a folder and what is in it, as far as it is there."""
    with suppress(FileNotFoundError):
        if path.is_symlink() or not path.is_dir():
            disk.unlink(path)
            return
        for inner in sorted(path.iterdir()):
            remove_tree(inner, disk=disk)
        disk.remove_folder(path)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Let an error of the system say which path it is about: that of a failed write does not."""
    try:
        yield
    except OSError as error:
        error.filename = str(path)
        raise


@contextmanager
def _sync_errors() -> Iterator[None]:
    """Raise SyncFailedError for an error of a sync; not for a full disk, where writing anew fails too."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise
        raise SyncFailedError(error.errno, error.strerror) from error
