"""Find the line of the user's code that made a call."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from gapless.unnoticed import is_own_file


if TYPE_CHECKING:
    from types import CodeType, FrameType


# Code in these folders calls on behalf of its callers.
_inner_folders = [str(Path(__file__).parent), str(Path(torch.__file__).parent), "<"]
_INNER_ENDS = ("contextlib.py", "threading.py", "/warnings.py")
_INNER_NAMES = ("__torch_dispatch__", "__torch_function__")

# By file and name, or file and line: code of two files may be equal.
_is_inner: dict[tuple[str, str], bool] = {}
_sites: dict[tuple[str, int], str] = {}


def hide_folder(folder: Path) -> None:
    """Let `call_site` skip the code of a folder, as it skips torch and this room."""
    _inner_folders.append(str(folder))


def call_site() -> str:
    """Return file:line of the nearest caller outside torch and all hidden folders."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        key = (code.co_filename, code.co_name)
        inner = _is_inner.get(key)
        if inner is None:
            inner = _is_inner[key] = _belongs_to_torch_or_us(code)
        if not inner:
            return _site(code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return "unknown"


def _belongs_to_torch_or_us(code: CodeType) -> bool:
    name = code.co_filename
    return (
        name.startswith(tuple(_inner_folders))
        # What stands in for functions of torch while the doctor or a trial watches.
        or is_own_file(name)
        or name.endswith(_INNER_ENDS)
        or code.co_name in _INNER_NAMES
    )


def _site(path: str, line: int) -> str:
    if (path, line) not in _sites:
        _sites[path, line] = f"{Path(path).name}:{line}"
    return _sites[path, line]
