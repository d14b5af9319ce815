"""Progress of a training run: a bar on a terminal, plain lines on a pipe."""

from __future__ import annotations

import sys
from time import perf_counter
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress as Bar, TextColumn, TimeRemainingColumn

from gapless.report.text import duration, epoch_table, share


if TYPE_CHECKING:
    from gapless.nmt.run.observer import Observer
    from gapless.records.epoch import EpochRecord, Progress


_BAR_SECONDS = 0.2
_LINE_SECONDS = 10.0


def make_observer() -> Observer:
    """Return the observer that suits standard output."""
    return TerminalObserver() if sys.stdout.isatty() else PlainObserver()


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


class PlainObserver:
    """Prints lines: one every ten seconds, and a table at each epoch's end."""

    def __init__(self) -> None:
        self._clock = _EpochClock(every_seconds=_LINE_SECONDS)
        self._epoch = ""
        self._num_batches = 0

    def started(self, facts: dict[str, str]) -> None:
        """Print what is in force."""
        typer.echo(_facts(facts))

    def noted(self, text: str) -> None:
        """Print it."""
        typer.echo(text)

    def warming_up(self, done: int, *, of: int) -> None:
        """Say when all shapes are warmed up."""
        if done == of:
            typer.echo(f"warmed up {of} shapes")

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
            typer.echo(
                f"{self._epoch}  batch {progress.batch}/{self._num_batches}  "
                f"{_figures(progress, num_updates=num_updates, seconds=seconds)}  "
                f"epoch ends in {duration(left)}"
            )

    def epoch_ended(self, record: EpochRecord) -> None:
        """Print the epoch's table."""
        typer.echo(epoch_table(record))

    def testing(self, count: int) -> None:
        """Say that the test set is being translated."""
        typer.echo(f"translating {count} test sentences with the final model")


class TerminalObserver:
    """Draws a bar for the running epoch, and prints a table at its end."""

    def __init__(self) -> None:
        self._console = Console(highlight=False)
        self._clock = _EpochClock(every_seconds=_BAR_SECONDS)
        self._bar: Bar | None = None
        self._warm_up = StepBar("shapes")

    def started(self, facts: dict[str, str]) -> None:
        """Print what is in force."""
        self._print(_facts(facts))

    def noted(self, text: str) -> None:
        """Print it, above the bar if there is one."""
        self._print(text)

    def warming_up(self, done: int, *, of: int) -> None:
        """Draw a bar; the first shape takes longest, as layers are compiled with it."""
        self._warm_up.show("warming up", done, of=of)
        if done == of:
            self._warm_up.close()

    def epoch_started(self, epoch: int, *, num_batches: int, num_epochs: int) -> None:
        """Draw an empty bar."""
        self._bar = Bar(
            TextColumn(f"epoch {epoch}/{num_epochs}"),
            BarColumn(),
            TextColumn("{task.completed}/{task.total}  {task.fields[figures]}"),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
            refresh_per_second=4,
        )
        self._task = self._bar.add_task("", total=num_batches, figures="")
        self._bar.start()
        self._clock.start()

    def batch_queued(self, progress: Progress, *, num_updates: int) -> None:
        """Move the bar if it has not moved for a while."""
        if self._bar is not None and self._clock.is_due():
            figures = _figures(progress, num_updates=num_updates, seconds=self._clock.seconds())
            self._bar.update(self._task, completed=progress.batch, figures=figures)

    def epoch_ended(self, record: EpochRecord) -> None:
        """Take the bar away and print the epoch's table."""
        if self._bar is not None:
            self._bar.stop()
        self._print(epoch_table(record))

    def testing(self, count: int) -> None:
        """Say that the test set is being translated."""
        self._print(f"translating {count} test sentences with the final model")

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)


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
        self._bar: Bar | None = None
        self._clock = _EpochClock(every_seconds=_BAR_SECONDS)

    def show(self, title: str, done: int, *, of: int) -> None:
        """Move the bar of this title, or draw it."""
        if title != self._title or self._bar is None:
            self._start(title, done, total=of)
        elif self._clock.is_due():
            self._bar.update(self._task, completed=done, refresh=True)

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()
        self._bar = None

    def _start(self, title: str, done: int, *, total: int) -> None:
        self.close()
        self._title = title
        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn(f"{{task.completed}}/{{task.total}} {self._unit}"),
            console=Console(stderr=True, highlight=False),
            transient=True,
            auto_refresh=False,
        )
        self._task = self._bar.add_task(title, total=total, completed=done)
        self._bar.start()
        self._clock.start()
