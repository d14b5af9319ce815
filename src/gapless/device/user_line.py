"""Decide whose code a frame runs, and find the user's line that made a call.

A report names the nearest line outside of torch and gapless, which may be a framework's (`call_site`). A
finding of the doctor names the user's own line and the framework that it called (`UserCode.place`). A place
is noted in a few hundred nanoseconds, while the script runs, and becomes readable text only afterwards.
"""

from __future__ import annotations

import linecache
import os
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch

from gapless.python_private import getframe
from gapless.records.finding import Site
from gapless.unnoticed import is_stand_in_file


if TYPE_CHECKING:
    from types import CodeType, FrameType


OWN_FOLDER = str(Path(__file__).parents[1]) + os.sep
TORCH_FOLDER = str(Path(torch.__file__).parent) + os.sep
_LIBRARIES = tuple(
    {
        str(Path(folder)) + os.sep
        for folder in (
            TORCH_FOLDER,
            *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib")),
            str(Path(os.__file__).parent),
        )
    }
)
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")

# Also where they are used from a checkout of their own.
_PACKAGES = frozenset(
    {
        *("accelerate", "composer", "datasets", "deepspeed", "diffusers", "fastai", "ignite"),
        *("lightning", "lightning_fabric", "peft", "pytorch_lightning", "timm", "torchaudio"),
        *("torchmetrics", "torchtitan", "torchtune", "torchvision", "transformers", "trl"),
        # Also what torch's compiler generates: it lies in a cache folder.
        *("functorch", "torch", "triton"),
    }
)

# What people type at a prompt; other code in no file belongs to the line that runs it.
_PROMPTS = ("<stdin>", "<ipython-input", "<python-input")

# Parts of a name that are no `def` of the source.
_UNNAMED = frozenset(
    {"<locals>", "<lambda>", "<genexpr>", "<listcomp>", "<setcomp>", "<dictcomp>"}
)

# Code in these folders calls on behalf of its callers.
# That of torch without its end: torchvision and torchaudio lie beside it.
_inner_folders = [str(Path(__file__).parent), TORCH_FOLDER.rstrip(os.sep), "<"]
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
    frame: FrameType | None = getframe(1)
    while frame is not None:
        code = frame.f_code
        key = (code.co_filename, code.co_name)
        inner = _is_inner.get(key)
        if inner is None:
            inner = _is_inner[key] = _is_inner_code(code)
        if not inner:
            return _short_site(code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return "unknown"


def _is_inner_code(code: CodeType) -> bool:
    name = code.co_filename
    return (
        name.startswith(tuple(_inner_folders))
        # Wrappers of torch's functions while the doctor or a trial watches.
        or is_stand_in_file(name)
        or name.endswith(_INNER_ENDS)
        or code.co_name in _INNER_NAMES
    )


def _short_site(path: str, line: int) -> str:
    if (path, line) not in _sites:
        _sites[path, line] = f"{shown_name(path)}:{line}"
    return _sites[path, line]


def shown_name(path: str) -> str:
    """Return a file's name as shown to people; of an installed package as it is imported: no script has that file."""
    for folder in _INSTALLED:
        if folder in path:
            return Path(path.rpartition(folder)[2]).as_posix()
    return Path(path).name


class Place(NamedTuple):
    """Where a call was made.

    Attributes:
        code: of the user's innermost own function; None where none is on the stack.
        instruction: of it that made the call, as a frame's `f_lasti`.
        through: functions of libraries that the call went through, the one that waits first.
        inner_instruction: of the function that waits, which is the user's if there are no others.
    """

    code: CodeType | None
    instruction: int
    through: tuple[CodeType, ...] = ()
    inner_instruction: int = 0

    @property
    def innermost(self) -> CodeType | None:
        """The function that waits."""
        return self.through[0] if self.through else self.code

    @property
    def key(self) -> tuple[int, int, tuple[int, ...], int]:
        """Return its key among places, valid while it is kept: code of two files may be equal."""
        return (
            id(self.code),
            self.instruction,
            tuple(map(id, self.through)),
            self.inner_instruction,
        )


class UserCode:
    """Tells the user's own code from that of libraries.

    Args:
        main: name of the package or module that was run with `-m`, which is the user's own wherever it
            is installed; empty if none.
    """

    def __init__(self, main: str = "") -> None:
        self._main = main.partition(".")[0]
        self._is_own: dict[str, bool] = {}
        self._is_ours: dict[str, bool] = {}

    def place(self, frame: FrameType | None) -> Place:
        """Return where the call was made that a frame is in."""
        is_own, inner = self._is_own, 0
        through: list[CodeType] = []
        while frame is not None:
            code = frame.f_code
            name = code.co_filename
            own = is_own.get(name)
            if own is None:
                own = is_own[name] = self._belongs_to_user(name, frame.f_globals)
                self._is_ours[name] = name.startswith(OWN_FOLDER)
            if own:
                return Place(code, frame.f_lasti, tuple(through), inner or frame.f_lasti)
            if not self._is_ours[name]:
                inner = inner or frame.f_lasti
                through.append(code)
            frame = frame.f_back
        return Place(None, 0, tuple(through), inner)

    def owns(self, path: str, variables: dict[str, object] | None = None) -> bool:
        """Return whether a file is the user's own, by its path and the globals of its code, if given."""
        known = self._is_own.get(path)
        return self._belongs_to_user(path, variables or {}) if known is None else known

    def files(self) -> list[Path]:
        """Return the Python files of all modules that are the user's own, that of `__main__` first."""
        found: dict[Path, None] = {}
        modules = list(sys.modules.items())
        for _, module in sorted(modules, key=lambda item: item[0] != "__main__"):
            file = getattr(module, "__file__", None)
            if isinstance(file, str) and file.endswith(".py"):
                names = getattr(module, "__dict__", {})
                if self._belongs_to_user(file, names) and Path(file).is_file():
                    found[Path(file)] = None
        return list(found)

    def _belongs_to_user(self, name: str, variables: dict[str, object]) -> bool:
        if name.startswith("<"):
            return name.startswith(_PROMPTS)
        module = str(variables.get("__name__", ""))
        package = str(variables.get("__package__") or module).partition(".")[0]
        if self._main and package == self._main:
            return True
        if module == "__main__":
            return not name.startswith((OWN_FOLDER, *_LIBRARIES))
        return not (
            package in _PACKAGES
            or name.startswith((OWN_FOLDER, *_LIBRARIES))
            or any(folder in name for folder in _INSTALLED)
        )


def module_that_runs() -> str:
    """Return the name of the package or module that was run with `-m`; empty if a file is run."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    name = getattr(spec, "name", "") or ""
    return "" if name.partition(".")[0] in ("gapless", "pytest", *_PACKAGES) else name


def site_of(code: CodeType, instruction: int, *, folder: str) -> Site:
    """Return the line of an instruction; its path is relative to a folder that it is in."""
    line = line_of(code, instruction)
    return Site(
        path=short_path(code.co_filename, folder=folder),
        line=line,
        function=function_of(code),
        source=linecache.getline(code.co_filename, line).strip(),
    )


def line_of(code: CodeType, instruction: int) -> int:
    """Return the line of an instruction: of a call over several lines, that of the call itself."""
    for number, (line, *_) in enumerate(code.co_positions()):
        if number == instruction // 2 and line is not None:
            return line
    return code.co_firstlineno


def place_in_framework(place: Place) -> str:
    """Return the file of the innermost framework that a call went through, and the line if it is known.

    Empty where it went through none but torch and Python's own library.
    """
    for code in place.through:
        path = code.co_filename
        if path.startswith((*_LIBRARIES, "<")) and not any(one in path for one in _INSTALLED):
            continue
        if path.startswith(TORCH_FOLDER):
            continue
        waits_here = code is place.through[0]
        line = f":{line_of(code, place.inner_instruction)}" if waits_here else ""
        return _below_installed(path) + line
    return ""


def _below_installed(path: str) -> str:
    """Return the path below the folder of installed packages, or the file and its folder."""
    for folder in _INSTALLED:
        if folder in path:
            return path.rpartition(folder)[2]
    return str(Path(*Path(path).parts[-2:]))


def function_of(code: CodeType) -> str:
    """Return the name of the function that people would look for; "<module>" outside of one."""
    parts = [part for part in code.co_qualname.split(".") if part not in _UNNAMED]
    return ".".join(parts) or "<module>"


def short_path(path: str, *, folder: str) -> str:
    """Return a path relative to a folder that it is in, or as it is."""
    return path.removeprefix(folder.rstrip(os.sep) + os.sep)
