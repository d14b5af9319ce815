"""What is refused before a command begins its work, not after it."""

from __future__ import annotations

import os
from importlib.util import find_spec
from tempfile import TemporaryFile
from typing import TYPE_CHECKING

from gapless.errors import UserError


if TYPE_CHECKING:
    from pathlib import Path


# Packages by their import names; pyproject.toml lists them by their names on the package index. Not
# langcodes: plain codes are read without it, and what needs it says so.
PACKAGES = {
    "nmt": ("numpy", "sentencepiece", "sacrebleu", "safetensors", "yaml", "tensorboard"),
    "cli": ("tqdm", "shtab"),
}


def require_extra(extra: str, what: str) -> None:
    """Check that the packages of an extra are installed.

    Args:
        extra: its name.
        what: needs it, such as `gapless train`.

    Raises:
        UserError: some are not; the message says how to install them.
    """
    missing = [name for name in PACKAGES[extra] if find_spec(name) is None]
    if missing:
        raise UserError(
            f"{what} needs the extra {extra}, of which {', '.join(missing)} cannot be found; "
            f'run pip install "gapless[{extra}]"'
        )


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
    raise UserError(f"{option} {path} {found}; name a file in a folder that can be written")


def make_folder(folder: Path) -> None:
    """Make the folder that translations go to, and refuse one that cannot be written.

    Raises:
        UserError: it is no folder, or cannot be made or written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Root may do what the permissions deny, so try it.
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        why = "it is no folder" if isinstance(error, FileExistsError) else error.strerror
        raise UserError(
            f"cannot write translations to {folder}: {why}; name a folder with --out DIR"
        ) from error
