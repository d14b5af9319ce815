"""Functions of libraries that look at the types of numbers, and are given Python's own."""

from __future__ import annotations

import json
import operator
import pickle
import statistics
from collections import deque
from functools import wraps
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch.compiler import is_dynamo_compiling

from gapless.trials.late_number import forced, is_late, without_late
from gapless.trials.late_tensor import LateTensor
from gapless.unnoticed import Patches, unseen


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


# What is written by its name, or by its bytes.
_OF_NO_PARTS = (
    *(type, ModuleType, FunctionType, BuiltinFunctionType, torch.Tensor),
    *(str, bytes, int, float, complex, type(None)),
)

# Functions that make tensors of Python's numbers.
_MAKERS = ("tensor", "as_tensor", "asarray")

# On which the functions of `statistics` are built that ask for the types of numbers.
_OF_STATISTICS = ("_sum", "_ss")


def teach_takers() -> Patches:
    """Let these functions take late numbers, whether there or not; return what to take out again.

    Late numbers outlive the windows in which they are read.
    """
    patches = Patches()
    for holder, name in ((torch, "save"), (pickle, "dump"), (pickle, "dumps")):
        patches.put(holder, name, _of_plain_objects(getattr(holder, name)))
    patches.put_method(torch.Tensor, "new_tensor", _or_with_plain_numbers)
    for name in _MAKERS:
        patches.put(torch, name, _or_with_plain_numbers(getattr(torch, name)))
    patches.put_method(json.JSONEncoder, "iterencode", _encoding_plain_numbers)
    for name in _OF_STATISTICS:
        if hasattr(statistics, name):
            patches.put(statistics, name, _of_plain_numbers(getattr(statistics, name)))
    return patches


def _of_plain_objects(write: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that finds no late numbers in what it writes: they are no numbers to a file."""

    @wraps(write)
    def write_plain(value: Any, *args: Any, **kwargs: Any) -> Any:
        with unseen:
            return write(_with_plain_parts(value, set()), *args, **kwargs)

    return write_plain


def _with_plain_parts(value: Any, seen: set[int]) -> Any:
    """Put plain numbers in the place of late ones in an object; return it, or what stands for it.

    Sync: Blocks the host until they are there.
    """
    if is_late(value):
        return forced(value, "saves")
    if type(value) is LateTensor:
        value.late.forced("saves")
        return value.plain
    if id(value) in seen or isinstance(value, _OF_NO_PARTS):
        return value
    seen.add(id(value))
    if type(value) is tuple:
        parts = tuple(_with_plain_parts(each, seen) for each in value)
        return value if all(map(operator.is_, parts, value)) else parts
    _put_plain_parts_into(value, seen)
    return value


def _put_plain_parts_into(value: Any, seen: set[int]) -> None:
    if isinstance(value, list | deque):
        for place, each in enumerate(value):
            if (part := _with_plain_parts(each, seen)) is not each:
                value[place] = part
    for names in (value, getattr(value, "__dict__", None)):
        if isinstance(names, dict):
            for name, each in list(names.items()):
                if (part := _with_plain_parts(each, seen)) is not each:
                    names[name] = part


def _or_with_plain_numbers(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that hands on plain numbers where late ones are not taken."""

    def call_with_plain(*args: Any, **kwargs: Any) -> Any:
        if is_dynamo_compiling():
            return call(*args, **kwargs)
        with unseen:
            try:
                return call(*args, **kwargs)
            except (RuntimeError, TypeError, ValueError):
                if not _holds_late(args):
                    raise
            return call(*without_late(args, f"hands {call.__name__}()"), **kwargs)

    return call_with_plain


def _encoding_plain_numbers(encode: Callable[..., Any]) -> Callable[..., Any]:
    """Return an encoder's method that writes plain numbers, also those that its `default` returns."""

    def encode_plain(encoder: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        use = "hands json"
        own, default = vars(encoder).get("default"), encoder.default
        encoder.default = lambda other: without_late(default(other), use)
        with unseen:
            try:
                return encode(encoder, without_late(value, use), *args, **kwargs)
            finally:
                if own is None:
                    del encoder.default
                else:
                    encoder.default = own

    return encode_plain


def _of_plain_numbers(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that hands on plain numbers out of an iterable."""

    def call_with_plain(data: Iterable[Any], *args: Any, **kwargs: Any) -> Any:
        return call((forced(each, "computes with") for each in data), *args, **kwargs)

    return call_with_plain


def _holds_late(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(map(_holds_late, value))
    return is_late(value)
