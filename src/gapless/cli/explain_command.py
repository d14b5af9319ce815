"""`gapless explain`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.cli.output import print_result, print_wrapped
from gapless.cli.parser import UsageError
from gapless.doctor.advice.explanations import explanations, find_code, title_of


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
        print_result("\n".join(f"{code}  {title_of(code)}" for code in explanations()))
        return 0
    code = find_code(options.code)
    if code is None:
        first, *_, last = explanations()
        raise UsageError(
            f"unknown code {options.code!r}; the codes are {first} to {last}, and `gapless explain` "
            "lists them"
        )
    _print_code(code)
    return 0


def _print_code(code: str) -> None:
    first, *others = explanations()[code]
    print_wrapped(f"{code}  {first}", indent=0)
    for one in others:
        if one.startswith("```"):
            print_result("\n" + "\n".join(one.splitlines()[1:-1]))
        else:
            print_wrapped("\n" + one.replace("**", ""), indent=0)
