"""The names `float` and `int` in the user's modules, where they read numbers of tensors.

Python lets `float(x)` return nothing but a float. So in a module that uses the name for calls alone,
and reads a tensor by one, the name stands for a function that may return a late number.
"""

from __future__ import annotations

import ast
import builtins
import linecache
from functools import cache
from typing import TYPE_CHECKING, Any

from gapless.unnoticed import Patches


if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType


class NumberNames:
    """Puts functions in the place of `float` and `int`, module by module.

    Args:
        calls: what they are to be, by name.
    """

    def __init__(self, calls: dict[str, Callable[..., Any]]) -> None:
        self._calls = calls
        self._patches = Patches()

    def put_where_called(self, frame: FrameType | None, name: str) -> None:
        """Put a function into the module whose code runs in a frame, if it fits there."""
        if frame is None:
            return
        names = frame.f_globals
        path = frame.f_code.co_filename
        if name in names or names.get("__file__") != path or not _is_for_calls_alone(path, name):
            return
        self._patches.put(_Names(names), name, self._calls[name])

    def take_out(self) -> None:
        """Let all names be Python's again."""
        self._patches.take_out()


class _Names:
    """The global names of a module as attributes, whatever the module is."""

    def __init__(self, names: dict[str, Any]) -> None:
        self.__dict__ = names


@cache
def _is_for_calls_alone(path: str, name: str) -> bool:
    """Return whether a file uses a name for calls, and for nothing else but annotations."""
    try:
        tree = ast.parse("".join(linecache.getlines(path)))
    except (SyntaxError, ValueError):
        return False
    fine: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            fine.add(node.func)
        notes = [getattr(node, "annotation", None), getattr(node, "returns", None)]
        fine.update(part for note in notes if isinstance(note, ast.AST) for part in ast.walk(note))
    uses = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == name]
    return hasattr(builtins, name) and bool(uses) and all(node in fine for node in uses)
