"""`gapless doctor`."""

from __future__ import annotations

import atexit
import sys
from argparse import ArgumentTypeError
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gapless import __version__
from gapless.cli.output import write
from gapless.cli.parser import UsageError, flag, one_of
from gapless.cli.requirements import require_writable
from gapless.doctor.advice.causes import CODE_OF
from gapless.errors import UserError
from gapless.scripts import Program, check_runs
from gapless.trials import NAMES


if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

    from gapless.cli.parser import Parser
    from gapless.doctor.watching.variant_trials import Variant
    from gapless.records.finding import Finding, Session


DETAILS = """
Runs a script as Python would, watches some of its steps, and tells at its end
which lines made the host wait for the GPU, how often, how long, what that
cost, and what to write instead. Everything after the script is the script's.
The script needs no change, and the exit code is its own.

The report goes to standard error. With --static nothing is run: the files
below PATH are read, and the report goes to standard output.

  gapless doctor train.py --epochs 1
  gapless doctor --stop-after -m package.train
  gapless doctor --static src
  gapless doctor --diff before.session after.session

Exit code: that of the script; 1 if it is 0 and --fail-on found something; 2 a
mistake in what was asked.
"""

# Pairs of options of which only one may be given; docs/doctor.md shows them as a table.
EXCLUDES = (
    ("--static", "--try"),
    ("--static", "--exact"),
    ("--static", "--step"),
    ("--static", "--warm-up"),
    ("--static", "--steps"),
    ("--static", "--stop-after"),
    ("--static", "--save"),
    ("--static", "--perfetto"),
    ("--static", "--diff"),
    ("--static", "-m"),
    ("--diff", "--try"),
    ("--diff", "--exact"),
    ("--diff", "--step"),
    ("--diff", "--warm-up"),
    ("--diff", "--steps"),
    ("--diff", "--stop-after"),
    ("--diff", "--save"),
    ("--diff", "--html"),
    ("--diff", "-m"),
    ("--try", "--stop-after"),
)

_FORMATS = ("text", "json", "sarif", "github")

_WARM_UP, _STEPS = 10, 20


def add_options(parser: Parser) -> None:
    """Add what `run` reads."""
    parser.usage = "gapless doctor [options] (SCRIPT | -m MODULE) ARGS..."
    what = parser.add_group("what is looked at")
    what.add_argument(
        "script",
        nargs="*",
        metavar="SCRIPT ARGS",
        help="file to run, and its arguments; with --static: what to read",
    )
    what.add_argument(
        "-m", dest="module", metavar="MODULE", help="run a module instead of a file, as python -m"
    )
    what.add_argument(
        "--static", action="store_true", help="run nothing: read files, and folders of files"
    )
    what.add_argument(
        "--diff",
        nargs=2,
        metavar=("BEFORE", "AFTER"),
        help="run nothing: compare two files that --save wrote",
    )
    _add_watching(parser)
    _add_reports(parser)
    parser.leave_rest("script", ends_after="-m", unless=("--static", "--diff"))


def _add_watching(parser: Parser) -> None:
    watching = parser.add_group("watching")
    watching.add_argument(
        "--step",
        metavar="NAME",
        help="what a step is: loader, optimizer, the class of an optimizer, or a function of the "
        "script, such as train_step or package.module.Trainer.step [default: a call of the most "
        "frequent optimizer]",
    )
    watching.add_argument(
        "--warm-up",
        type=int,
        metavar="N",
        help=f"steps before the first that counts [default: {_WARM_UP}]",
    )
    watching.add_argument(
        "--steps",
        type=int,
        metavar="N",
        help="steps that are timed, then as many in which lines are looked for, then half as many "
        f"under torch's profiler [default: {_STEPS}]",
    )
    watching.add_argument(
        "--stop-after", action="store_true", help="end the script when enough was watched"
    )
    watching.add_argument(
        "--exact",
        action="store_true",
        help="look for lines by torch's own callbacks, also inside of libraries; they stay in the "
        "process, at a small cost",
    )
    watching.add_argument(
        "--try",
        dest="tries",
        nargs="?",
        const="",
        metavar="NAMES",
        help="measure what mending would gain, in windows of this run, in turns with the script as "
        "written: all variants that may mend a finding, or those of --try=NAMES, with commas between "
        f"them: {', '.join(NAMES)}",
    )


def _add_reports(parser: Parser) -> None:
    reports = parser.add_group("reports")
    reports.add_argument(
        "--out", metavar="FILE", help="write the report there instead of to standard error"
    )
    reports.add_argument("--format", **one_of(_FORMATS), help="of the report [default: text]")
    reports.add_argument("--html", metavar="FILE", help="also write a page for a browser")
    reports.add_argument(
        "--perfetto", metavar="FILE", help="also write the timeline for ui.perfetto.dev"
    )
    reports.add_argument(
        "--save", metavar="FILE", help="also write all that was seen, for a later --diff"
    )
    reports.add_argument(
        "--private",
        action="store_true",
        help="leave source, names of files and functions, and the script's arguments out of all reports",
    )
    reports.add_argument(
        "--fail-on",
        type=_codes,
        metavar="CODES",
        help="exit code 1 if the script ended with 0 and one of these was found, such as "
        "GAP001,GAP004, or any; what is only maybe does not count; with --diff: what is new",
    )


def run(options: Namespace) -> int:
    """Run the script, or read it, and report; return the exit code."""
    _check(options)
    if options.static:
        return 1 if fails(_look(options), options.fail_on) else 0
    if options.diff is not None:
        return 1 if fails(_compare(options), options.fail_on) else 0
    return _run_script(options)


def fails(findings: tuple[Finding, ...], codes: frozenset[str] | None) -> bool:
    """Return whether a finding, one that is not only maybe, has one of the codes of --fail-on."""
    return any(one.code in (codes or ()) for one in findings if one.certainty != "maybe")


# --- a script ---


def _run_script(options: Namespace) -> int:
    from gapless.cli.doctor_reports import Reports
    from gapless.doctor.session.launcher import is_launcher
    from gapless.doctor.session.run import watch_launch, watch_program
    from gapless.doctor.watching.watch import WatchSettings

    program = Program.of(options.script, module=options.module)
    if not is_launcher(program):
        check_runs(program)
    elif options.tries is not None:
        raise UsageError("--try measures one process, but torchrun starts several; leave it out")
    reports = Reports(options)
    # The first that is registered runs last: after everything that the script has to say.
    atexit.register(reports.print_text)
    if is_launcher(program):
        ending = watch_launch(program, _words_for_workers(options), reports)
    else:
        settings = WatchSettings(
            step=options.step or "auto",
            warm_up=_WARM_UP if options.warm_up is None else options.warm_up,
            num_steps=options.steps or _STEPS,
            stops_after=options.stop_after,
            is_exact=options.exact,
            variants=None if options.tries is None else partial(_variants, options.tries),
            tries_all=bool(options.tries),
        )
        reports.begin_to_keep()
        ending = watch_program(program, settings, reports)
    return 1 if ending.is_success and fails(reports.findings, options.fail_on) else ending.code


def _words_for_workers(options: Namespace) -> list[str]:
    """Return the options that each process of torchrun is watched with."""
    words = []
    for name in ("step", "warm_up", "steps"):
        value = getattr(options, name)
        words += [] if value is None else [flag(name), str(value)]
    return words + [flag(name) for name in ("stop_after", "exact") if getattr(options, name)]


def _variants(text: str) -> Sequence[Variant]:
    """Return the variants that the value of --try names; all of them if it is empty."""
    from gapless.trials import variants

    return variants(_names_of_variants(text))


def _names_of_variants(text: str) -> Sequence[str]:
    """Return the names that the value of --try has; all that there are if it is empty.

    Raises:
        UsageError: one of them is none.
    """
    names = [name.strip() for name in text.split(",")] if text else NAMES
    for name in names:
        if name not in NAMES:
            raise UsageError(
                f"--try: there is no variant {name!r}; expected some of {', '.join(NAMES)}"
            )
    return names


# --- two sessions that were saved ---


def _compare(options: Namespace) -> tuple[Finding, ...]:
    """Report what has changed between two saved sessions, and return what is new.

    Raises:
        UserError: a file is no session, or one of a newer gapless; or a report cannot be written.
        OSError: a file cannot be read.
    """
    from gapless.cli.doctor_reports import for_reports, write_difference
    from gapless.records.session_difference import SessionDifference

    before, after = (for_reports(_read(name), options) for name in options.diff)
    difference = SessionDifference.of(before, after)
    write_difference(difference, options)
    return difference.new


def _read(name: str) -> Session:
    from gapless.report.json_reports import read_session

    return read_session(Path(name).read_text(encoding="utf-8", errors="replace"), name)


# --- files that are looked at ---


def _look(options: Namespace) -> tuple[Finding, ...]:
    """Look at files, write the report, and return the findings.

    Raises:
        UsageError: a path is not there.
        UserError: no file could be looked at, or the report cannot be written.
    """
    from gapless.cli.doctor_reports import for_reports, write_look
    from gapless.doctor.static.look import look_at
    from gapless.records.finding import Session

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
    write_look(for_reports(session, options), options, num_files=seen.num_files)
    if seen.unread and not seen.num_files:
        raise UserError("no file could be looked at; the warnings above say why")
    return seen.findings


# --- what cannot be done ---


def _check(options: Namespace) -> None:
    """Refuse what cannot be done, before the script runs for hours.

    Raises:
        UserError: two options exclude each other, something is missing, or a file cannot be written.
    """
    given = _given(options)
    for first, second in EXCLUDES:
        if first in given and second in given:
            raise UsageError(f"{first} and {second} exclude each other; leave one of them out")
    if options.diff is not None and options.script:
        raise UsageError(
            f"--diff compares two files and runs nothing, but {options.script[0]!r} follows them"
        )
    if options.diff is None and options.module is None and not options.script:
        what = "a path after --static" if options.static else "a script, or -m and a module"
        raise UsageError(f"nothing to look at: expected {what}")
    for name, value, least in (("--warm-up", options.warm_up, 0), ("--steps", options.steps, 1)):
        if value is not None and value < least:
            raise UsageError(f"{name} must be {least} or more, but is {value}")
    if options.step == "":
        raise UsageError("--step names what a step is, but is ''")
    _names_of_variants(options.tries or "")
    _check_outputs(options)


# A report overwrites no file of these kinds: the script may import it, or it may be among those looked at.
_SOURCES = (".py", ".pyc", ".ipynb")


def _check_outputs(options: Namespace) -> None:
    """Refuse reports that cannot be written, and those that would take the place of something.

    Raises:
        UserError: such a file is named.
    """
    script = options.script if options.static else options.script[: options.module is None]
    read = [*(options.diff or ()), *script]
    taken = {Path(name).resolve() for name in read if name and Path(name).is_file()}
    reports: set[Path] = set()
    for option in ("out", "html", "perfetto", "save"):
        name = getattr(options, option)
        if name is None:
            continue
        if not name:
            raise UsageError("cannot write a report to '': expected the name of a file")
        require_writable(Path(name), flag(option))
        path = Path(name).resolve()
        if path in taken or (path.suffix in _SOURCES and path.exists()):
            raise UsageError(
                f"cannot write {name}: it is a file of source code; name another file"
            )
        if path in reports and not path.is_char_device():
            raise UsageError(f"two reports cannot go to one file: {name}")
        reports.add(path)


def _given(options: Namespace) -> set[str]:
    names = {"try": options.tries is not None, "diff": options.diff is not None}
    for name in ("static", "exact", "stop_after"):
        names[name] = getattr(options, name)
    for name in ("step", "save", "html", "perfetto", "warm_up", "steps", "format"):
        names[name] = getattr(options, name) is not None
    given = {flag(name) for name, is_given in names.items() if is_given}
    return given if options.module is None else {*given, "-m"}


def _codes(text: str) -> frozenset[str]:
    """Return the codes that the value of --fail-on names.

    Raises:
        ArgumentTypeError: one of them is none.
    """
    known = sorted(set(CODE_OF.values()))
    if text == "any":
        return frozenset(known)
    codes = [code.strip().upper() for code in text.split(",")]
    for code in codes:
        if code not in known:
            raise ArgumentTypeError(
                f"{code!r} is no code; expected any, or codes from {known[0]} to {known[-1]} with "
                "commas between them"
            )
    return frozenset(codes)
