"""Run a program under the doctor's eyes, and say what was seen of it."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gapless.doctor.session.launcher import launcher_as_module, with_command_in_workers
from gapless.doctor.session.make_session import findings_so_far, make_session
from gapless.doctor.session.rank_sessions import FOLDER_VARIABLE, Rank, collect, this_rank
from gapless.doctor.watching.step_source import watched_by
from gapless.doctor.watching.watch import Watch
from gapless.scripts import run_program, wait_for_threads


if TYPE_CHECKING:
    from collections.abc import Sequence

    from gapless.doctor.watching.watch import WatchSettings
    from gapless.records.finding import Session
    from gapless.scripts import Ending, Program


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a run.

    Attributes:
        ending: of the program.
        session: what was seen; None if the doctor failed, or if another process reports.
        problem: what went wrong with the doctor itself; empty if nothing.
    """

    ending: Ending
    session: Session | None = None
    problem: str = ""


def watch_program(program: Program, settings: WatchSettings) -> Outcome:
    """Run a program to its end, and return how it ended and what was seen.

    Of several processes that run it together the first on each machine has the session of all; of
    processes that the program forks, none has one.

    Args:
        program: to run.
        settings: how it is watched.
    """
    rank, problem = _begun_rank()
    os.environ.pop(FOLDER_VARIABLE, None)  # or programs that this one starts would report as ranks
    watch = Watch(settings, findings_so_far=findings_so_far)
    with watched_by(watch):
        watch.start()
        ending = run_program(program)
        if not watch.is_in_its_process:
            return Outcome(ending=ending)
        wait_for_threads()
        watch.end()
    try:
        session: Session | None = make_session(watch, command=program.words)
        if rank is not None and session is not None:
            session = _of_all_ranks(rank, session)
    except Exception as error:
        problem = problem or watch.problem or f"{type(error).__name__}: {error}"
        return Outcome(ending=ending, problem=problem)
    return Outcome(ending=ending, session=session, problem=problem or watch.problem)


def _begun_rank() -> tuple[Rank | None, str]:
    """Return which rank this process is, and why it cannot meet the others; None: it is alone."""
    rank = this_rank()
    try:
        if rank is not None:
            rank.begin()
    except OSError as error:
        return None, f"this process reports for itself alone: {error}"
    return rank, ""


def _of_all_ranks(rank: Rank, session: Session) -> Session | None:
    rank.put(session)
    if not rank.reports:
        return None
    rank.wait_for_others()
    return collect(rank.folder)


def watch_launch(program: Program, options: Sequence[str]) -> Outcome:
    """Run torchrun, with each of its processes under the doctor's eyes; the session is of all.

    Args:
        program: torchrun, by whichever name.
        options: of `gapless doctor` in each process.
    """
    launcher = launcher_as_module(program)
    try:
        watched = with_command_in_workers(launcher, ["doctor", *options])
        folder = Path(tempfile.mkdtemp(prefix="gapless-doctor-"))
    except Exception as error:
        ending = run_program(launcher)
        wait_for_threads()
        return Outcome(ending=ending, problem=f"{type(error).__name__}: {error}")
    os.environ[FOLDER_VARIABLE] = str(folder)
    ending = run_program(watched or launcher)
    wait_for_threads()
    session = collect(folder)
    if session is not None:
        return Outcome(ending=ending, session=session)
    problem = "the processes that torchrun started run no Python script"
    return Outcome(
        ending=ending,
        problem=problem if watched is None else "no process that torchrun started has reported",
    )
