"""Functions made in C that do something on the host which a replay would skip."""

from __future__ import annotations

import builtins
import io
import os
import pickle
import select
import socket
import time
import warnings
from datetime import date
from typing import TYPE_CHECKING, Any

from gapless.device.torch_private import changes_of_fft_plans


if TYPE_CHECKING:
    from collections.abc import Callable


LEAVE_OUT = "let it stand in `on_host`, or leave it out of the step"

_CLOCKS = (
    "time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns",
    "process_time", "process_time_ns", "thread_time", "thread_time_ns", "sleep",
)  # fmt: skip
_SYSTEM = (
    "write", "read", "open", "system", "mkdir", "remove", "unlink", "rename", "replace", "rmdir",
    "listdir", "scandir", "stat", "lstat", "kill", "fork", "urandom", "fsync", "truncate", "chdir",
    "link", "symlink", "chmod", "utime", "putenv", "unsetenv", "popen", "pipe", "sendfile", "access",
    "getcwd", "getcwdb",
)  # fmt: skip
_FILES = {"write", "writelines", "flush", "read", "readline", "readlines", "truncate", "readinto"}
_SOCKETS = {"send", "sendall", "sendto", "recv", "recvfrom", "connect", "accept", "recv_into"}
_QUEUES = {"put", "put_nowait", "get", "get_nowait"}


def _named() -> dict[str, dict[int, str]]:
    """Return the functions, by name and id, with the name under which they are reported."""
    found: dict[str, dict[int, str]] = {}

    def add(function: Any, shown: str) -> None:
        name = getattr(function, "__name__", None)
        if name is not None:
            found.setdefault(name, {})[id(function)] = shown

    for name in ("print", "input", "open"):
        add(getattr(builtins, name), name)
    for name in _CLOCKS:
        add(getattr(time, name, None), f"time.{name}")
    for name in _SYSTEM:
        add(getattr(os, name, None), f"os.{name}")
    add(select.select, "select.select")
    add(warnings.warn, "warnings.warn")
    add(warnings.warn_explicit, "warnings.warn")
    add(pickle.dump, "pickle.dump")
    for shown, function in changes_of_fft_plans.items():
        add(function, shown)
    return found


_BY_NAME = _named()
_DATES = {"now", "utcnow", "today"}
_DATABASES = {"execute", "executemany", "executescript", "commit"}
_BY_TYPE = {
    **dict.fromkeys(_FILES, io.IOBase),
    **dict.fromkeys(_SOCKETS, socket.socket.__base__),
}
_OTHERS = {
    "fork_exec": "subprocess", "writerow": "csv.writerow", "writerows": "csv.writerows",
    # Nothing tells of a class that is defined later.
    "__subclasses__": "__subclasses__",
}  # fmt: skip
SUSPECTS = frozenset(_BY_NAME) | _FILES | _SOCKETS | _QUEUES | _DATABASES | _DATES | set(_OTHERS)


def advice_on(effect: str) -> str:
    """Return what to do about an effect, by its name."""
    # Their kernels are in the graph: a replay without them ends the process.
    if effect in changes_of_fft_plans:
        return "do it before training, since a graph needs the plans that it was captured with"
    return LEAVE_OUT


def effect_of(function: Callable[..., Any]) -> str | None:
    """Return the name of what a function does on the host, None if it does nothing.

    Only functions whose name is among `SUSPECTS` do anything.
    """
    name = function.__name__
    shown = _BY_NAME.get(name, {}).get(id(function))
    if shown is not None:
        return shown
    owner = getattr(function, "__self__", None)
    if name in _DATES and isinstance(owner, type) and issubclass(owner, date):
        return f"{owner.__name__}.{name}"
    kind = _BY_TYPE.get(name)
    if kind is not None and isinstance(owner, kind):
        return f"file.{name}"
    if name in _QUEUES and type(owner).__name__ == "SimpleQueue":
        return f"queue.{name}"
    if name in _DATABASES and type(owner).__module__ == "sqlite3":
        return f"sqlite3.{name}"
    return _OTHERS.get(name)
