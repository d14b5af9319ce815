"""Functions and objects made in C: which read attributes that no code names, hold others, or move on."""

from __future__ import annotations

import copy
import dataclasses
import functools
import re
from typing import Any

from gapless.graphs.reads.chains import CHANGING_METHODS


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

# Methods of containers made in C that change them and return nothing of what they hold.
ONLY_CHANGING = CHANGING_METHODS - {"pop", "popleft", "popitem", "setdefault", "send"}


# Such as `{0.rate}` and `{rows[0]}`.
_FIELD_OF_AN_OBJECT = re.compile(r"\{\w*[.\[]")


def reads_attributes_in_text(function: Any) -> bool:
    """Return whether a function is `format` of a text whose fields name attributes or items."""
    text = getattr(function, "__self__", None)
    return type(text) is str and _FIELD_OF_AN_OBJECT.search(text) is not None


def reads_attributes(function: Any) -> bool:
    """Return whether a function reads attributes of what it is given, or hands it to one that does."""
    if isinstance(function, functools.partial):
        return any(map(reads_attributes, (function.func, *function.args)))
    return any(function is reader for reader in ATTRIBUTE_READERS)
