"""Run a script, or torchrun with one, and capture what it trains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gapless.doctor.session.launcher import launcher_as_module, with_command_in_workers
from gapless.running.capturing import Capturing
from gapless.scripts import run_program, wait_for_threads


if TYPE_CHECKING:
    from collections.abc import Sequence

    from gapless.running.captured_objects import CapturedObjects
    from gapless.scripts import Ending, Program


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a run.

    Attributes:
        ending: of the program.
        captured: what ran as graphs; None if another process says so.
    """

    ending: Ending
    captured: CapturedObjects | None = None


def run_captured(program: Program) -> Outcome:
    """Run a program to its end, and capture what it trains."""
    capturing = Capturing()
    capturing.start()
    ending = run_program(program, hides_between=True)
    if not capturing.is_in_its_process:
        return Outcome(ending=ending)
    wait_for_threads()
    return Outcome(ending=ending, captured=capturing.end())


def run_as_written(program: Program) -> Ending:
    """Run a program to its end, as Python would."""
    ending = run_program(program)
    wait_for_threads()
    return ending


def run_launcher(program: Program, options: Sequence[str]) -> Ending:
    """Run torchrun, each of whose processes captures what it trains.

    Args:
        program: torchrun, by whichever name.
        options: of `gapless run` in each process.
    """
    launcher = launcher_as_module(program)
    return run_as_written(with_command_in_workers(launcher, ["run", *options]) or launcher)
