"""The reports of `gapless doctor`: which there are, and where they go."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from gapless.cli.last_words import LastWords
from gapless.cli.output import print_result, terminal_columns, write
from gapless.cli.parser import UsageError
from gapless.errors import UserError
from gapless.records.timeline import Timeline
from gapless.report.difference_text import difference_text
from gapless.report.json_reports import difference_json, session_json
from gapless.report.perfetto import perfetto_json
from gapless.report.session_text import session_text, static_text


if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Sequence

    from gapless.records.finding import Finding, Session
    from gapless.records.session_difference import SessionDifference


# The first line of a report that follows what a script has printed.
HEADING = "gapless doctor"

# Of a report that goes to a file or a pipe.
_COLUMNS = 100


class Reports:
    """Writes what was seen; nothing that goes wrong here changes how the script ends.

    Args:
        options: of the command.

    Attributes:
        findings: that were reported.
    """

    def __init__(self, options: Namespace) -> None:
        self.findings: tuple[Finding, ...] = ()
        self._options = options
        self._text = ""
        self._unwritten: list[str] = []
        self._last_words = LastWords()
        self._is_announced = False
        # Absolute: the script may change the working folder.
        self._paths = {
            name: Path(getattr(options, name)).absolute()
            for name in ("out", "save", "html", "perfetto")
            if getattr(options, name) is not None
        }
        # A script may replace sys.stderr.
        self._stream = sys.stderr

    def begin_to_keep(self) -> None:
        """See to it that what `keep` is given is printed however this process ends."""
        self._last_words.begin()

    def keep(self, session: Session, *, is_over: bool) -> None:
        """Write all files, and have the text printed if this process dies.

        Args:
            session: what was seen so far.
            is_over: whether nothing more is watched: then one line says where the report is.
        """
        # A device or a pipe would get the report twice.
        files = [path for path in self._paths.values() if path.is_file() or not path.exists()]
        self._last_words.set(self._written(session, files))
        self._unwritten.clear()
        if is_over and files and not self._is_announced:
            self._is_announced = True
            names = [
                getattr(self._options, name) for name, path in self._paths.items() if path in files
            ]
            write(self._stream, f"gapless: report in {', '.join(names)}\n")

    def take(self, session: Session | None, problem: str, *, is_failure: bool) -> None:
        """Write all files, and keep the findings, and the text for `print_text`.

        Args:
            session: what was seen; None if the doctor could not say, or if another process reports.
            problem: what went wrong with the doctor itself; empty if nothing.
            is_failure: whether the script failed.
        """
        try:
            if session is not None:
                self.findings = session.findings
                self._text = self._written(session, list(self._paths.values()))
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        if self._text and is_failure and session is not None and _has_seen_nothing(session):
            self._text = f"{HEADING}: the script failed before a step was seen\n"
            if self._options.step is not None:
                # First is why no step was seen.
                first = for_reports(session, self._options).notes[:1]
                self._text = f"{HEADING}: the script failed. {''.join(first)}\n"
        self._text += "".join(f"gapless: warning: {reason}\n" for reason in self._unwritten)
        if problem:
            self._text += f"gapless: warning: the doctor failed, the script did not: {problem}\n"
        self._last_words.set(self._text)

    def print_text(self) -> None:
        """Print to standard error what is to go there."""
        text, self._text = self._text, ""
        if text:
            write(self._stream, text)
        self._last_words.set("")

    def _written(self, session: Session, files: Sequence[Path]) -> str:
        """Write those reports that go to some files, and return what is to be printed."""
        session = for_reports(session, self._options)
        form = self._options.format
        text = ""
        if not self._put("out", lambda: _formatted(session, form, to_file=True), files):
            # Also where it could not be written: what was seen is not lost.
            text = _formatted(session, form, to_file=False)
        self._put("save", lambda: session_json(session), files)
        self._put("perfetto", lambda: perfetto_json((_timeline(session), session.findings)), files)
        timeline_file = self._paths["perfetto"].name if "perfetto" in self._paths else ""
        self._put("html", lambda: _page(session, timeline_file), files)
        return text

    def _put(self, name: str, make: Callable[[], str], files: Sequence[Path]) -> bool:
        """Write a report if it is among those, whatever became of the others; return whether it was."""
        path = self._paths.get(name)
        if path is None or path not in files:
            return False
        try:
            _put(path, make())
        except OSError as error:
            self._unwritten.append(f"cannot write {path}: {error.strerror or error}")
            return False
        return True


def _has_seen_nothing(session: Session) -> bool:
    """Whether all that is known is what the syntax of the script shows."""
    return session.steps is None and not any(one.certainty == "seen" for one in session.findings)


def _page(session: Session, timeline_file: str) -> str:
    from gapless.report.html.session_page import session_page

    return session_page(session, timeline_file=timeline_file)


def _timeline(session: Session, *, title: str = "") -> Timeline:
    timeline = session.timeline or Timeline(lanes=(), end_us=0.0)
    return replace(timeline, title=title)


def _formatted(session: Session, form: str, *, to_file: bool) -> str:
    if form == "json":
        return session_json(session)
    if form in ("sarif", "github"):
        return _for_review(session.findings, form)
    if to_file:
        return session_text(session, columns=_COLUMNS)
    columns = terminal_columns(sys.stderr) if _is_terminal(sys.stderr) else _COLUMNS
    text = session_text(session, columns=columns, is_coloured=_is_coloured(sys.stderr))
    return f"{HEADING}\n{text}"


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()


def _is_coloured(stream: TextIO | None) -> bool:
    return _is_terminal(stream) and "NO_COLOR" not in os.environ


def _for_review(findings: Sequence[Finding], form: str, unread: Sequence[str] = ()) -> str:
    """Return findings as SARIF, with what could not be read, or as annotations of GitHub."""
    from gapless.doctor.advice.explanations import explanations, title_of
    from gapless.report.annotations import annotations_text
    from gapless.report.sarif import sarif_json

    titles = {code: title_of(code) for code in explanations()}
    if form == "github":
        return annotations_text(findings, titles=titles)
    return sarif_json(findings, titles=titles, unread=unread)


def _put(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def _write_report(path: Path, text: str) -> None:
    """Write a report to a file.

    Raises:
        UserError: it cannot be written; names the file and says why.
    """
    try:
        _put(path, text)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from error


def for_reports(session: Session, options: Namespace) -> Session:
    """Return a session as reports are to show it: with --private, without what is the user's own."""
    if not options.private:
        return session
    from gapless.doctor.session.private import private

    return private(session)


def _deliver(text: str, options: Namespace) -> None:
    """Write a report to the file of --out, or print it.

    Raises:
        UserError: the file cannot be written.
    """
    if options.out is None:
        print_result(text.rstrip("\n"))
    else:
        _write_report(Path(options.out), text)


# --- two sessions ---


def write_difference(difference: SessionDifference, options: Namespace) -> None:
    """Write all reports of how two sessions differ.

    Raises:
        UserError: one cannot be written.
    """
    if options.perfetto is not None:
        runs = (("before", difference.before), ("after", difference.after))
        drawn = [(_timeline(run, title=name), run.findings) for name, run in runs]
        _write_report(Path(options.perfetto), perfetto_json(*drawn))
    _deliver(_difference(difference, options.format, to_file=options.out is not None), options)


def _difference(difference: SessionDifference, form: str, *, to_file: bool) -> str:
    if form == "json":
        return difference_json(difference)
    if form in ("sarif", "github"):
        raise UsageError(f"--format {form} is of one session; --diff has text and json")
    if to_file or not _is_terminal(sys.stdout):
        return difference_text(difference, columns=_COLUMNS)
    columns = terminal_columns(sys.stdout)
    return difference_text(difference, columns=columns, is_coloured=_is_coloured(sys.stdout))


# --- files that are looked at ---


def write_look(session: Session, options: Namespace, *, num_files: int) -> None:
    """Write the report of what was found in files.

    Args:
        session: the findings, and as notes what could not be read.
        options: of the command.
        num_files: that were looked at.

    Raises:
        UserError: it cannot be written.
    """
    if options.html is not None:
        _write_report(Path(options.html), _page(session, ""))
    _deliver(_of_files(session, options.format, num_files=num_files), options)


def _of_files(session: Session, form: str, *, num_files: int) -> str:
    if form == "json":
        return session_json(session)
    if form in ("sarif", "github"):
        return _for_review(session.findings, form, session.notes)
    return static_text(session.findings, num_files=num_files)
