"""Whose code it is: the user's, torch's, or a library's that is taken for granted."""

from __future__ import annotations

import os
import sys
import sysconfig
from enum import Enum, auto
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import gapless
from gapless.device.user_line import shown_name
from gapless.graphs.reads import torch_readers


if TYPE_CHECKING:
    from types import CodeType


class CodeKind(Enum):
    """Who wrote a function, as far as it matters to what a step reads and writes."""

    USER = auto()
    """The user, or a package that the user installed."""
    MODULE = auto()
    """Torch, in a module: reads settings such as `p` of a dropout; its writes are torch's own."""
    COMPILER = auto()
    """Torch, compiling."""
    COMPILED = auto()
    """Torch, calling what it has compiled."""
    ACTING = auto()
    """Torch or this package, doing something on the host."""
    READING = auto()
    """Torch, reading what no tensor holds."""
    FORWARD_MODE = auto()
    """Torch, differentiating in forward mode."""
    TORCH = auto()
    """Torch, anything else."""
    LIBRARY = auto()
    """The standard library or numpy, or torch where it changes cuFFT's plans."""
    SILENT = auto()
    """The standard library, where it warns, imports or shows source lines."""
    OWN = auto()
    """This package."""


def _folder(module: object) -> str:
    return str(Path(getattr(module, "__file__", "")).parent) + os.sep


TORCH_FOLDER = _folder(torch)
OWN_FOLDER = _folder(gapless)
# Its steps are captured as anybody's are, and what stands in for other packages' code is guarded.
_AS_THE_USERS = (
    OWN_FOLDER + "nmt" + os.sep,
    OWN_FOLDER + "integrations" + os.sep + "attention_masks.py",
)
_STANDARD = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib")})
_PACKAGES = ("site-packages" + os.sep, "dist-packages" + os.sep)
_NN = TORCH_FOLDER + "nn" + os.sep
_MODULES = (
    _NN + "modules" + os.sep,
    # These make modules and hooks that compute weights.
    *[
        f"{_NN}utils{os.sep}{name}.py"
        for name in ("parametrizations", "prune", "spectral_norm", "weight_norm")
    ],
)
# What calls a module is the same for all.
_FRAME = (os.sep + "module.py", os.sep + "container.py")
_COMPILER = TORCH_FOLDER + "_dynamo" + os.sep + "convert_frame.py"
_COMPILED = TORCH_FOLDER + "_dynamo" + os.sep + "eval_frame.py"
_PLANS_OF_CUFFT = str(Path(TORCH_FOLDER, "backends", "cuda", "__init__.py"))
_GUARD, _LAUNCHER = "___make_guard_fn.<locals>.guard", "launcher"
_FUNCTIONS = {CodeKind.COMPILER: "__call__", CodeKind.COMPILED: "compile_wrapper"}
_SILENT = {"warnings.py", "linecache.py", "traceback.py", "inspect.py", "tokenize.py"}
_TAKEN_FOR_GRANTED = {
    "numpy", "triton", "typing_extensions", "sympy", "mpmath", "packaging", "IPython", "ipykernel",
    "pytest", "_pytest", "pluggy", "coverage", "debugpy", "line_profiler",
}  # fmt: skip

# Packages whose objects are not looked into, and whose functions are taken not to be replaced.
FOREIGN_PACKAGES = (
    frozenset(sys.stdlib_module_names) | _TAKEN_FOR_GRANTED | {"builtins", "torch", "gapless"}
) - {"__main__"}


def kind_of(code: CodeType, names: dict[str, Any]) -> CodeKind:
    """Return who wrote a function.

    Args:
        code: of the function.
        names: its globals.
    """
    path = code.co_filename
    # Made at run time, such as a dataclass's methods: it belongs to the module it is made in.
    if path.startswith("<") and not path.startswith("<frozen"):
        path = str(names.get("__file__", path))
    kind = _kind_of_file(path)
    if kind is CodeKind.USER and _is_made_by_compiler(code, names):
        return CodeKind.TORCH
    function = _FUNCTIONS.get(kind)
    # These files have other functions too, and their import runs code.
    return CodeKind.TORCH if function is not None and code.co_name != function else kind


def _is_made_by_compiler(code: CodeType, names: dict[str, Any]) -> bool:
    """Return whether torch has made a function while it compiled: what calls kernels, or checks its guards."""
    module = str(names.get("__name__", ""))
    # Inductor launches each kernel for a GPU by a function in a namespace of its own.
    launches = not module and code.co_qualname == _LAUNCHER and "runner" in names
    return launches or code.co_qualname == _GUARD or module.startswith("torch.")


@cache
def _kind_of_file(path: str) -> CodeKind:
    if path.startswith("<frozen"):
        is_import = path.startswith(("<frozen importlib", "<frozen zipimport", "<frozen runpy"))
        return CodeKind.SILENT if is_import else CodeKind.LIBRARY
    if path == _PLANS_OF_CUFFT:
        return CodeKind.LIBRARY
    if path.startswith(TORCH_FOLDER):
        if path.startswith(_MODULES) and not path.endswith(_FRAME):
            return CodeKind.MODULE
        if path == _COMPILED:
            return CodeKind.COMPILED
        return CodeKind.COMPILER if path == _COMPILER else CodeKind.TORCH
    if path.startswith(OWN_FOLDER) and not path.startswith(_AS_THE_USERS):
        return CodeKind.OWN
    for marker in _PACKAGES:
        if marker in path:
            package = path.rpartition(marker)[2].partition(os.sep)[0].removesuffix(".py")
            return CodeKind.LIBRARY if package in _TAKEN_FOR_GRANTED else CodeKind.USER
    if path.startswith(_STANDARD):
        silent = path.rpartition(os.sep)[2] in _SILENT or "importlib" in path
        return CodeKind.SILENT if silent else CodeKind.LIBRARY
    return CodeKind.USER


def is_foreign(kind: type) -> bool:
    """Return whether a class belongs to torch, numpy or the standard library."""
    return kind.__module__.partition(".")[0] in FOREIGN_PACKAGES


def is_own(kind: type) -> bool:
    """Return whether a class is this package's, whose objects change as calls are watched; the trainer's are read."""
    module = kind.__module__
    return module.startswith("gapless.") and not module.startswith("gapless.nmt.")


def is_of_the_script(module: object) -> bool:
    """Return whether a module is the user's own, not one of an installed package."""
    path = str(getattr(module, "__file__", None) or "")
    is_installed = any(marker in path for marker in _PACKAGES)
    return bool(path) and not is_installed and _kind_of_file(path) is CodeKind.USER


def site_of(code: CodeType, line: int | None) -> str:
    """Return `file:line` as shown to people."""
    return f"{shown_name(code.co_filename)}:{line or code.co_firstlineno}"


def _path(folder: str, *parts: str) -> str:
    return str(Path(folder, *parts))


# Functions in Python that do something on the host which a replay would skip: by file, the names.
_ACTING = {
    _path(TORCH_FOLDER, "optim", "lr_scheduler.py"): ("step",),
    _path(TORCH_FOLDER, "optim", "swa_utils.py"): ("step",),
    TORCH_FOLDER + "serialization.py": ("save", "load"),
    _path(TORCH_FOLDER, "utils", "tensorboard", "writer.py"): ("add_",),
    _path(OWN_FOLDER, "pipeline", "losses", "deferred_loss.py"): (
        "add",
        "flush",
        "mean",
        "running_mean",
        "drain",
        "reset",
        "update",
    ),
    _path(OWN_FOLDER, "pipeline", "prefetch.py"): ("__next__", "__iter__"),
}

# Functions in Python that read what no tensor holds.
_READING = {
    _path(TORCH_FOLDER, *file.split("/")): names for file, names in torch_readers.IN_PYTHON.items()
}

# Functions in Python that differentiate in forward mode: by file, the names.
_FORWARD_MODE = {
    _path(TORCH_FOLDER, "_functorch", "eager_transforms.py"): (
        "jvp",
        "jacfwd",
        "hessian",
        "_jvp_with_argnums",
    ),
    _path(TORCH_FOLDER, "autograd", "forward_ad.py"): ("enter_dual_level", "make_dual"),
}


def kind_when_called(code: CodeType, names: dict[str, Any]) -> CodeKind:
    """Return `kind_of`, or what a function of torch or of this package does when it is called."""
    if code.co_name.startswith(_ACTING.get(code.co_filename, ())):
        return CodeKind.ACTING
    if code.co_name.startswith(_READING.get(code.co_filename, ())):
        return CodeKind.READING
    if code.co_name in _FORWARD_MODE.get(code.co_filename, ()):
        return CodeKind.FORWARD_MODE
    return kind_of(code, names)
