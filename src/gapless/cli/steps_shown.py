"""How far long work is: a bar on a terminal, and lines where there is none."""

from __future__ import annotations

import sys
from typing import Self

from gapless.cli.bar import StepBar
from gapless.cli.output import draws_bars
from gapless.cli.step_lines import StepLines


def steps_shown(unit: str, *, at_once: bool = True) -> StepBar | StepLines:
    """Return what shows steps on standard error.

    Args:
        unit: what is counted.
        at_once: whether a line is written when something begins; a bar is drawn anyway.
    """
    return StepBar(unit) if draws_bars(sys.stderr) else StepLines(at_once=at_once)


class Translating:
    """Shows how many sentences a command has translated, until its body ends.

    Args:
        of: sentences in all; None: nobody knows, so nothing is shown.

    Attributes:
        done: sentences so far. Search does not count empty ones: set it after each part.
    """

    def __init__(self, *, of: int | None) -> None:
        self._of = of
        self._shown = steps_shown("sentences", at_once=False)
        self.done = 0

    def __enter__(self) -> Self:
        """Return this, which is told of each batch."""
        return self

    def __exit__(self, *_: object) -> None:
        """Take the bar away."""
        self.clear()

    def add(self, count: int) -> None:
        """Count the sentences of a finished batch, and show how many are done."""
        self.done += count
        if self._of is not None:
            self._shown.show("translating", self.done, of=self._of)

    def clear(self) -> None:
        """Take the bar away, so that something can be printed; the next batch draws it again."""
        self._shown.close()
