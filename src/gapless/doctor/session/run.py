"""Run a program under the doctor's eyes, and say what was seen of it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

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


class Reports(Protocol):
    """Takes what was seen to the user."""

    def keep(self, session: Session, *, is_over: bool) -> None:
        """Write what is known so far where it outlives this process, however that ends.

        Args:
            session: what was seen so far.
            is_over: whether nothing more is watched.
        """

    def take(self, session: Session | None, problem: str, *, is_failure: bool) -> None:
        """Write all reports.

        Args:
            session: what was seen; None if the doctor could not say, or if another process reports.
            problem: what went wrong with the doctor itself; empty if nothing.
            is_failure: whether the script failed.
        """

    def print_text(self) -> None:
        """Print what is to be printed, once; otherwise it is printed when the process ends."""


def watch_program(program: Program, settings: WatchSettings, reports: Reports) -> Ending:
    """Run a program to its end, report what was seen, and return how it ended.

    Of several processes that run it together the first on each machine has the session of all; of
    processes that the program forks, none has one.

    Args:
        program: to run.
        settings: how it is watched.
        reports: told of what is known at each border of windows, before the traceback of a program
            that fails, or at its end.
    """
    run = _WatchedProgram(program, settings, reports)
    with watched_by(run.watch):
        run.watch.start()
        ending = run_program(program, before_traceback=run.end_before_traceback)
        if run.watch.is_in_its_process:
            wait_for_threads()
            run.end(is_failure=not ending.is_success)
    return ending


class _WatchedProgram:
    """A program that is watched, and the reports of it."""

    def __init__(self, program: Program, settings: WatchSettings, reports: Reports) -> None:
        self._rank, self._problem = _begun_rank()
        os.environ.pop(FOLDER_VARIABLE, None)  # or programs that this one starts would report too
        self._command = program.words
        self._reports = reports
        self._is_reported = False
        self._complete: Session | None = None
        self.watch = Watch(settings, findings_so_far=findings_so_far, on_seen=self._keep)

    def end_before_traceback(self) -> None:
        """Report; several processes wait for each other, which no traceback should."""
        if self._rank is None and self.watch.is_in_its_process:
            self.end(is_failure=True)
            self._reports.print_text()

    def end(self, *, is_failure: bool) -> None:
        """Watch nothing any more, and report, once."""
        self.watch.end()
        if self._is_reported:
            return
        self._is_reported = True
        session: Session | None = None
        problem = self._problem or self.watch.problem
        try:
            session = self._complete or make_session(self.watch, command=self._command)
            if self._rank is not None:
                session = _of_all_ranks(self._rank, session)
        except Exception as error:
            session, problem = None, problem or f"{type(error).__name__}: {error}"
        self._reports.take(session, problem, is_failure=is_failure)

    def _keep(self, watch: Watch) -> None:
        """Write what is known so far."""
        session = make_session(watch, command=self._command)
        # Without a GPU the files that the script imports later count as well.
        if watch.is_complete and watch.has_gpu and not watch.wants_variants:
            self._complete = session
        if self._rank is not None:
            self._rank.put(session, is_over=False)
        if self._rank is None or self._rank.reports:
            self._reports.keep(session, is_over=watch.is_complete)


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


def watch_launch(program: Program, options: Sequence[str], reports: Reports) -> Ending:
    """Run torchrun, with each of its processes under the doctor's eyes; one report is of all.

    Args:
        program: torchrun, by whichever name.
        options: of `gapless doctor` in each process.
        reports: told of what was seen at the end.
    """
    launcher = launcher_as_module(program)
    session: Session | None = None
    try:
        watched = with_command_in_workers(launcher, ["doctor", *options])
        folder = Path(tempfile.mkdtemp(prefix="gapless-doctor-"))
    except Exception as error:
        ending = run_program(launcher)
        wait_for_threads()
        problem = f"{type(error).__name__}: {error}"
    else:
        os.environ[FOLDER_VARIABLE] = str(folder)
        ending = run_program(watched or launcher)
        wait_for_threads()
        session = collect(folder)
        problem = "no process that torchrun started has reported"
        if watched is None:
            problem = "the processes that torchrun started run no Python script"
    reports.take(session, "" if session else problem, is_failure=not ending.is_success)
    return ending
