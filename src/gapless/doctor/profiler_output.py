"""Keep what torch's profiler writes to the script's stderr by itself, such as that it has begun."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from contextlib import contextmanager
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from collections.abc import Iterator

_STDERR = 2

# "WARNING:2026-01-31 12:00:00 17:17 CuptiActivityProfiler.cpp:52] ..."
_OF_THE_PROFILER = re.compile(rb"[A-Z]+:\d{4}-\d\d-\d\d \S+ \d+:\d+ \S+:\d+\]")


@contextmanager
def profiler_output(said: list[str]) -> Iterator[None]:
    """Put the profiler's lines of the body into a list; lines of others are written out after it."""
    try:
        sys.stderr.flush()
        saved = os.dup(_STDERR)
    except (OSError, ValueError, AttributeError):
        yield  # there is no stderr
        return
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), _STDERR)
        try:
            yield
        finally:
            os.dup2(saved, _STDERR)
            os.close(saved)
            file.seek(0)
            for line in file:
                if _OF_THE_PROFILER.match(line):
                    said.append(line.decode(errors="replace").strip())
                else:
                    _write(line)


def _write(line: bytes) -> None:
    while line:
        line = line[os.write(_STDERR, line) :]
