"""Every private name of CPython that the product uses: one each, why, and what happens where it is missing.

A release of Python may take any of them away. Each is looked up here and nowhere else; those of torch are in
`gapless.device.torch_private`. A test looks each of them up, and another takes each away. All were seen in
Python 3.11 to 3.14. Nothing here imports torch: signals, scripts and the command line need these names before.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import runpy
import signal
import sys
import threading
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn


if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType


class PrivateName(NamedTuple):
    """A private name of somebody else's that the product uses.

    Attributes:
        path: of the name, from its module on.
        why: it is used.
        missing: what happens in a release without it.
        place: "anywhere"; "gpu" if only builds for GPUs have it; "objects" if objects have it and their
            class shows nothing of it.
        releases: of its package that have it, as a requirement says it; empty if all that were seen do.
    """

    path: str
    why: str
    missing: str
    place: str = "anywhere"
    releases: str = ""


# In the order of this file.
NAMES: list[PrivateName] = []


def _look_up(holder: Any, name: str, *, why: str, missing: str, otherwise: Any) -> Any:
    """Return an attribute of a module, or what stands for it where it is missing."""
    NAMES.append(PrivateName(f"{holder.__name__}.{name}", why, missing))
    return getattr(holder, name, otherwise)


# --- frames and threads ---


def _frame_above(depth: int = 0) -> FrameType:
    """Return the caller's frame, or one above it, from a traceback."""
    try:
        raise ValueError("call stack is not deep enough")
    except ValueError as error:
        trace = error.__traceback__
        frame = None if trace is None else trace.tb_frame.f_back
        for _ in range(depth):
            frame = None if frame is None else frame.f_back
        if frame is None:
            raise
        return frame


# The function itself: one around it would be a frame more.
getframe: Callable[..., FrameType] = _look_up(
    sys,
    "_getframe",
    why="The user's line is found by walking up from a call.",
    missing="The frame is taken from a traceback, which is slower.",
    otherwise=_frame_above,
)

current_frames: Callable[[], dict[int, FrameType]] = _look_up(
    sys,
    "_current_frames",
    why="Another thread reports a rank that waits long, with the line that it waits in.",
    missing="The line is not named.",
    otherwise=dict,
)

# What `threading.current_thread` makes for a thread that Python has not started.
DummyThread: Any = _look_up(
    threading,
    "_DummyThread",
    why="Threads of autograd have no name of their own; the others have one.",
    missing="Such a thread is named as Python names it.",
    otherwise=(),
)

NAMES.append(
    PrivateName(
        "threading._shutdown",
        why="A script's threads are waited for as at Python's end, an executor's too, which nothing public wakes.",
        missing="They are waited for at Python's own end, after the report.",
    )
)


def wait_for_threads() -> None:
    """Wait for threads that are no daemons, as Python does before it ends.

    Looked up when it is called: some libraries replace it.
    """
    shut_down: Callable[[], object] = getattr(threading, "_shutdown", _nothing)
    shut_down()


def _nothing() -> None:
    return None


# --- the end of a process ---

NAMES.append(
    PrivateName(
        "os._exit",
        why="A process ends from a thread, or where Python's own end would hang or take seconds.",
        missing="The process kills itself, and its exit code is that of a kill.",
    )
)


def exit_now(code: int) -> NoReturn:
    """End this process without Python's end. Tools that measure it replace what does it."""
    end: Callable[[int], NoReturn] = getattr(os, "_exit", _kill_this_process)
    end(code)


def _kill_this_process(code: int) -> NoReturn:
    del code  # a process that is killed has none
    while True:
        os.kill(os.getpid(), signal.SIGKILL)


run_exit_functions: Callable[[], object] = _look_up(
    atexit,
    "_run_exitfuncs",
    why="A rank that leaves without Python's end still runs what was registered for it.",
    missing="A rank does not run what was registered for its end.",
    otherwise=_nothing,
)

NAMES.append(
    PrivateName(
        "multiprocessing.process.BaseProcess._config",
        why="A process that ends at once removes the folder of its workers' sockets.",
        missing="The folder is left among the temporary files.",
        place="objects",
    )
)


def temporary_folder() -> str | None:
    """Return the folder that `multiprocessing` keeps for this process; None if there is none."""
    import multiprocessing

    settings = getattr(multiprocessing.current_process(), "_config", None) or {}
    found: str | None = settings.get("tempdir")
    return found


# --- scripts that are run as modules ---


def _details_of_module(name: str, error: Callable[[str], Exception]) -> tuple[str, Any, Any]:
    """Return the name, spec and code of a module, as `runpy` does but with fewer explanations."""
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        name = f"{name}.__main__"
        spec = importlib.util.find_spec(name)
    code = None if spec is None else getattr(spec.loader, "get_code", lambda _: None)(name)
    if code is None:
        raise error(f"No module named {name}")
    return name, spec, code


ModuleError: Any = _look_up(
    runpy,
    "_Error",
    why="What `python -m` says of a module that cannot be run is said likewise.",
    missing="The error has a text of its own.",
    otherwise=ImportError,
)

details_of_module: Callable[[str, Any], tuple[str, Any, Any]] = _look_up(
    runpy,
    "_get_module_details",
    why="A module is found as `python -m` finds it; `pdb` uses this function likewise.",
    missing="It is found by `importlib`, with fewer explanations of what is wrong.",
    otherwise=_details_of_module,
)


# --- warnings ---

NAMES.append(
    PrivateName(
        "warnings._showwarnmsg",
        why="Torch's warnings of waits are heard whatever the script does with warnings.",
        missing="`warnings.showwarning` is replaced, which is not called where a script gathers warnings.",
    )
)

# What shows a warning that the filters let pass; `warnings.catch_warnings` leaves it as it is. None where it
# is missing.
SHOW_WARNING: str | None = "_showwarnmsg" if hasattr(warnings, "_showwarnmsg") else None

NAMES.append(
    PrivateName(
        "warnings._filters_mutated",
        why="A filter stays in front of those of the script, whenever the script changes its own.",
        missing="Filters of the script may come before it; Python 3.14 calls it `_filters_mutated_lock_held`.",
    )
)

# What Python calls whenever somebody has changed the filters of warnings.
FILTERS_CHANGED: tuple[str, ...] = tuple(
    name for name in ("_filters_mutated", "_filters_mutated_lock_held") if hasattr(warnings, name)
)


# --- workers of a loader ---

NAMES.append(
    PrivateName(
        "multiprocessing.queues.Queue._on_queue_feeder_error",
        why="A worker reports a batch that it cannot hand over; Python would print the error and drop the batch.",
        missing="The training process waits for that batch until its time limit.",
    )
)


def report_what_queues_drop(report: Callable[[Any, Exception, Any], None]) -> None:
    """Let a function be called with the queue, the error and what could not be sent, until the process ends.

    Only a worker process calls this, which does nothing else.
    """
    from multiprocessing.queues import Queue

    Queue._on_queue_feeder_error = report  # type: ignore[attr-defined]
