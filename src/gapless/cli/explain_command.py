"""`gapless explain`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.cli.output import print_result, print_wrapped
from gapless.cli.parser import UsageError
from gapless.doctor.advice.explanations import CODES, find_code


if TYPE_CHECKING:
    from argparse import Namespace

    from gapless.cli.parser import Parser


DETAILS = "Without a code, all of them are listed."


def add_options(parser: Parser) -> None:
    """Add the code."""
    parser.usage = "gapless explain [options] [CODE]"
    parser.add_argument(
        "code", nargs="?", metavar="CODE", help="of a finding, such as GAP001; in any case"
    )


def run(options: Namespace) -> int:
    """Print what a code means, or one line for each."""
    if options.code is None:
        print_result("\n".join(f"{code}  {its.title}" for code, its in CODES.items()))
        return 0
    code = find_code(options.code)
    if code is None:
        first, *_, last = CODES
        raise UsageError(
            f"unknown code {options.code!r}; the codes are {first} to {last}, and `gapless explain` "
            "lists them"
        )
    _print_code(code)
    return 0


def _print_code(code: str) -> None:
    its = CODES[code]
    print_result(f"{code}  {its.title}")
    print_wrapped(f"\n{its.meaning}", indent=0)
    print_wrapped(f"\nWhy it costs time: {its.why}", indent=0)
    print_wrapped(f"\nWhat to write instead: {its.mend}", indent=0)
    for title, edit in zip(("An example:", "With gapless:"), its.edits(), strict=False):
        print_result(f"\n{title}\n\n{edit}")
