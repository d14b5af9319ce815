"""`gapless store`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.cli.output import print_result
from gapless.cli.parser import UsageError, file_or_folder, one_of
from gapless.cli.requirements import require_extra
from gapless.report.terminal_text import table_lines


if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

    from gapless.cli.parser import Parser
    from gapless.nmt.data.stores import Listed


DETAILS = """
  gapless store list           all stores, the one that was used last first:
                               name, pairs, size, text
  gapless store remove NAME    remove stores; the text itself stays
"""

_ACTIONS = ("list", "remove")


def add_options(parser: Parser) -> None:
    """Add what `run` reads."""
    parser.usage = "gapless store [options] ACTION [NAME ...]"
    parser.add_argument("action", **one_of(_ACTIONS, metavar="ACTION"), help="list or remove")
    parser.add_argument("names", nargs="*", metavar="NAME", help="stores to remove")
    parser.add_argument(
        "--store",
        type=file_or_folder,
        metavar="FOLDER",
        help="folder of the stores; none: the one in the user's cache",
    )


def run(options: Namespace) -> int:
    """List stores, or remove some."""
    require_extra("nmt", f"gapless store {options.action}")
    from gapless.nmt.data.stores import StoreFolder, default_folder

    stores = StoreFolder(path=options.store or default_folder())
    if options.action == "list":
        if options.names:
            raise UsageError("list takes no name of a store; leave it out")
        _say_list(stores.list())
        return 0
    if not options.names:
        raise UsageError("remove takes the names of stores; gapless store list names them")
    stores.remove(options.names)
    return 0


def _say_list(listed: Sequence[Listed]) -> None:
    # The text is long and comes last: to the left, behind the table.
    figures = table_lines(
        [
            (item.path.name, f"{item.num_pairs:,} pairs", f"{item.size / 2**20:,.1f} MiB")
            for item in listed
        ]
    )
    for line, item in zip(figures, listed, strict=True):
        problem = "" if item.problem is None else f"  damaged: {item.problem}"
        print_result(f"{line}  {item.text}{problem}")
