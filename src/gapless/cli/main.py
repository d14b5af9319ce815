"""The `gapless` command.

Nothing that takes long to import, such as torch, is imported before a command runs: neither here
nor at the top of a command's module. So the version and the help come at once, and they come where
a command's extra is not installed.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, NoReturn, Protocol

from gapless import __version__
from gapless.cli import (
    compare_command,
    evaluate_command,
    plans_command,
    train_command,
    translate_command,
    verify_command,
)
from gapless.cli.error_text import disk_message, with_flags
from gapless.cli.parser import Parser, UsageError, did_you_mean
from gapless.errors import GaplessError, UserError


if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence


class Command(Protocol):
    """What the module of a command has."""

    DESCRIPTION: str

    def add_options(self, parser: Parser) -> None:
        """Add the command's options and positional arguments."""

    def run(self, options: Namespace) -> int:
        """Do what was asked for and return the exit code."""
        ...


COMMANDS: dict[str, Command] = {
    "train": train_command,
    "translate": translate_command,
    "evaluate": evaluate_command,
    "verify": verify_command,
    "compare": compare_command,
    "plans": plans_command,
}


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit: 0 done, 1 failed, 2 a mistake in what was asked."""
    code = run_command(sys.argv[1:] if arguments is None else arguments)
    _give_up_unwritable_output()
    sys.exit(code)


def run_command(arguments: Sequence[str]) -> int:
    """Run one command in this process and return its exit code."""
    try:
        code = _run(arguments)
        # Now, while an error can still be told: Python's own flush at the end cannot.
        sys.stdout.flush()
        return code
    except GaplessError as error:
        return _fail(str(error), code=_code(error))
    except BrokenPipeError:
        # The reader of our output went away, as `head` does; nothing is left to say to it.
        return 1
    except OSError as error:
        return _fail(disk_message(error), code=2)
    except KeyboardInterrupt:
        return _fail("interrupted", code=130)


def command_parser(name: str) -> Parser:
    """Return the parser of a command."""
    parser = Parser(prog=f"gapless {name}", description=COMMANDS[name].DESCRIPTION)
    COMMANDS[name].add_options(parser)
    return parser


def root_parser() -> Parser:
    """Return the parser of what stands before a command."""
    rows = [(f"  {name}", summary(name)) for name in COMMANDS]
    listed = "\n".join(f"{name:13} {text}" for name, text in rows)
    parser = Parser(
        prog="gapless",
        usage="gapless [-h] [--version] COMMAND ...",
        description="PyTorch training loops that never make the GPU wait.",
        epilog=f"commands:\n{listed}\n\ngapless COMMAND --help shows the options of a command.",
    )
    parser.add_argument(
        "--version",
        action="version",
        version=f"gapless {__version__}",
        help="print the version and exit",
    )
    return parser


def summary(name: str) -> str:
    """Return what a command does, in one line."""
    return COMMANDS[name].DESCRIPTION.strip().partition("\n")[0]


def _run(arguments: Sequence[str]) -> int:
    if not arguments:
        root_parser().print_help()
        return 0
    name, *rest = arguments
    try:
        if name in COMMANDS:
            return _run_command(name, rest)
        if name.startswith("-"):
            root_parser().parse(arguments)
    except SystemExit as ended:  # argparse's after --help and --version, or of `user_workload`
        return int(ended.code or 0)
    hint = did_you_mean(name, COMMANDS) or f"the commands are {', '.join(COMMANDS)}"
    raise UsageError(f"unknown command {name!r}; {hint}")


def _run_command(name: str, arguments: Sequence[str]) -> int:
    parser = command_parser(name)
    options = parser.parse(arguments)
    try:
        return COMMANDS[name].run(options)
    except GaplessError as error:
        return _fail(with_flags(str(error), parser.parameters()), code=_code(error))


def _give_up_unwritable_output() -> None:
    """Throw away output that nobody can take, so that Python does not fail on it at its end."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _code(error: GaplessError) -> int:
    return 2 if isinstance(error, UserError) else 1


def _fail(message: str, *, code: int) -> int:
    print(f"gapless: error: {' '.join(message.split())}", file=sys.stderr)
    return code
