"""Ways to read Python that no public training script has been seen to use, and that are refused.

What they read, no name in the code says. A step that uses one of them is refused with its line, and what to
write instead.
"""

from __future__ import annotations

import array
import ctypes
import dataclasses
import functools
import io
import operator
import weakref
from types import (
    BuiltinFunctionType,
    FunctionType,
    MappingProxyType,
    MethodDescriptorType,
    MethodType,
    MethodWrapperType,
    ModuleType,
)
from typing import Any, NamedTuple

from gapless.graphs.reads.code_kinds import FOREIGN_PACKAGES
from gapless.graphs.reads.inner_states import is_small_array
from gapless.graphs.reads.known_classes import is_known


class OddRead(NamedTuple):
    """A place in the user's code that reads in such a way.

    Attributes:
        name: of what is used there, such as `operator.attrgetter`.
        site: where, as `file:line`.
        advice: what to write instead.
    """

    name: str
    site: str
    advice: str


# What is called, by id, with the advice.
_CALLED = {
    id(function): (function, advice)
    for function, advice in {
        operator.attrgetter: "name the attribute",
        operator.methodcaller: "name the method",
        globals: "name the variable",
        weakref.ref: "hold the object itself",
        weakref.proxy: "hold the object itself",
        functools.singledispatch: "choose the function with `isinstance`",
    }.items()
}

# What is held from call to call, by its class.
_HELD: dict[type, str] = {
    operator.attrgetter: "name the attribute",
    operator.methodcaller: "name the method",
    MappingProxyType: "read the dictionary behind it",
    **dict.fromkeys((weakref.ref, *weakref.ProxyTypes), "hold the object itself"),
    weakref.WeakSet: "use a set",
    weakref.WeakKeyDictionary: "use a dictionary",
    weakref.WeakValueDictionary: "use a dictionary",
    io.StringIO: "keep a str",
    io.BytesIO: "keep bytes",
    array.array: "use a list or a tensor",
    bytearray: "use a list or a tensor",
    memoryview: "use a list or a tensor",
    **dict.fromkeys((type({}.keys()), type({}.values()), type({}.items())), "make it in the step"),
}

# Functions that read attributes which no code names, of whatever they are given.
READERS = (vars, dir, dataclasses.asdict, dataclasses.astuple)

_MADE_IN_C = (BuiltinFunctionType, MethodDescriptorType)
_BOUND = (BuiltinFunctionType, MethodWrapperType, MethodType)

_DATA_OF_C: type = ctypes.c_int.__mro__[2]


def advice_on_call(function: Any) -> str | None:
    """Return what to write instead of a call of a function or class; None if it is followed."""
    known = _CALLED.get(id(function))
    if known is not None:
        return known[1]
    # No other object is asked for attributes: to look one up may run code of the user's, which may raise.
    if type(function) is FunctionType and {"dispatch", "registry"} <= vars(function).keys():
        return "choose the function with `isinstance`"
    return None


def advice_on_arguments(function: Any) -> str | None:
    """Return what to write instead if a function is given an object that lasts; None if what it reads is followed.

    Frames of the user's that it calls are watched. What a package's function made in C reads of an object,
    nobody sees.
    """
    if any(function is reader for reader in READERS):
        return "name the attributes"
    if type(function) not in _MADE_IN_C:
        return None
    module = getattr(function, "__objclass__", function).__module__
    is_foreign = module is None or module.partition(".")[0] in FOREIGN_PACKAGES
    return None if is_foreign else "give it the numbers or tensors that it needs"


def advice_on_object(value: Any) -> str | None:
    """Return what to use instead of an object that lasts from call to call; None if it is followed.

    Args:
        value: not a part of the batch, nor made in the call.
    """
    kind = type(value)
    advice = _HELD.get(kind)
    if advice is not None:
        return advice
    if kind in _BOUND and _is_bound_in_c(value):
        return "call the method of the object itself"
    if issubclass(kind, _DATA_OF_C):
        return "use a list or a tensor"
    if is_iterator_made_in_c(kind):
        return "make it in the step"
    if kind.__module__ == "torch.utils.data.dataloader" and hasattr(kind, "__next__"):
        return "take the batch outside of the step"
    if is_small_array(value):
        return None
    if kind.__module__ == "numpy" and not is_known(kind):
        return "make it a tensor outside of the step"
    return None if is_known(kind) else "read it outside of the step, and pass what it gives"


def _is_bound_in_c(method: Any) -> bool:
    """Return whether a method that is kept is made in C, and of an object that may change."""
    if isinstance(method, MethodType) and isinstance(method.__func__, FunctionType):
        return False
    owner = method.__self__
    if owner is None or isinstance(owner, ModuleType | type):
        return False
    # That of a function made by pybind11 is a note to itself.
    return not type(owner).__name__.startswith(("PyCapsule", "pybind11"))


def is_iterator_made_in_c(kind: type) -> bool:
    """Return whether objects of a class move on as they are read, such as those of `iter`, `zip` and `itertools`."""
    return kind.__module__ in ("builtins", "itertools") and hasattr(kind, "__next__")


def shown_name(value: Any, name: str) -> str:
    """Return the name of a function or class, or that of an object, with its class.

    Args:
        value: the function, class or object.
        name: as the code says it.
    """
    is_named = isinstance(value, type) or (callable(value) and hasattr(value, "__qualname__"))
    named = value if is_named else type(value)
    module = getattr(named, "__module__", None)
    is_plain = module in (None, "builtins") or module.startswith("_")
    shown = str(named.__qualname__) if is_plain else f"{module}.{named.__qualname__}"
    return shown if is_named else f"{name} ({shown})"
