"""Write files so that a reader never sees half of one."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def replace_file(path: Path, content: bytes) -> None:
    """Write a file under a temporary name beside it, then rename it into place.

    Raises:
        OSError: the disk is full or the folder cannot be written; nothing is left behind.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with naming(path):
            temporary.write_bytes(content)
            temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Let an error of the system say which path it is about: that of a failed write does not."""
    try:
        yield
    except OSError as error:
        error.filename = str(path)
        raise
