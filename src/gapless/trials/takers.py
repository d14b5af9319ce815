"""Functions of libraries that look at the types of numbers, and are given Python's own."""

from __future__ import annotations

import json
import statistics
from typing import TYPE_CHECKING, Any

import torch
from torch.compiler import is_dynamo_compiling

from gapless.trials.late_number import forced, is_late, without_late
from gapless.unnoticed import Patches, unseen


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


# Functions that make tensors of Python's numbers.
_MAKERS = ("tensor", "as_tensor", "asarray")

# On which the functions of `statistics` are built that ask for the types of numbers.
_OF_STATISTICS = ("_sum", "_ss")


def teach_takers() -> Patches:
    """Let these functions take late numbers, whether there or not; return what to take out again.

    Late numbers outlive the windows in which they are read.
    """
    patches = Patches()
    patches.put_method(torch.Tensor, "new_tensor", _or_with_plain_numbers)
    for name in _MAKERS:
        patches.put(torch, name, _or_with_plain_numbers(getattr(torch, name)))
    patches.put_method(json.JSONEncoder, "iterencode", _encoding_plain_numbers)
    for name in _OF_STATISTICS:
        if hasattr(statistics, name):
            patches.put(statistics, name, _of_plain_numbers(getattr(statistics, name)))
    return patches


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
