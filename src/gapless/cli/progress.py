"""Progress of a training run: a bar on a terminal, plain lines on a pipe."""

from __future__ import annotations

import sys
import warnings
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Any, Self

from gapless.cli.bar import BAR_SECONDS, Bar, StepBar, Timer
from gapless.cli.output import as_flags, draws_bars, say_wrapped, warn
from gapless.report.epoch_text import epoch_line, waits_table
from gapless.report.progress_text import EpochTitle, progress_bar, progress_line


if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gapless.records.epoch_record import Progress
    from gapless.records.training import RunProgress, TrainingEpoch


# Between two lines of a file: rarely enough that days of training can be read.
_LINE_SECONDS = (10.0, 60.0)

_NO_EPOCH = EpochTitle(
    number=0, num_epochs=0, num_batches=0, num_done=0, first_read=0, earlier_loss=None
)


def make_observer(*, waits_each_epoch: bool = False) -> PlainObserver | TerminalObserver:
    """Return the observer that suits standard output.

    Args:
        waits_each_epoch: print the table of waits after each epoch.
    """
    kind = TerminalObserver if draws_bars(sys.stdout) else PlainObserver
    return kind(waits_each_epoch=waits_each_epoch)


def _titled(facts: dict[str, str]) -> list[tuple[str, int]]:
    """Return facts as lines, each with the column where its text begins."""
    width = max(map(len, facts)) + 2
    return [(f"{name.ljust(width)}{text}", width) for name, text in facts.items()]


class _ReadClock:
    """Knows when the newest losses and weights of an epoch were read; they come in bulk."""

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Begin an epoch."""
        self._began = self._read_at = perf_counter()
        self._weight = 0.0

    def note(self, progress: Progress) -> None:
        """Take note of a read; to be called after each batch."""
        if progress.weight != self._weight:
            self._weight, self._read_at = progress.weight, perf_counter()

    def seconds(self) -> float:
        """Return the time from the beginning of the epoch to the newest read."""
        return self._read_at - self._began


class PlainObserver:
    """Prints lines: one every ten seconds, later every minute, and one at each epoch's end.

    Args:
        waits_each_epoch: print the table of waits after each epoch.
    """

    def __init__(self, *, waits_each_epoch: bool = False) -> None:
        self._waits_each_epoch = waits_each_epoch
        self._timer = Timer(every_seconds=_LINE_SECONDS[0])
        self._run_began = perf_counter()
        self._clock = _ReadClock()
        self._title = _NO_EPOCH
        self._validation: Mapping[str, float] = {}

    def started(self, facts: dict[str, str]) -> None:
        """Print what is in force."""
        for line, indent in _titled(facts):
            say_wrapped(line, indent=indent)

    def noted(self, text: str) -> None:
        """Print it."""
        say_wrapped(as_flags(text))

    def warned(self, text: str) -> None:
        """Print it to standard error."""
        warn(text)

    def capturing_ahead(self, done: int, *, of: int) -> None:
        """Say when all shapes are prepared."""
        if done == of:
            say_wrapped(f"prepared {of} shapes")

    def epoch_started(
        self,
        epoch: int,
        *,
        num_epochs: int,
        num_batches: int,
        num_done: int,
        first_read: int,
        earlier_loss: float | None,
    ) -> None:
        """Start the epoch's clock."""
        self._title = EpochTitle(
            number=epoch,
            num_epochs=num_epochs,
            num_batches=num_batches,
            num_done=num_done,
            first_read=first_read,
            earlier_loss=earlier_loss,
        )
        self._clock.start()
        self._timer.restart()

    def batch_queued(self, progress: Progress, *, run: RunProgress) -> None:
        """Print a line if the last one is long ago."""
        self._clock.note(progress)
        if not self._timer.is_due():
            return
        often, rarely = _LINE_SECONDS
        run_seconds = perf_counter() - self._run_began
        self._timer.every_seconds = min(rarely, max(often, run_seconds / rarely))
        seconds = self._clock.seconds()
        say_wrapped(
            progress_line(self._title, progress, run, seconds=seconds, validation=self._validation)
        )

    def validating(self) -> None:
        """Do nothing: a line says what came out."""

    def validated(self, figures: Mapping[str, float]) -> None:
        """Keep the figures for the lines to come."""
        self._validation = figures

    def epoch_ended(self, record: TrainingEpoch) -> None:
        """Print the epoch's line; nothing of one that a resumed run had done before."""
        if self._title is _NO_EPOCH:
            return
        say_wrapped(epoch_line(record, num_epochs=self._title.num_epochs))
        if self._waits_each_epoch:
            say_wrapped(waits_table(record.work))

    def testing(self, count: int) -> None:
        """Say that the test set is being translated."""
        say_wrapped(f"translating {count} test sentences with the final model")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Do nothing: lines need no end."""


class TerminalObserver:
    """Draws a bar for the running epoch, and prints a line at its end.

    Inside its `with` block Python's warnings stand above the bar; to leave it takes the bar away.

    Args:
        waits_each_epoch: print the table of waits after each epoch.
    """

    def __init__(self, *, waits_each_epoch: bool = False) -> None:
        self._waits_each_epoch = waits_each_epoch
        self._bar = Bar(sys.stdout)
        self._timer = Timer(every_seconds=BAR_SECONDS)
        self._clock = _ReadClock()
        self._title = _NO_EPOCH
        self._validation: Mapping[str, float] = {}
        self._shapes = StepBar("shapes")
        self._show_warning = warnings.showwarning

    def started(self, facts: dict[str, str]) -> None:
        """Print what is in force."""
        for line, indent in _titled(facts):
            self._say(line, indent=indent)

    def noted(self, text: str) -> None:
        """Print it, above the bar if there is one."""
        self._say(as_flags(text))

    def warned(self, text: str) -> None:
        """Print it to standard error, above the bar if there is one."""
        with self._without_bar():
            warn(text)

    def capturing_ahead(self, done: int, *, of: int) -> None:
        """Draw a bar; the first shape takes longest, as layers are compiled with it."""
        self._shapes.show("preparing", done, of=of)
        if done == of:
            self._shapes.close()

    def epoch_started(
        self,
        epoch: int,
        *,
        num_epochs: int,
        num_batches: int,
        num_done: int,
        first_read: int,
        earlier_loss: float | None,
    ) -> None:
        """Show which epoch begins."""
        self._title = EpochTitle(
            number=epoch,
            num_epochs=num_epochs,
            num_batches=num_batches,
            num_done=num_done,
            first_read=first_read,
            earlier_loss=earlier_loss,
        )
        self._bar.show(str(self._title))
        self._clock.start()

    def batch_queued(self, progress: Progress, *, run: RunProgress) -> None:
        """Move the bar if it has not moved for a while."""
        self._clock.note(progress)
        if not self._timer.is_due():
            return
        self._bar.show(
            progress_bar(
                self._title,
                progress,
                run,
                seconds=self._clock.seconds(),
                validation=self._validation,
                columns=self._bar.columns(),
            )
        )

    def validating(self) -> None:
        """Say so where the bar was."""
        where = "" if self._title is _NO_EPOCH else f"{self._title}  "
        self._bar.show(f"{where}validating")

    def validated(self, figures: Mapping[str, float]) -> None:
        """Keep the figures for the bars to come."""
        self._validation = figures

    def epoch_ended(self, record: TrainingEpoch) -> None:
        """Take the bar away and print the epoch's line; nothing of one that was done before."""
        self._bar.clear()
        if self._title is _NO_EPOCH:
            return
        self._say(epoch_line(record, num_epochs=self._title.num_epochs))
        if self._waits_each_epoch:
            self._say(waits_table(record.work))

    def testing(self, count: int) -> None:
        """Say that the test set is being translated."""
        self._say(f"translating {count} test sentences with the final model")

    def __enter__(self) -> Self:
        warnings.showwarning = self._warn_above
        return self

    def __exit__(self, *error: object) -> None:
        """Take the bars away, so that what follows begins on a line of its own."""
        warnings.showwarning = self._show_warning
        self._bar.clear()
        self._shapes.close()

    def _say(self, text: str, *, indent: int = 2) -> None:
        """Print a text above the bar."""
        with self._without_bar():
            say_wrapped(text, indent=indent)

    @contextmanager
    def _without_bar(self) -> Iterator[None]:
        shown = self._bar.text
        self._bar.clear()
        try:
            yield
        finally:
            self._bar.show(shown)

    def _warn_above(self, *arguments: Any, **named: Any) -> None:
        """Show a warning of any library as it would be without us."""
        with self._without_bar():
            self._show_warning(*arguments, **named)
