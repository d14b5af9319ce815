"""Tables and figures as text."""

from __future__ import annotations

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
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
