"""Recognize an error that says that memory is short, whoever raised it."""

from __future__ import annotations

import re


_PHRASES = (
    "out of memory",
    "can't allocate memory",
    "not enough memory",
    "Cannot allocate memory",
    # Of libraries that a driver's memory is short for: CUBLAS_STATUS_ALLOC_FAILED, or
    # CUBLAS_STATUS_NOT_INITIALIZED where not even their handle has room.
    "ALLOC_FAILED",
    "STATUS_NOT_INITIALIZED",
)

_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}

_ASKED = re.compile(r"tried to allocate ([\d.]+) (bytes|KiB|MiB|GiB)", re.IGNORECASE)
_FREE = re.compile(
    r"total capacity of ([\d.]+ [KMG]iB) of which ([\d.]+ (?:bytes|[KMG]iB)) is free"
)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error of Python, torch or a driver says that memory is short."""
    if isinstance(error, MemoryError):
        return True
    # Torch's own is a RuntimeError, and so is what it raises for the host's memory.
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _PHRASES)


def asked_bytes(error: BaseException) -> int | None:
    """Return how many bytes were asked for; None if the error does not say it."""
    found = _ASKED.search(str(error))
    return found and int(float(found.group(1)) * _UNITS[found.group(2)])


def describe_shortage(error: BaseException) -> str:
    """Return in a few words what an error says: the bytes that were asked for, and those free."""
    asked, free = asked_bytes(error), _FREE.search(str(error))
    if asked is None:
        # Python's own error says nothing, and torch's go on with advice about debugging.
        return str(error).partition("\n")[0] or "the host has no more"
    said = f"{asked:,} bytes were asked for"
    return f"{said}, {free[2]} of {free[1]} are free" if free else said
