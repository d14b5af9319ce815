"""Recognize an error that says that memory is short, whoever raised it."""

from __future__ import annotations

import re


_PHRASES = (
    "out of memory",
    "can't allocate memory",
    "not enough memory",
    "Cannot allocate memory",
)

_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}

_ASKED = re.compile(r"tried to allocate ([\d.]+) (bytes|KiB|MiB|GiB)", re.IGNORECASE)


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
