"""Finds the lines of any script that make the host wait, and what each of them costs.

It knows nothing of gapless' own loop: `scripts` runs the user's file, this room watches it, `report`
shows what was found.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from gapless.doctor.watching.step_source import step


if TYPE_CHECKING:
    from collections.abc import Iterator

    from gapless.doctor.session.notebook import Watched


__all__ = ["step", "watch"]


@contextmanager
def watch(*, step: str = "auto", warm_up: int = 10, num_steps: int = 20) -> Iterator[Watched]:
    """Watch the body as `gapless doctor` watches a script.

    Args:
        step: what a step is: "auto", "optimizer", "loader", the class of an optimizer, or the name of
            a function.
        warm_up: steps before the first that counts.
        num_steps: that are timed, then as many in which lines are looked for, then half as many under
            torch's profiler.

    Yields:
        What was seen, once the body is over.

    Raises:
        UserError: an argument cannot be.

    Sync: Does not block the host, but for what the body does.
    """
    from gapless.doctor.session.notebook import watched_body
    from gapless.doctor.watching.watch import WatchSettings

    settings = WatchSettings(step=step, warm_up=warm_up, num_steps=num_steps)
    with watched_body(settings) as watched:
        yield watched
