"""Which object is captured where it stands, and by what: the object itself keeps it.

Graphs hold on to the weights that they train. In a table of objects elsewhere they would keep the
object alive, even if the table held it weakly; so they live in the object's own `__dict__`. Copies and files of
the object are ordinary objects: a captor becomes None there.
"""

from __future__ import annotations

from typing import Any


# Where an object keeps what captures it.
ATTRIBUTE = "_gapless_captor"


def captor_of(target: Any) -> Any:
    """Return what captures an object, such as a `ModuleInPlace`; None if nothing does."""
    found = getattr(target, "__dict__", {}).get(ATTRIBUTE)
    # A shallow copy has the captor of the original.
    return found if found is not None and found.target is target else None


def set_captor(target: Any, captor: Any) -> None:
    """Let an object be captured by this from now on; None: by nothing."""
    vars(target).pop(ATTRIBUTE, None)
    if captor is not None:
        vars(target)[ATTRIBUTE] = captor


def left_out(_: Any = None) -> tuple[Any, ...]:
    """Return what a captor's `__reduce__` returns, which this can be: graphs are left out."""
    return type(None), ()
