"""Find a workload in a user's Python file."""

from __future__ import annotations

import inspect
import sys
import traceback
from pathlib import Path
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from gapless.compare.workload import require_workload
from gapless.errors import UserError


if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from gapless.compare.workload import Workload, WorkloadFunction


def load_workload(spec: str) -> WorkloadFunction:
    """Return the function that `FILE:FUNCTION` names.

    The file is run once, as an import would run it, with its folder on the import path.

    Args:
        spec: path of a Python file, a colon, and the name of a function that returns a `Workload`.
            The function takes no argument, or the device as `device`.

    Returns:
        A function of the device that calls the user's function and checks what it returns.

    Raises:
        UserError: the file is missing or cannot be run, or it has no such function.
    """
    path, name = _split(spec)
    module = _run_file(path)
    function = _find_function(module, name, path=path)
    takes_device = _takes_device(function, f"{name} in {path}")

    def make(device: torch.device) -> Workload:
        try:
            made = function(device=device) if takes_device else function()
        except TypeError as error:
            if "Workload.__init__()" not in str(error):
                raise
            what = str(error).removeprefix("Workload.__init__() ")
            raise UserError(
                f"{name} in {path} makes a gapless.Workload that is {what}; it takes model, "
                "optimizer, batches, step and unit, each by its name"
            ) from error
        require_workload(made, of=f"{name} in {path}")
        return made  # type: ignore[no-any-return]

    return make


def _split(spec: str) -> tuple[Path, str]:
    file, colon, name = spec.rpartition(":")
    if not colon or not file or not name.isidentifier():
        raise UserError(
            f"workload must be FILE:FUNCTION, but is {spec!r}; name the Python file and the "
            "function in it that returns the workload, such as train.py:make_workload"
        )
    path = Path(file)
    if not path.is_file():
        found = "is a folder" if path.is_dir() else "does not exist"
        raise UserError(f"workload file {path} {found}; expected a Python file")
    return path, name


def _run_file(path: Path) -> ModuleType:
    # Under its own name, as neighbours and worker processes would import it.
    name = path.stem if path.stem not in sys.modules else f"gapless_workload_{path.stem}"
    module = ModuleType(name)
    module.__file__ = str(path)
    sys.modules[name] = module
    sys.path.insert(0, str(path.resolve().parent))
    try:
        exec(compile(path.read_bytes(), str(path), "exec"), module.__dict__)
    except (Exception, SystemExit) as error:
        raise UserError(
            f"workload file {path} cannot be imported: {_place(error, path)}: "
            f"{type(error).__name__}: {error}; expected a file that runs without training "
            "anything and defines the function"
        ) from error
    return module


def _place(error: BaseException, path: Path) -> str:
    """Return file and line of the error, in the user's file if the error passed through it."""
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return f"{path}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename == str(path)]
    return f"{path}:{own[-1].lineno}" if own else str(path)


def _find_function(module: ModuleType, name: str, *, path: Path) -> Callable[..., Any]:
    function = getattr(module, name, None)
    if callable(function):
        return function  # type: ignore[no-any-return]
    if hasattr(module, name):
        raise UserError(
            f"{name} in {path} is of type {type(function).__name__}, expected a function that "
            "returns the workload"
        )
    own = [
        key
        for key, value in vars(module).items()
        if isinstance(value, FunctionType) and value.__module__ == module.__name__
    ]
    there = f"its functions are {', '.join(own)}" if own else "it defines no function"
    raise UserError(f"workload file {path} has no function {name!r}; {there}")


def _takes_device(function: Callable[..., Any], what: str) -> bool:
    parameters = inspect.signature(function).parameters
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    others = [
        item.name
        for item in parameters.values()
        if item.name != "device" and item.default is item.empty and item.kind not in optional
    ]
    if others:
        raise UserError(
            f"{what} needs the arguments {', '.join(others)}, but is called with none or with "
            "device alone; give them defaults"
        )
    return "device" in parameters
