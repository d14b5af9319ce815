"""Progress of long work as lines, for where there is no terminal to draw a bar on."""

from __future__ import annotations

import sys
from time import perf_counter

from gapless.cli.output import fitting, write
from gapless.report.text import duration


# A line for each title at once, and then one in this time.
_LINE_SECONDS = 10.0


class StepLines:
    """Writes to standard error what is under way and how far it is, one line after the other.

    Args:
        every_seconds: least time between two lines of one title.
        at_once: whether a title is written when it is new; otherwise work that is short stays silent.
    """

    def __init__(self, *, every_seconds: float = _LINE_SECONDS, at_once: bool = True) -> None:
        self._every = every_seconds
        self._at_once = at_once
        self._began = self._written = perf_counter()
        self._title = ""

    def show(self, title: str, done: int, *, of: int) -> None:
        """Write a line if the title is new or the last line is long ago."""
        now = perf_counter()
        is_new = self._at_once and title != self._title
        if not is_new and now - self._written < self._every:
            return
        self._title, self._written = title, now
        line = f"{duration(now - self._began)}  {title}  {done}/{of}"
        write(sys.stderr, f"{fitting(line, sys.stderr)}\n")

    def close(self) -> None:
        """Do nothing: lines need no end."""
