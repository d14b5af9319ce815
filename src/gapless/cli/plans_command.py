"""`gapless plans`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.cli.output import print_wrapped
from gapless.plans import PLANS
from gapless.report.terminal_text import table_lines


if TYPE_CHECKING:
    from argparse import Namespace

    from gapless.cli.parser import Parser


DETAILS = ""

_TITLES = ("plan", "streams", "waits with", "every", "losses every", "what it does")


def add_options(parser: Parser) -> None:
    """Add nothing: there is nothing to choose."""


def run(options: Namespace) -> int:
    """Print one line a plan."""
    rows = [
        (
            plan.name,
            str(plan.streams),
            plan.wait_with,
            "epoch" if plan.wait_with == "nothing" else str(plan.sync_interval),
            str(plan.loss_interval),
        )
        for plan in PLANS.values()
    ]
    left = table_lines([_TITLES[:-1], *rows])
    summaries = [_TITLES[-1], *(plan.summary for plan in PLANS.values())]
    lines = [f"{line}  {text}" for line, text in zip(left, summaries, strict=True)]
    print_wrapped("\n".join(lines), indent=len(left[0]) + 2)
    return 0
