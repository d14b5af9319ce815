"""Tables and figures as text."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from collections.abc import Sequence


def columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Return rows as lines: first column to the left, the others to the right."""
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join(cells).rstrip())
    return lines


def share(value: float | None) -> str:
    """Return a share as a percentage; `n/a` where it does not exist, as the gap of a CPU."""
    return "n/a" if value is None else f"{value:.1%}"


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


def display_width(text: str) -> int:
    """Return the columns that a text takes on a terminal; those of Chinese take two each."""
    return sum(map(_columns_of, text))


def cut(text: str, columns: int) -> str:
    """Return the beginning of a text that fits into so many columns."""
    used = 0
    for at, character in enumerate(text):
        used += _columns_of(character)
        if used > columns:
            return text[:at]
    return text


def wrapped(line: str, columns: int, *, indent: int = 0) -> list[str]:
    """Return a line as several that fit, broken at spaces; the later ones are indented.

    Words that are longer than a line stay whole, so that paths can still be copied.
    """
    if display_width(line) <= columns:
        return [line]
    lines: list[str] = []
    for word in line.split(" "):
        if lines and display_width(f"{lines[-1]} {word}") <= columns:
            lines[-1] += f" {word}"
        else:
            lines.append(f"{' ' * indent}{word}" if lines else word)
    return lines


def _columns_of(character: str) -> int:
    if unicodedata.east_asian_width(character) in "WF":
        return 2
    return 0 if unicodedata.category(character) in ("Mn", "Me", "Cf", "Cc") else 1
