"""Progress of a training run: a bar on a terminal, plain lines on a pipe."""

from __future__ import annotations

import os
import sys
from time import perf_counter
from typing import TYPE_CHECKING, Self, TextIO

from gapless.cli.output import say, write
from gapless.report.epoch_text import epoch_table
from gapless.report.text import duration, share


if TYPE_CHECKING:
    from gapless.records.epoch_record import Progress
    from gapless.records.training import TrainingEpoch


_BAR_SECONDS = 0.2
_LINE_SECONDS = 10.0
_BAR_WIDTH = 40

# To the start of the line, and erase it.
_CLEAR = "\r\x1b[K"


def make_observer() -> PlainObserver | TerminalObserver:
    """Return the observer that suits standard output."""
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    return TerminalObserver() if is_terminal else PlainObserver()


class _EpochClock:
    """When an epoch began, and when something was last shown."""

    def __init__(self, *, every_seconds: float) -> None:
        self._every = every_seconds
        self.start()

    def start(self) -> None:
        self._began = self._shown = perf_counter()

    def is_due(self) -> bool:
        if perf_counter() - self._shown < self._every:
            return False
        self._shown = perf_counter()
        return True

    def seconds(self) -> float:
        return perf_counter() - self._began


def _figures(progress: Progress, *, num_updates: int, seconds: float) -> str:
    loss = "-" if progress.mean_loss is None else f"{progress.mean_loss:.4f}"
    waits = progress.waits.count / max(1, progress.batch)
    return (
        f"step {num_updates}  loss {loss}  {progress.weight / seconds:,.0f} tokens/s  "
        f"{waits:.2f} waits/batch  gap {share(progress.gap_share)}"
    )


def _facts(facts: dict[str, str]) -> str:
    width = max(map(len, facts))
    return "\n".join(f"{name.ljust(width)}  {text}" for name, text in facts.items())


def _warn(text: str) -> None:
    write(sys.stderr, f"gapless: warning: {text}\n")


class PlainObserver:
    """Prints lines: one every ten seconds, and a table at each epoch's end."""

    def __init__(self) -> None:
        self._clock = _EpochClock(every_seconds=_LINE_SECONDS)
        self._epoch = ""
        self._num_batches = 0

    def started(self, facts: dict[str, str]) -> None:
        """Print what is in force."""
        say(_facts(facts))

    def noted(self, text: str) -> None:
        """Print it."""
        say(text)

    def warned(self, text: str) -> None:
        """Print it to standard error."""
        _warn(text)

    def capturing_ahead(self, done: int, *, of: int) -> None:
        """Say when all shapes are prepared."""
        if done == of:
            say(f"prepared {of} shapes")

    def epoch_started(self, epoch: int, *, num_batches: int, num_epochs: int) -> None:
        """Start the epoch's clock."""
        self._epoch = f"epoch {epoch}/{num_epochs}"
        self._num_batches = num_batches
        self._clock.start()

    def batch_queued(self, progress: Progress, *, num_updates: int) -> None:
        """Print a line if the last one is long ago."""
        if self._clock.is_due():
            seconds = self._clock.seconds()
            left = seconds / progress.batch * (self._num_batches - progress.batch)
            say(
                f"{self._epoch}  batch {progress.batch}/{self._num_batches}  "
                f"{_figures(progress, num_updates=num_updates, seconds=seconds)}  "
                f"epoch ends in {duration(left)}"
            )

    def epoch_ended(self, record: TrainingEpoch) -> None:
        """Print the epoch's table."""
        say(epoch_table(record))

    def testing(self, count: int) -> None:
        """Say that the test set is being translated."""
        say(f"translating {count} test sentences with the final model")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Do nothing: lines need no end."""


class TerminalObserver:
    """Draws a bar for the running epoch, and prints a table at its end.

    To leave its `with` block takes the bar away.
    """

    def __init__(self) -> None:
        self._bar = _Bar(sys.stdout)
        self._clock = _EpochClock(every_seconds=_BAR_SECONDS)
        self._title = ""
        self._num_batches = 0
        self._shapes = StepBar("shapes")

    def started(self, facts: dict[str, str]) -> None:
        """Print what is in force."""
        self._say(_facts(facts))

    def noted(self, text: str) -> None:
        """Print it, above the bar if there is one."""
        self._say(text)

    def warned(self, text: str) -> None:
        """Print it to standard error, above the bar if there is one."""
        shown = self._bar.text
        self._bar.clear()
        _warn(text)
        self._bar.show(shown)

    def capturing_ahead(self, done: int, *, of: int) -> None:
        """Draw a bar; the first shape takes longest, as layers are compiled with it."""
        self._shapes.show("preparing", done, of=of)
        if done == of:
            self._shapes.close()

    def epoch_started(self, epoch: int, *, num_batches: int, num_epochs: int) -> None:
        """Draw an empty bar."""
        self._title = f"epoch {epoch}/{num_epochs}"
        self._num_batches = num_batches
        self._bar.draw(self._title, 0, of=num_batches)
        self._clock.start()

    def batch_queued(self, progress: Progress, *, num_updates: int) -> None:
        """Move the bar if it has not moved for a while."""
        if not self._clock.is_due():
            return
        seconds = self._clock.seconds()
        figures = _figures(progress, num_updates=num_updates, seconds=seconds)
        left = seconds / progress.batch * (self._num_batches - progress.batch)
        self._bar.draw(
            self._title, progress.batch, of=self._num_batches, rest=f" {figures}  {duration(left)}"
        )

    def epoch_ended(self, record: TrainingEpoch) -> None:
        """Take the bar away and print the epoch's table."""
        self._bar.clear()
        self._say(epoch_table(record))

    def testing(self, count: int) -> None:
        """Say that the test set is being translated."""
        self._say(f"translating {count} test sentences with the final model")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Take the bars away, so that what follows begins on a line of its own."""
        self._bar.clear()
        self._shapes.close()

    def _say(self, text: str) -> None:
        shown = self._bar.text
        self._bar.clear()
        say(text)
        self._bar.show(shown)


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
        self._bar = _Bar(sys.stderr)
        self._clock = _EpochClock(every_seconds=_BAR_SECONDS)

    def show(self, title: str, done: int, *, of: int) -> None:
        """Move the bar of this title, or draw it."""
        if title != self._title:
            self._title = title
            self._clock.start()
        elif self._bar.text and not self._clock.is_due():
            return
        self._bar.draw(title, done, of=of, rest=self._unit)

    def close(self) -> None:
        """Take the bar away."""
        self._bar.clear()
        self._title = ""


class _Bar:
    """One line of a terminal that is written over and over."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.text = ""

    def draw(self, title: str, done: int, *, of: int, rest: str = "") -> None:
        """Show how much is done, as a bar and in numbers."""
        full = _BAR_WIDTH * min(done, of) // max(1, of)
        bar = self._drawable("━" * full, "=" * full) + " " * (_BAR_WIDTH - full)
        self.show(f"{title} {bar} {done}/{of} {rest}".rstrip())

    def show(self, text: str) -> None:
        """Write a line over the last one."""
        self.text = text
        if text:
            # Cut, because a line that wraps could not be taken away.
            write(self._stream, f"{_CLEAR}{text[: _columns(self._stream) - 1]}")

    def clear(self) -> None:
        """Take the line away."""
        if self.text:
            write(self._stream, _CLEAR)
        self.text = ""

    def _drawable(self, text: str, plain: str) -> str:
        try:
            text.encode(self._stream.encoding or "ascii")
        except UnicodeEncodeError:
            return plain
        return text


def _columns(stream: TextIO) -> int:
    """Return the width of the terminal; COLUMNS wins, as elsewhere."""
    try:
        return (
            int(os.environ.get("COLUMNS") or os.get_terminal_size(stream.fileno()).columns) or 80
        )
    except (OSError, ValueError):
        return 80
