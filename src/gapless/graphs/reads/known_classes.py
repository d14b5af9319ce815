"""Classes made in C whose objects a step may read: they never change, or what they hold is compared.

What an object of another class made in C holds, and what its methods and operators read, nobody sees.
"""

from __future__ import annotations

import abc
import contextvars
import datetime as dt
import functools
import io
import operator
import random
import re
import struct
import threading
import weakref
from types import (
    BuiltinFunctionType,
    CellType,
    ClassMethodDescriptorType,
    CodeType,
    FunctionType,
    GenericAlias,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodType,
    MethodWrapperType,
    ModuleType,
    SimpleNamespace,
    UnionType,
    WrapperDescriptorType,
)
from typing import Any, NamedTuple

from gapless.graphs.reads.value_places import CONTAINERS


class _Named(NamedTuple):
    field: None


_FIELD_OF_A_NAMED_TUPLE = type(vars(_Named)["field"])

# Objects of these never change, or change nothing that a read of them shows.
_UNCHANGING: tuple[type, ...] = (
    int, float, complex, str, bytes, type(None), type(Ellipsis), type(NotImplemented), slice, range,
    type, ModuleType, CodeType, GenericAlias, UnionType, BuiltinFunctionType, MethodWrapperType,
    MethodDescriptorType, WrapperDescriptorType, ClassMethodDescriptorType, GetSetDescriptorType,
    MemberDescriptorType, _FIELD_OF_A_NAMED_TUPLE, re.Pattern, re.Match, struct.Struct,
    operator.itemgetter, dt.date, dt.time, dt.timedelta, dt.tzinfo, BaseException,
    type(threading.Lock()), type(threading.RLock()),
)  # fmt: skip

# What objects of these hold is followed or compared, or a write of it is seen.
_COMPARED: tuple[type, ...] = (
    *CONTAINERS, FunctionType, MethodType, CellType, property, staticmethod, classmethod,
    functools.partial, type(functools.cache(len)), SimpleNamespace, threading.local,
    contextvars.ContextVar, *random.Random.__bases__, *io.IOBase.__bases__,
)  # fmt: skip

# Asked by id: a class of the user's may say for itself how classes are compared.
_KNOWN = frozenset(map(id, (*_UNCHANGING, *_COMPARED)))

# All classes of these: torch's, types, and the notes that abstract classes make for themselves.
_PACKAGES = ("torch", "typing", "_" + abc.__name__)
_OF_NUMPY = (
    "generic",
    "dtype",
    "ufunc",
    "ArrayFunctionDispatcher",
    "Generator",
    "BitGenerator",
    "RandomState",
)
# Such a record can be written to, as an array can.
_WRITTEN_OF_NUMPY = ("void",)

_IS_HEAP_TYPE = 1 << 9
_IS_IMMUTABLE = 1 << 8
_MADE_IN_C = (MethodDescriptorType, WrapperDescriptorType)

# Of classes, by their id, whether they are known.
_FOUND: dict[int, tuple[weakref.ref[type], bool]] = {}


def is_known(kind: type) -> bool:
    """Return whether what objects of a class hold is followed, compared, or never changes."""
    found = _FOUND.get(id(kind))
    if found is not None and found[0]() is kind:
        return found[1]
    number = id(kind)
    known = _is_known(kind)
    _FOUND[number] = (weakref.ref(kind, lambda _: _FOUND.pop(number, None)), known)
    return known


def _is_known(kind: type) -> bool:
    owners = [owner for owner in _of_class(kind, "__mro__") if owner is not object]
    named = [(_package_of(owner), _of_class(owner, "__name__")) for owner in owners]
    if any(package == "numpy" and name in _WRITTEN_OF_NUMPY for package, name in named):
        return False
    # Proxies and mocks say of themselves that they are of another class.
    if any("__class__" in _of_class(owner, "__dict__") for owner in owners):
        return False
    return (
        any(id(owner) in _KNOWN for owner in owners)
        or any(package in _PACKAGES for package, _ in named)
        or any(package == "numpy" and name.strip("_") in _OF_NUMPY for package, name in named)
        or not any(map(_is_made_in_c, owners))
    )


def _is_made_in_c(kind: type) -> bool:
    """Return whether a class itself is made in C, not by a `class` statement."""
    flags = _of_class(kind, "__flags__")
    if not flags & _IS_HEAP_TYPE or flags & _IS_IMMUTABLE:
        return True
    entries = dict(_of_class(kind, "__dict__"))
    return isinstance(entries.get("__new__"), BuiltinFunctionType) or any(
        isinstance(part, _MADE_IN_C) and part.__objclass__ is kind for part in entries.values()
    )


def _package_of(kind: type) -> str:
    module = _of_class(kind, "__module__")
    return module.partition(".")[0] if isinstance(module, str) else ""


def _of_class(kind: type, name: str) -> Any:
    """Return what a class is, not what its own class makes of it."""
    return type.__getattribute__(kind, name)
