"""A file that is written part by part."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Self

from gapless.checkpoint.files import DISK, naming
from gapless.checkpoint.manifest import HASH_BYTES, Content


if TYPE_CHECKING:
    from pathlib import Path

    from gapless.checkpoint.files import Disk


class GrowingFile:
    """A file that bytes are appended to, so that memory does not grow with it.

    Args:
        path: of the file.
        disk: through which it is written.
    """

    def __init__(self, path: Path, disk: Disk = DISK) -> None:
        self._path, self._disk = path, disk
        self._digest, self._size = blake2b(digest_size=HASH_BYTES), 0

    def __enter__(self) -> Self:
        with naming(self._path):
            self._file = self._disk.create(self._path)
        return self

    def __exit__(self, *error: object) -> None:
        self._disk.close(self._file)

    def add(self, data: bytes) -> None:
        """Append bytes.

        Raises:
            OSError: the disk is full or fails.
        """
        self._digest.update(data)
        self._size += len(data)
        with naming(self._path):
            self._disk.write(self._file, memoryview(data))

    def sync(self) -> Content:
        """Wait until all of it is on the disk; return what it holds.

        Raises:
            OSError: the disk is full or fails.
        """
        with naming(self._path):
            self._disk.sync(self._file)
        return Content(size=self._size, blake2b=self._digest.hexdigest())
