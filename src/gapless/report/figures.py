"""Figures and names as text."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gapless.records.comparison import Spread


# Stands where a figure was not measured.
MISSING = "-"


def known(value: float | None, write: Callable[..., str]) -> str:
    """Return a figure as `write` has it; "-" where it was not measured."""
    return MISSING if value is None else write(value)


def milliseconds(value: float | None) -> str:
    """Return a time in ms; "-" where it was not measured."""
    if value is None:
        return MISSING
    if value >= 1000.0:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10.0 else f"{value:.2f}"


def count(value: float) -> str:
    """Return how often something is in a step, which may be a mean."""
    # From 99.5 on two digits would be written as 1e+02.
    return f"{value:,.0f}" if value >= 10.0 or value == round(value) else f"{value:.2g}"


def percent(share: float) -> str:
    """Return a share, 0 to 1, as a whole percentage."""
    return "< 1 %" if 0.0 < share < 0.005 else f"{share * 100.0:.0f} %"


def ranged(spread: Spread) -> str:
    """Return the median of a figure, and between what it lies."""
    if len(spread.rounds) < 2:
        return milliseconds(spread.median)
    return (
        f"{milliseconds(spread.median)} ({milliseconds(spread.min)} to {milliseconds(spread.max)})"
    )


def share(value: float | None) -> str:
    """Return a share as a percentage; "-" where it does not exist, as the gap of a CPU."""
    return MISSING if value is None else f"{value:.1%}"


def megabytes(num_bytes: int) -> str:
    """Return a size in MiB."""
    return f"{num_bytes / 2**20:,.0f} MiB"


def duration(seconds: float) -> str:
    """Return a time as h:mm:ss."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, such as `1 graph` or `2 graphs`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def time_left(seconds: float) -> str:
    """Return a time in at most eight characters: m:ss, h:mm:ss, or days and hours as 3d12h."""
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 24:
        return f"{hours // 24}d{hours % 24:02d}h"
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def short_number(number: float) -> str:
    """Return a number in at most four characters, such as 8.2k or 82k; in more from 10^12 on."""
    for unit in ("", "k", "M", "G"):
        if unit and number < 9.95:
            return f"{number:.1f}{unit}"
        if round(number) < 1000:
            return f"{number:.0f}{unit}"
        number /= 1000.0
    return f"{number:.0f}T"


def shell_name(path: Path | str) -> str:
    """Return a path so that a shell takes it for one word, and a command for no option."""
    name = str(path)
    return shlex.quote(f"./{name}" if name.startswith("-") else name)
