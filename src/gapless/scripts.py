"""Run a user's script or module as Python itself would.

The process becomes the script's: `sys.argv`, `sys.path`, `__main__` and its exit are those of
`python script.py`. What remains different are the frames of the caller below the script's first one,
which `traceback.print_stack` shows and tracebacks do not.
"""

from __future__ import annotations

import importlib.machinery
import io
import os
import runpy
import signal
import sys
import threading
import traceback
from contextlib import suppress
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn

from gapless.errors import UserError
from gapless.python_private import (
    ModuleError,
    details_of_module,
    wait_for_threads as _wait_for_threads,
)
from gapless.unnoticed import Patches


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import CodeType, TracebackType


# Attributes of `__main__` that not every version of Python sets.
_SOME_PYTHONS_SET: dict[str, Callable[[], object]] = {
    "__annotations__": dict,
    "__cached__": lambda: None,
}

# Python itself has these before any script can put a file of that name before them.
_LOADED_AT_START = ("encodings", "gapless", "sitecustomize", "usercustomize")

# The former `__main__`: its globals are used until the process ends.
# What C takes for the code of an exit has 64 bits.
_LONG = 1 << 63

_former_main: list[ModuleType] = []

# Files that Python runs as well: compiled ones, and packages in one file.
_NO_SOURCE = (".pyc", ".zip", ".pyz")

_OWN_FOLDER = str(Path(__file__).parent) + os.sep


@dataclass(frozen=True, kw_only=True)
class Program:
    """What to run.

    Attributes:
        target: path of a file of source code, or name of a module.
        is_module: whether the target is the name of a module, as after `python -m`.
        arguments: of the program, as `sys.argv[1:]`.
    """

    target: str
    is_module: bool = False
    arguments: tuple[str, ...] = ()

    @classmethod
    def of(cls, words: Sequence[str], *, module: str | None = None) -> Program:
        """Return what words of a command line name: a path and its arguments, or those of a module."""
        if module is not None:
            return cls(target=module, is_module=True, arguments=tuple(words))
        return cls(target=words[0], arguments=tuple(words[1:]))

    @property
    def words(self) -> tuple[str, ...]:
        """What follows `python` on a command line that runs this."""
        return (*(("-m",) if self.is_module else ()), self.target, *self.arguments)


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How a program ended.

    Attributes:
        code: exit code, 0 to 255; minus SIGINT if an interrupt ended it.
    """

    code: int

    @property
    def is_success(self) -> bool:
        """Whether the program ended well."""
        return self.code == 0


def check_runs(program: Program) -> None:
    """Raise if there is no file to run. A module is looked for when it is run.

    Raises:
        UserError: there is no such file, or it is no source code.
    """
    path = Path(program.target)
    if program.is_module:
        return
    if not path.exists():
        raise UserError(
            f"cannot run {program.target}: there is no such file; {_what_to_name(program)}"
        )
    if not os.access(path, os.R_OK):
        raise UserError(f"cannot run {program.target}: reading it is not permitted")
    if path.is_dir() or path.suffix in _NO_SOURCE:
        raise UserError(
            f"cannot run {program.target}: expected a file of source code; name one, or a package by -m"
        )


def _what_to_name(program: Program) -> str:
    name = program.target
    if name.startswith("python") and program.arguments:
        return f"leave {name} out, and name {program.arguments[0]} itself"
    if name == "accelerate":
        return "let it start gapless: accelerate launch -m gapless run SCRIPT, or doctor SCRIPT"
    return "name a script, or a module by -m"


def run_program(
    program: Program,
    *,
    hides_between: bool = False,
    before_traceback: Callable[[], None] = lambda: None,
) -> Ending:
    """Run a program in this process and thread to the end of its main thread.

    An exception is shown as Python shows it, without frames of the caller. Threads that are no
    daemons may still run: see `wait_for_threads`.

    Args:
        program: to run; `check_runs` says whether it can.
        hides_between: whether frames of gapless between those of the program are not shown either.
        before_traceback: called before an exception that ends the program is shown, whose traceback is
            then the last that is said of it.
    """
    try:
        code, main = _prepare(program)
        exec(code, vars(main))
    except BaseException as error:
        if hides_between:
            _hide_between(error)
        if not isinstance(error, SystemExit):
            with suppress(BaseException):  # an interrupt too: the program's own error is shown
                before_traceback()
        return _ended_by(error)
    return Ending(code=0)


def wait_for_threads() -> None:
    """Wait for threads of the program that are no daemons, as Python does before it ends."""
    try:
        _wait_for_threads()
    except BaseException as error:  # an interrupt, most of all; Python goes on to its end as well
        seen: Any = SimpleNamespace(
            exc_type=type(error),
            exc_value=error,
            exc_traceback=error.__traceback__,
            err_msg=None,
            object=threading,
        )
        sys.unraisablehook(seen)


def leave(code: int) -> NoReturn:
    """End the process as a program ends that had this code: handlers of `atexit` run first.

    Args:
        code: exit code; minus SIGINT: the process dies of that signal, as its parent expects.
    """
    if code != -signal.SIGINT:
        sys.exit(code)
    _tell_nothing_once()
    raise KeyboardInterrupt


def _prepare(program: Program) -> tuple[CodeType, ModuleType]:
    """Make this process the program's, and return its code and its `__main__`."""
    own = sys.modules["__main__"]
    _former_main.append(own)
    main = ModuleType("__main__")
    vars(main)["__builtins__"] = sys.modules["builtins"]
    for name, value in _SOME_PYTHONS_SET.items():
        if hasattr(own, name):
            setattr(main, name, value())
    sys.modules["__main__"] = main
    sys.orig_argv[1:] = program.words
    if program.is_module:
        return _prepare_module(program, main), main
    return _prepare_file(program, _absolute(program.target), main), main


def _prepare_file(program: Program, path: str, main: ModuleType) -> CodeType:
    sys.argv[:] = [program.target, *program.arguments]
    _put_first_on_path(str(Path(path).resolve().parent))
    main.__loader__ = SourceFileLoader("__main__", path)
    main.__file__ = path
    with io.open_code(path) as file:
        return compile(file.read(), path, "exec", dont_inherit=True)


def _prepare_module(program: Program, main: ModuleType) -> CodeType:
    sys.argv[:] = ["-m", *program.arguments]
    _put_first_on_path(str(Path.cwd()))
    return _found(main, program.target)


def _found(main: ModuleType, name: str) -> CodeType:
    """Find a module, and make `__main__` the one that it is run as."""
    try:
        _, spec, code = details_of_module(name, ModuleError)
    except ModuleError as error:
        _say(f"{sys.executable}: {error}")
        raise SystemExit(1) from None
    vars(main).update(
        __file__=spec.origin,
        __cached__=spec.cached,
        __loader__=spec.loader,
        __package__=spec.parent,
        __spec__=spec,
    )
    sys.argv[0] = spec.origin
    found: CodeType = code
    return found


def _absolute(path: str) -> str:
    """Return a path as Python makes that of a script absolute: no link and no dots are resolved."""
    return path if os.path.isabs(path) else os.path.join(os.getcwd(), path)  # noqa: PTH109, PTH117, PTH118


def _put_first_on_path(folder: str) -> None:
    """Put a script's folder where Python puts it in `sys.path`, instead of ours; with `-P` it puts none."""
    if not sys.flags.safe_path:
        sys.path[:1] = [folder]
        _forget_shadowed(folder)


def _forget_shadowed(folder: str) -> None:
    """Let the script import its own files that have the names of modules which we have loaded."""
    finder = importlib.machinery.FileFinder(
        folder,
        (importlib.machinery.ExtensionFileLoader, importlib.machinery.EXTENSION_SUFFIXES),
        (SourceFileLoader, importlib.machinery.SOURCE_SUFFIXES),
    )
    tops = {name.partition(".")[0] for name in sys.modules}
    for top in tops.difference(sys.builtin_module_names, _LOADED_AT_START, ["__main__"]):
        known = getattr(sys.modules.get(top), "__spec__", None)
        if known is None or known.origin == "frozen":
            continue
        found = finder.find_spec(top)
        if found is None or found.loader is None or found.origin == known.origin:
            continue
        for name in [name for name in sys.modules if f"{name}.".startswith(f"{top}.")]:
            del sys.modules[name]


def _ended_by(error: BaseException) -> Ending:
    """Tell what ended the program, as Python does, and return the ending."""
    if isinstance(error, SystemExit):
        return Ending(code=_exit_code(_code_of(error)))
    trace = error.__traceback__
    while trace is not None and _is_below_the_script(trace):
        trace = trace.tb_next
    error = error.with_traceback(trace)
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
    sys.last_exc = error  # type: ignore[attr-defined,unused-ignore]
    if not hasattr(sys, "excepthook"):
        _say("sys.excepthook is missing")
        sys.excepthook = sys.__excepthook__
    try:
        sys.excepthook(type(error), error, trace)
    except SystemExit as exit:
        return Ending(code=_exit_code(_code_of(exit)))
    except BaseException as second:
        _say("Error in sys.excepthook:")
        second.__context__ = None
        own = second.__traceback__
        traceback.print_exception(second.with_traceback(own.tb_next if own else None))
        _say("\nOriginal exception was:")
        traceback.print_exception(error)
    return Ending(code=-signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1)


def _code_of(exit: SystemExit) -> object:
    """Return the exit code; a subclass of SystemExit may raise when asked, which counts as a failure."""
    try:
        return exit.code
    except Exception:
        return 1


def _exit_code(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF if -_LONG <= code < _LONG else 0xFF
    try:
        text = str(code)
    except Exception:
        text = ""
    _say(text)
    return 1


def _say(text: str) -> None:
    if sys.stderr is None:
        with suppress(OSError):
            os.write(2, f"{text}\n".encode())
        return
    sys.stderr.write(text)
    sys.stderr.write("\n")
    sys.stderr.flush()


def _hide_between(error: BaseException) -> None:
    """Take frames of gapless that call other code out of the tracebacks of an error and of those behind it."""
    seen: set[int] = set()
    errors: list[BaseException | None] = [error]
    while errors:
        one = errors.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        errors += [one.__cause__, one.__context__]
        frames = []
        trace = one.__traceback__
        while trace is not None:
            frames.append(trace)
            trace = trace.tb_next
        below = None
        for trace in reversed(frames):
            if below is None or not trace.tb_frame.f_code.co_filename.startswith(_OWN_FOLDER):
                trace.tb_next = below
                below = trace
        one.__traceback__ = below


def _is_below_the_script(trace: TracebackType) -> bool:
    return trace.tb_frame.f_code.co_filename in (__file__, runpy.__file__, "<frozen runpy>")


def _tell_nothing_once() -> None:
    """Let Python, which tells every interrupt that ends it, not tell this one again."""
    patches = Patches()
    patches.put(sys, "excepthook", lambda *_: patches.take_out())
