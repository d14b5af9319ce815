"""Find the user's line that made a call, through the libraries in between."""

from __future__ import annotations

import sys
import sysconfig
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import torch


if TYPE_CHECKING:
    from types import FrameType


# Of libraries, torch and this room; Python's own among them.
_FOLDERS = (
    *{sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")},
    str(Path(torch.__file__).parent),
    str(Path(__file__).parent),
    "<",
)


def forcing_line() -> str:
    """Return file:line of the nearest caller outside of all libraries; "unknown" without one."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _is_of_library(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return "unknown"
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


@cache
def _is_of_library(path: str) -> bool:
    return path.startswith(_FOLDERS)
