"""How far long work is: a bar on a terminal, and lines where there is none."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gapless.cli.bar import StepBar
from gapless.cli.step_lines import StepLines


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def steps_shown(unit: str, *, at_once: bool = True) -> StepBar | StepLines:
    """Return what shows steps on standard error.

    Args:
        unit: what is counted.
        at_once: whether a line is written when something begins; a bar is drawn anyway.
    """
    is_terminal = sys.stderr is not None and sys.stderr.isatty()
    return StepBar(unit) if is_terminal else StepLines(at_once=at_once)


@contextmanager
def translating(*, of: int, done: int = 0) -> Iterator[Callable[[int], None]]:
    """Show in the body how many sentences are translated; what it yields is told of each batch.

    Args:
        of: sentences in all.
        done: of these before.
    """
    shown = steps_shown("sentences", at_once=False)

    def on_done(count: int) -> None:
        nonlocal done
        done += count
        shown.show("translating", done, of=of)

    try:
        yield on_done
    finally:
        shown.close()
