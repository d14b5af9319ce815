"""How far work is: a bar of tqdm's on a terminal, else a plain line every few seconds.

Bars are drawn on standard error, and only when something happens: no thread draws, and nothing waits for a
device.
"""

from __future__ import annotations

import sys
import threading
import warnings
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Any, Self

from gapless.cli.output import (
    as_flags,
    draws_bars,
    fitting,
    print_result,
    say_wrapped,
    terminal_columns,
    warn,
    write,
)
from gapless.report.figures import duration
from gapless.report.terminal_text import table_lines
from gapless.report.training_text import (
    EpochTitle,
    epoch_line,
    progress_bar,
    progress_line,
    waits_table,
)
from gapless.unnoticed import Patches


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from tqdm import tqdm

    from gapless.records.epoch_record import Progress
    from gapless.records.training import RunProgress, TrainingEpoch


BAR_SECONDS = 0.2

# Between two lines. Those of a run become rarer, so that days of training can be read.
LINE_SECONDS, RARE_LINE_SECONDS = 10.0, 60.0

# A terminal shows ^C where the line ends, and another when it is typed again; one more column, or some
# terminals go on to the next line.
_LEFT_FREE = 5

_NO_EPOCH = EpochTitle(
    number=0, num_epochs=0, num_batches=0, num_done=0, first_read=0, earlier_loss=None
)


class _StandardError:
    """Standard error as tqdm writes to it: one that is closed, or on a full disk, ends no command."""

    def write(self, text: str) -> None:
        """Write text at once."""
        # To take a bar away tqdm writes spaces over it, which do not reach the ^C behind it.
        write(sys.stderr, "\r\x1b[K" if text == "\r" else text)

    def flush(self) -> None:
        """Do nothing: all is written."""


def _can_draw() -> bool:
    """Return whether bars can be drawn: on a terminal, by tqdm, which the core has no need of."""
    if not draws_bars(sys.stderr):
        return False
    try:
        import tqdm  # noqa: F401
    except ImportError:
        return False
    return True


def _columns() -> int:
    return max(1, terminal_columns(sys.stderr) - _LEFT_FREE)


def _make_bar(**settings: Any) -> tqdm[Any]:
    """Return a bar that disappears at its end."""
    from tqdm import tqdm

    class Bar(tqdm):  # type: ignore[type-arg]  # it takes none when it runs
        # A thread would take time from what is measured.
        monitor_interval = 0

    # The lock that tqdm makes fixes the start method of multiprocessing, which a user's workload may set.
    Bar.set_lock(threading.RLock())
    return Bar(
        leave=False,
        file=_StandardError(),
        # No terminal draws these wider than one column.
        ascii="-=",
        mininterval=BAR_SECONDS,
        miniters=1,
        ncols=_columns(),
        **settings,
    )


class Steps:
    """Shows on standard error what is under way and how far it is, until its `with` block ends.

    Args:
        unit: what is counted.
        at_once: whether a line is written when something begins; a bar is drawn anyway.
    """

    def __init__(self, unit: str, *, at_once: bool = True) -> None:
        self._unit = unit
        self._at_once = at_once
        self._draws = _can_draw()
        self._bar: tqdm[Any] | None = None
        self._title = ""
        self._began = self._written = perf_counter()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Take the bar away."""
        self.clear()

    def show(self, title: str, done: int, of: int) -> None:
        """Move the bar of this title, or write a line if the last one is long ago."""
        is_new = title != self._title
        self._title = title
        if not self._draws:
            self._show_line(done, of=of, is_new=is_new)
        elif is_new or self._bar is None:
            self.clear()
            self._bar = _make_bar(desc=title, unit=f" {self._unit}", initial=done, total=of)
        else:
            self._bar.ncols = _columns()
            self._bar.update(done - self._bar.n)

    def clear(self) -> None:
        """Take the bar away, so that something can be printed; what is shown next draws it again."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def print_result(self, lines: Iterable[str]) -> None:
        """Print a part of the result as soon as it is known, in the place of the bar."""
        self.clear()
        print_result("\n".join(lines))

    def _show_line(self, done: int, *, of: int, is_new: bool) -> None:
        now = perf_counter()
        if (is_new and self._at_once) or now - self._written >= LINE_SECONDS:
            self._written = now
            line = f"{duration(now - self._began)}  {self._title}  {done}/{of}"
            write(sys.stderr, f"{fitting(line, sys.stderr)}\n")


class Translating:
    """Shows how many sentences a command has translated, until its body ends.

    Args:
        of: sentences in all; None: nobody knows, so nothing is shown.

    Attributes:
        done: sentences so far. Search does not count empty ones: set it after each part.
    """

    def __init__(self, *, of: int | None) -> None:
        self._of = of
        self._steps = Steps("sentences", at_once=False)
        self.done = 0

    def __enter__(self) -> Self:
        """Return this, to which each batch is reported."""
        return self

    def __exit__(self, *_: object) -> None:
        """Take the bar away."""
        self.clear()

    def add(self, count: int) -> None:
        """Count the sentences of a finished batch, and show how many are done."""
        self.done += count
        if self._of is not None:
            self._steps.show("translating", self.done, self._of)

    def clear(self) -> None:
        """Take the bar away, so that something can be printed."""
        self._steps.clear()


class TrainingProgress:
    """Prints what a training run does, and shows its running epoch.

    On a terminal that is a bar with figures. Elsewhere it is a line every ten seconds, later every minute.
    Inside of its `with` block Python's warnings stand above the bar; to leave it takes the bar away.

    Args:
        waits_each_epoch: print the table of waits after each epoch.
    """

    def __init__(self, *, waits_each_epoch: bool = False) -> None:
        self._waits_each_epoch = waits_each_epoch
        # Beside an output that goes elsewhere, lines are for whoever reads that.
        self._draws = draws_bars(sys.stdout) and _can_draw()
        self._bar: tqdm[Any] | None = None
        self._shapes = Steps("shapes")
        self._title = _NO_EPOCH
        self._validation: Mapping[str, float] = {}
        self._run_began = perf_counter()
        # Losses and weights come in bulk: these are of the newest read.
        self._epoch_began = self._read_at = self._run_began
        self._weight = 0.0
        self._due = 0.0
        self._show_warning = warnings.showwarning
        self._patches = Patches()

    def __enter__(self) -> Self:
        self._show_warning = warnings.showwarning
        self._patches.put(warnings, "showwarning", self._warn_above_bar)
        return self

    def __exit__(self, *error: object) -> None:
        """Take the bars away, so that what follows begins on a line of its own."""
        self._patches.take_out()
        self._take_bar_away()
        self._shapes.clear()

    def started(self, facts: dict[str, str]) -> None:
        """Print what is in force."""
        indent = max(map(len, facts)) + 2
        for line in table_lines([*facts.items()], num_left=2):
            self._say(line, indent=indent)

    def noted(self, text: str) -> None:
        """Print it."""
        self._say(as_flags(text))

    def warned(self, text: str) -> None:
        """Print it to standard error."""
        with self._above_bar():
            warn(text)

    def capturing_ahead(self, done: int, *, of: int) -> None:
        """Show how many shapes are prepared; the first takes longest, as layers are compiled with it."""
        if self._draws:
            self._shapes.show("preparing", done, of)
        if done == of:
            self._shapes.clear()
            self._say(f"prepared {of} shapes")

    def epoch_started(self, title: EpochTitle) -> None:
        """Start the epoch's clock, and show which one begins."""
        self._title = title
        self._epoch_began = self._read_at = perf_counter()
        self._weight = 0.0
        if not self._draws:
            # An epoch that is over sooner has a line at its end.
            self._due = self._epoch_began + LINE_SECONDS
        self._draw(str(self._title))

    def batch_queued(self, progress: Progress, *, run: RunProgress) -> None:
        """Move the bar, or print a line, if that was not done for a while."""
        now = perf_counter()
        if progress.weight != self._weight:
            self._weight, self._read_at = progress.weight, now
        if now < self._due:
            return
        seconds = self._read_at - self._epoch_began
        epoch = (self._title, progress, run)
        if self._draws:
            self._due = now + BAR_SECONDS
            text = progress_bar(
                *epoch, seconds=seconds, validation=self._validation, columns=_columns()
            )
            self._draw(text, done=self._title.num_done + progress.batch)
        else:
            rare = (now - self._run_began) / RARE_LINE_SECONDS
            self._due = now + min(RARE_LINE_SECONDS, max(LINE_SECONDS, rare))
            say_wrapped(progress_line(*epoch, seconds=seconds, validation=self._validation))

    def validating(self) -> None:
        """Say so where the bar was."""
        where = "" if self._title is _NO_EPOCH else f"{self._title}  "
        self._draw(f"{where}validating")

    def validated(self, figures: Mapping[str, float]) -> None:
        """Keep the figures for what is shown from now on."""
        self._validation = figures

    def epoch_ended(self, record: TrainingEpoch) -> None:
        """Print the epoch's line; nothing of one that a resumed run had done before."""
        self._take_bar_away()
        if self._title is _NO_EPOCH:
            return
        self._say(epoch_line(record, num_epochs=self._title.num_epochs))
        if self._waits_each_epoch:
            self._say(waits_table(record.work))

    def testing(self, count: int) -> None:
        """Say that the test set is being translated."""
        self._say(f"translating {count} test sentences with the final model")

    def _say(self, text: str, *, indent: int = 2) -> None:
        with self._above_bar():
            say_wrapped(text, indent=indent)

    def _draw(self, text: str, *, done: int = 0) -> None:
        """Draw a line over the last one; `{bar}` in it is a bar. Nothing where none can be drawn."""
        if not self._draws:
            return
        if self._bar is None:
            self._bar = _make_bar(bar_format=text, initial=done, total=self._title.num_batches)
            return
        self._bar.bar_format, self._bar.ncols = text, _columns()
        self._bar.total, self._bar.n = self._title.num_batches, done
        self._bar.refresh()

    def _take_bar_away(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    @contextmanager
    def _above_bar(self) -> Iterator[None]:
        if self._bar is None:
            yield
            return
        self._bar.clear()
        try:
            yield
        finally:
            self._bar.refresh()

    def _warn_above_bar(self, *arguments: Any, **named: Any) -> None:
        """Show a warning of any library as it would be without us."""
        with self._above_bar():
            self._show_warning(*arguments, **named)
