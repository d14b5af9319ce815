"""`gapless completion`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.cli.main import COMMANDS, load_command, root_parser
from gapless.cli.output import print_result
from gapless.cli.parser import Parser, file_or_folder, one_of
from gapless.cli.requirements import require_extra


if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace


DETAILS = """
Put one of these lines into the file that your shell reads when it starts:

  eval "$(gapless completion bash)"    # ~/.bashrc
  eval "$(gapless completion zsh)"     # ~/.zshrc, below compinit

In tcsh, write the script to a file and source that in ~/.tcshrc.
"""

_SHELLS = ("bash", "zsh", "tcsh")

# Types of options that take a text.
_TEXTS = (None, str, file_or_folder)


def add_options(parser: Parser) -> None:
    """Add what `run` reads."""
    parser.usage = "gapless completion [options] SHELL"
    shell = parser.add_group("shell")
    shell.add_argument("shell", **one_of(_SHELLS, metavar="SHELL"), help="bash, zsh or tcsh")


def run(options: Namespace) -> int:
    """Print the script for a shell, made from the parsers of all commands."""
    require_extra("cli", "gapless completion")
    import shtab

    print_result(shtab.complete(_parser_of_all(), options.shell))
    return 0


def _parser_of_all() -> ArgumentParser:
    """Return one parser with all commands: otherwise only that of the command which runs is made."""
    import shtab

    root = root_parser()
    commands = root.add_subparsers(metavar="COMMAND", parser_class=Parser)
    for name, summary in COMMANDS.items():
        parser = commands.add_parser(name, description=summary, help=summary)
        load_command(name).add_options(parser)
        for action in parser.actions():
            # Any text may be the name of a file, which a shell offers where nothing is known.
            if action.nargs != 0 and action.choices is None and action.type in _TEXTS:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    return root
