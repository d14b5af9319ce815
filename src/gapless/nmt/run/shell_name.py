"""The name of a file or folder in a command that somebody copies."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from pathlib import Path


def shell_name(path: Path | str) -> str:
    """Return a path so that a shell takes it for one word, and a command for no option."""
    name = str(path)
    return shlex.quote(f"./{name}" if name.startswith("-") else name)
