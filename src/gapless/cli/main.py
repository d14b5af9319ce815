"""The `gapless` command.

Nothing that takes long to import, such as torch, is imported before a command runs: neither here
nor at the top of a command's module. So the version and the help come at once, and they come where
a command's extra is not installed.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Protocol, cast

from gapless import __version__
from gapless.cli.error_text import bug_message, disk_message, memory_message, with_flags
from gapless.cli.output import (
    fitting,
    naming_output,
    print_result,
    take_any_text,
    throw_away,
    warn_with_flags_of,
    write,
)
from gapless.cli.parser import Parser, UsageError
from gapless.cli.ranks import (
    announce_leaving,
    exit_after,
    fail_together,
    is_left_to_rank_0,
    is_rank_0,
    leave_process,
    naming_rank,
    rank_0_reports,
)
from gapless.cli.signals import Interrupted
from gapless.device.memory_errors import is_out_of_memory
from gapless.errors import (
    EXIT_PEER_LOST,
    FirstRankError,
    GaplessError,
    PeerLostError,
    RankLeftError,
    UserError,
)
from gapless.report.terminal_text import table_lines
from gapless.scripts import leave


if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence


# What each command does; `gapless.cli.NAME_command` does it.
COMMANDS = {
    "train": "Train a translation model; with no option, on an embedded corpus.",
    "translate": "Translate sentences, one a line; order and empty lines are kept.",
    "evaluate": "Score a run: BLEU and chrF with signatures, and exact match.",
    "export": "Write a trained model for CTranslate2 or for Hugging Face.",
    "store": "List the stores of tokenised text, or remove some.",
    "checkpoint": "List the checkpoints of a run, or verify that all are whole.",
    "verify": "Verify that a plan changes no bit of any loss or tensor.",
    "compare": "Compare every plan on the same work, and recommend one.",
    "run": "Run any script, and capture what it trains as CUDA graphs.",
    "doctor": "Diagnose any script: every line that makes the GPU wait.",
    "explain": "Explain a code of the doctor, such as GAP001, and its mend.",
    "plans": "List the plans: the ways in which a loop can move its work.",
    "completion": "Print a script that lets a shell complete commands and options.",
}


# Commands whose process is the user's script's: it sets its own signals, and ends as the script does.
_SCRIPTS_OWN = ("run", "doctor")

# Exit code of a mistake in what was asked. With several ranks all make it, and rank 0 reports it.
_MISTAKE = 2

# Errors that follow from what happened to another rank.
_OF_OTHER_RANKS = (FirstRankError, PeerLostError)

# Commands in which all processes that torchrun starts take part.
_RUN_BY_ALL_RANKS = ("train", "run", "doctor")

# Commands that run no code of the user: an unexpected exception is a bug of ours.
_OWN = ("train", "translate", "evaluate", "export")


class Command(Protocol):
    """What the module of a command has."""

    # Paragraphs of the help below the command's summary.
    DETAILS: str

    def add_options(self, parser: Parser) -> None:
        """Add the command's options and positional arguments."""

    def run(self, options: Namespace) -> int:
        """Do what was asked for and return the exit code."""
        ...


# How often a thread of torch spins before it sleeps; by default for milliseconds. Where other programs want
# the cores too, spinning keeps the next thread from its work: training a small model took 95 s beside three
# of them, and 6 s with this.
_SPIN_COUNT = "1000"


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit: 0 done, 1 failed, 2 a mistake in what was asked."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if _is_scripts_own(arguments):
        leave(run_command(arguments))
    try:
        _prepare_process()
        code = run_command(arguments)
        _give_up_unwritable_output()
    except KeyboardInterrupt:
        code = 130
    # All is done: an interrupt would only break what libraries do at the end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    leave_process(code)


def _prepare_process() -> None:
    # Read when torch is imported, which a command does; what the user has set stays.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", _SPIN_COUNT)
    # The first asks a run to save; before it begins and at its end it has nothing to save. Nobody asks by the second.
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    take_any_text(sys.stdout)


def run_command(arguments: Sequence[str]) -> int:
    """Run one command in this process and return its exit code."""
    try:
        code = _run(arguments)
        # Now, while an error can still be reported: Python's own flush at the end cannot.
        if sys.stdout is not None and not _is_scripts_own(arguments):
            with naming_output():
                sys.stdout.flush()
        return code
    except GaplessError as error:
        return _fail(str(error), code=_code(error))
    except BrokenPipeError:
        # The reader of our output went away, as `head` does; nothing is left to say to it.
        return 1
    except OSError as error:
        return _fail(disk_message(error), code=2)
    except Interrupted as signalled:
        return _fail(f"interrupted by {signalled}", code=128 + signalled.number)
    except KeyboardInterrupt:
        return _fail("interrupted", code=130)


def load_command(name: str) -> Command:
    """Return the module of a command."""
    return cast("Command", import_module(f"gapless.cli.{name}_command"))


def command_parser(name: str) -> Parser:
    """Return the parser of a command."""
    command = load_command(name)
    parser = Parser(
        prog=f"gapless {name}",
        usage=f"gapless {name} [options]",
        description=f"{COMMANDS[name]}\n{command.DETAILS}".rstrip(),
    )
    command.add_options(parser)
    return parser


def root_parser() -> Parser:
    """Return the parser of what stands before a command."""
    rows = [(f"  {name}", summary) for name, summary in COMMANDS.items()]
    listed = "\n".join(table_lines(rows, num_left=2))
    parser = Parser(
        prog="gapless",
        usage="gapless [-h] [--version] COMMAND ...",
        description="PyTorch training loops that never make the GPU wait.",
        epilog=f"commands:\n{listed}\n\ngapless COMMAND --help shows the options of a command.",
    )
    parser.add_argument(
        "--version",
        action="store_true",
        help="print the version and exit",
    )
    return parser


def _run(arguments: Sequence[str]) -> int:
    if not arguments:
        root_parser().print_help()
        return 0
    name, *rest = arguments
    try:
        if name in COMMANDS:
            _check_current_folder()
            return _run_command(name, rest)
        if name.startswith("-") and root_parser().parse(arguments).version:
            print_result(f"gapless {__version__}")
            return 0
    except SystemExit as ended:  # argparse's after --help, or of `users_errors`
        if isinstance(ended.code, str):
            raise
        return int(ended.code or 0)
    known = ", ".join(COMMANDS)
    raise UsageError(f"unknown command {name!r}; the commands are {known}; see gapless --help")


def _check_current_folder() -> None:
    """Torch's libraries end the process where there is none."""
    try:
        Path.cwd()
    except FileNotFoundError:
        raise UserError("the current folder is gone; change to one that exists") from None


def _run_command(name: str, arguments: Sequence[str]) -> int:
    parser = command_parser(name)
    options = parser.parse(arguments)
    warn_with_flags_of(parser.parameters())
    if name not in _RUN_BY_ALL_RANKS and is_left_to_rank_0(name):
        return 0
    try:
        return load_command(name).run(options)
    except RankLeftError as error:
        if not error.is_told:
            _write_error(str(error))
        return exit_after(error)
    except UsageError as error:
        parser.error(str(error))
    except GaplessError as error:
        message = with_flags(str(error), parser.parameters())
        return _fail(message, code=_code(error), reports=not isinstance(error, _OF_OTHER_RANKS))
    except Exception as error:
        if is_out_of_memory(error):
            return _fail(memory_message(error), code=1)
        if isinstance(error, OSError) or name not in _OWN:
            raise
        return _fail(bug_message(name), code=1, trace=traceback.format_exception(error))


def _give_up_unwritable_output() -> None:
    """Throw away output that nobody can take, so that Python does not fail on it at its end."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        throw_away(sys.stdout)


def _is_scripts_own(arguments: Sequence[str]) -> bool:
    return bool(arguments) and arguments[0] in _SCRIPTS_OWN


def _code(error: GaplessError) -> int:
    if isinstance(error, PeerLostError):
        return EXIT_PEER_LOST
    return _MISTAKE if isinstance(error, UserError) else 1


def _fail(message: str, *, code: int, reports: bool = True, trace: Sequence[str] = ()) -> int:
    """Write a line of error, of several ranks that fail on one alone; return the code.

    Args:
        message: of the error.
        code: that this process exits with.
        reports: whether this rank writes the line; else the rank that failed first does.
        trace: lines that stand before it.
    """

    def report(message: str = message) -> None:
        _write_error(message, trace=trace)

    fail_together(report if reports else None, code=code)
    # Before the ranks have joined, most make the same mistake, or get the same interrupt.
    if is_rank_0() or code == 1:
        report()
        announce_leaving(code=code)
    elif code == _MISTAKE and not rank_0_reports() and announce_leaving(code=code):
        report(naming_rank(message))
    return code


def _write_error(message: str, *, trace: Sequence[str] = ()) -> None:
    line = f"gapless: error: {' '.join(message.split())}"
    write(sys.stderr, f"{''.join(trace)}{fitting(line, sys.stderr)}\n")
