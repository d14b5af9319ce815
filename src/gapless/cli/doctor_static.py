"""`gapless doctor --static`: look at files, run nothing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from gapless import __version__
from gapless.cli.doctor_reports import sarif_of, write_report
from gapless.cli.output import print_result, write
from gapless.cli.parser import UsageError
from gapless.doctor.static.look import look_at
from gapless.errors import UserError
from gapless.records.finding import Session
from gapless.report.json_reports import session_json
from gapless.report.session_text import static_text


if TYPE_CHECKING:
    from argparse import Namespace

    from gapless.records.finding import Finding


def look(options: Namespace) -> tuple[Finding, ...]:
    """Look at files, write the report, and return the findings.

    Raises:
        UsageError: a path is not there.
        UserError: no file could be looked at, or the report cannot be written.
    """
    paths = [Path(name) for name in options.script]
    for path in paths:
        if not path.exists():
            raise UsageError(f"cannot look at {path}: there is no such file or folder")
    seen = look_at(paths)
    for reason in seen.unread:
        write(sys.stderr, f"gapless: warning: {reason}\n")
    session = Session(
        command=("--static", *options.script),
        device="",
        versions={"gapless": __version__},
        findings=seen.findings,
        notes=seen.unread,
    )
    if options.private:
        from gapless.doctor.session.private import private

        session = private(session)
    text = _formatted(session, options.format, num_files=seen.num_files)
    if options.out is None:
        print_result(text.rstrip("\n"))
    else:
        write_report(Path(options.out), text)
    if seen.unread and not seen.num_files:
        raise UserError("no file could be looked at; the warnings above say why")
    return seen.findings


def _formatted(session: Session, form: str, *, num_files: int) -> str:
    if form == "json":
        return session_json(session)
    if form == "sarif":
        return sarif_of(session.findings, session.notes)
    return static_text(session.findings, num_files=num_files)
