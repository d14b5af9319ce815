"""`gapless checkpoint`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.cli.output import print_result
from gapless.cli.parser import file_or_folder, one_of
from gapless.cli.requirements import require_extra
from gapless.report.terminal_text import table_lines


if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

    from gapless.checkpoint.store import Listed
    from gapless.cli.parser import Parser


DETAILS = """
  gapless checkpoint list RUN    all checkpoints of a run: name, updates, size,
                                 whether it is whole
  gapless checkpoint verify RUN  the same files read and compared with what was
                                 written; exits with 1 if any is damaged, and
                                 names each, or if there is none
"""

_ACTIONS = ("list", "verify")


def add_options(parser: Parser) -> None:
    """Add what `run` reads."""
    parser.usage = "gapless checkpoint [options] ACTION RUN"
    parser.add_argument("action", **one_of(_ACTIONS, metavar="ACTION"), help="list or verify")
    parser.add_argument("run", type=file_or_folder, metavar="RUN", help="run folder")


def run(options: Namespace) -> int:
    """List or verify the checkpoints of a run."""
    require_extra("nmt", f"gapless checkpoint {options.action}")
    from gapless.nmt.run_folder.checkpoints import list_all
    from gapless.nmt.run_folder.folder import damaged_files

    damaged = damaged_files(options.run)
    listed = list_all(options.run)
    if options.action == "list":
        _say_list(listed)
        return 0
    if not listed and not damaged:
        print_result(f"{options.run} holds no checkpoint")
        return 1
    problems = [f"{item.path}: {item.problem}" for item in listed if item.problem is not None]
    problems += damaged
    for line in problems:
        print_result(line)
    if not problems:
        print_result(f"all {len(listed)} checkpoints of {options.run} are whole")
    return 1 if problems else 0


def _say_list(listed: Sequence[Listed]) -> None:
    # The state is long and comes last: to the left, behind the table.
    figures = table_lines(
        [
            (item.path.name, f"{item.step} updates", f"{item.size / 2**20:.1f} MiB")
            for item in listed
        ]
    )
    for line, item in zip(figures, listed, strict=True):
        state = "whole" if item.problem is None else f"damaged: {item.problem}"
        print_result(f"{line}  {state}")
