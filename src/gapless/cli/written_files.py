"""Files that a command writes at its end."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from gapless.checkpoint.files import replace_file
from gapless.errors import UserError


if TYPE_CHECKING:
    from pathlib import Path


def require_writable(path: Path, option: str) -> None:
    """Refuse a place that cannot be written before the work is done, not after it.

    Args:
        path: of the file to write.
        option: that named it, such as "--json".

    Raises:
        UserError: it is a folder, it or its folder cannot be written, or its folder does not exist.
    """
    folder = path.parent
    if path.is_dir():
        found = "is a folder"
    elif not folder.is_dir():
        found = f"lies in {folder}, which does not exist"
    elif path.exists() and not os.access(path, os.W_OK):
        found = "cannot be written"
    elif not path.exists() and not os.access(folder, os.W_OK):
        found = f"lies in {folder}, which cannot be written"
    else:
        return
    raise UserError(f"{option} {path} {found}; name a file in a folder that is there")


def write_whole(path: Path, content: bytes) -> None:
    """Write a file that a user named: whole or not at all, or into what it is if it is no plain file.

    A link stays, and what it leads to is written; so do devices and pipes such as /dev/stdout.

    Raises:
        OSError: the disk is full, or the place cannot be written.
    """
    if _is_open_already(path) or (path.exists() and not path.is_file()):
        with path.open("ab") as file:
            file.write(content)
    else:
        replace_file(path.resolve(), content)


def _is_open_already(path: Path) -> bool:
    """Return whether a path names a file that this process has open, as /dev/stdout and /dev/fd/3 do.

    Where it is a plain file, whoever opened it goes on to write to it, whatever then has its name.
    """
    place = path.parent.resolve() / path.name
    leads_to = place.readlink() if place.is_symlink() else place
    return place.is_relative_to("/proc") or leads_to.is_relative_to("/proc")
