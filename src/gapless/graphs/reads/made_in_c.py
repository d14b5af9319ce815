"""Functions and objects made in C: which read attributes that no code names, hold others, or move on."""

from __future__ import annotations

import copy
import dataclasses
import functools
from typing import Any

from gapless.graphs.reads.code_reads import CHANGING_METHODS


# Functions that read attributes which no code names, of whatever they are given.
ATTRIBUTE_READERS = (
    getattr,
    vars,
    dir,
    copy.copy,
    copy.deepcopy,
    dataclasses.asdict,
    dataclasses.astuple,
    dataclasses.replace,
)

# Methods of every object, made in C, that read attributes which no code names.
READERS_OF_OBJECT = frozenset(
    ["__getattribute__", "__getstate__", "__reduce__", "__reduce_ex__", "__dir__"]
)

# Methods of containers made in C that change them and return nothing of what they hold.
ONLY_CHANGING = CHANGING_METHODS - {"pop", "popleft", "popitem", "setdefault", "send"}


def reads_attributes(function: Any) -> bool:
    """Return whether a function reads attributes of what it is given, or hands it to one that does."""
    if isinstance(function, functools.partial):
        return any(map(reads_attributes, (function.func, *function.args)))
    return any(function is reader for reader in ATTRIBUTE_READERS)


def names_of_protocol(kind: Any) -> tuple[str, ...]:
    """Return the attributes that `isinstance` asks for, of a protocol; none of other classes."""
    if isinstance(kind, tuple):
        return tuple(name for each in kind for name in names_of_protocol(each))
    if not isinstance(kind, type) or not vars(kind).get("_is_runtime_protocol", False):
        return ()
    bases = [base for base in kind.__mro__ if vars(base).get("_is_protocol", False)]
    names = {
        name for base in bases for name in (*vars(base), *vars(base).get("__annotations__", ()))
    }
    return tuple(sorted(name for name in names if not name.startswith(("__", "_abc_", "_is_"))))
