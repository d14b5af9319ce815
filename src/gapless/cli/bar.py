"""A line of a terminal that is written over and over."""

from __future__ import annotations

import sys
from time import perf_counter
from typing import TYPE_CHECKING

from gapless.cli.output import terminal_columns, write
from gapless.report.progress_text import bar_text
from gapless.report.text import cut, display_width


if TYPE_CHECKING:
    from typing import TextIO


BAR_SECONDS = 0.2

_STEP_BAR_COLUMNS = 40

# To the start of the line, and erase it.
_CLEAR = "\r\x1b[K"

# A terminal shows ^C where the line ends; one more column, or some of them go on to the next line.
_LEFT_FREE = 3


class Bar:
    """One line of a terminal, below everything else that is printed.

    The cursor stays visible and at the end of the line, so that nothing has to bring it back.

    Args:
        stream: leads to the terminal.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.text = ""

    def columns(self) -> int:
        """Return the columns that there are for a text."""
        return max(1, terminal_columns(self._stream) - _LEFT_FREE)

    def show(self, text: str) -> None:
        """Write a line over the last one."""
        self.text = text
        if text:
            # Cut, because a line that wraps could not be taken away.
            write(self._stream, f"{_CLEAR}{cut(text, self.columns())}")

    def clear(self) -> None:
        """Take the line away."""
        if self.text:
            write(self._stream, _CLEAR)
        self.text = ""


class Timer:
    """Says a few times a second at most that something may be shown.

    Args:
        every_seconds: may pass between two times.
    """

    def __init__(self, *, every_seconds: float) -> None:
        self.every_seconds = every_seconds
        self.restart()

    def restart(self) -> None:
        """Count from now on."""
        self._shown = perf_counter()

    def is_due(self) -> bool:
        """Return whether it is time, and count from now on if so."""
        if perf_counter() - self._shown < self.every_seconds:
            return False
        self._shown = perf_counter()
        return True


class StepBar:
    """Shows on a terminal's standard error what is under way and how far it is.

    Draws only when it is called, a few times a second at most: a thread that draws would take
    time from what is measured.

    Args:
        unit: what is counted.
    """

    def __init__(self, unit: str) -> None:
        self._unit = unit
        self._title = ""
        self._bar = Bar(sys.stderr)
        self._timer = Timer(every_seconds=BAR_SECONDS)

    def show(self, title: str, done: int, *, of: int) -> None:
        """Move the bar of this title, or draw it."""
        if title != self._title:
            self._title = title
            self._timer.restart()
        elif self._bar.text and not self._timer.is_due():
            return
        count = f" {done}/{of} {self._unit}"
        room = self._bar.columns() - display_width(title) - 1 - display_width(count)
        drawn = bar_text(done, of=of, columns=min(room, _STEP_BAR_COLUMNS))
        self._bar.show(f"{title} {drawn}{count}")

    def close(self) -> None:
        """Take the bar away."""
        self._bar.clear()
        self._title = ""
