"""Run a program under the doctor's eyes, and say what was seen of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.doctor.active import watched_by
from gapless.doctor.conclusion import conclude
from gapless.doctor.watching import Watch
from gapless.scripts import run_program, wait_for_threads


if TYPE_CHECKING:
    from gapless.doctor.watch_settings import WatchSettings
    from gapless.records.finding import Session
    from gapless.scripts import Ending, Program


def diagnose_program(
    program: Program, settings: WatchSettings
) -> tuple[Ending, Session | None, str]:
    """Run a program to its end, and return how it ended and what was seen.

    There is no session in a process that the program has forked.

    Args:
        program: to run.
        settings: how it is watched.

    Returns:
        How the program ended; the session; and what went wrong with the doctor itself, or "".
    """
    watch = Watch(settings)
    with watched_by(watch):
        watch.start()
        ending = run_program(program)
        if not watch.is_in_its_process:
            return ending, None, ""
        wait_for_threads()
        watch.end()
    try:
        return ending, conclude(watch, command=program.words), watch.problem
    except Exception as error:
        return ending, None, watch.problem or f"{type(error).__name__}: {error}"
