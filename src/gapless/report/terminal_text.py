"""Text for a terminal: tables, and lines that fit its width."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from collections.abc import Sequence


def table_lines(
    rows: Sequence[tuple[str, ...]], *, num_left: int = 1, least: Sequence[int] = ()
) -> list[str]:
    """Return rows as lines, columns two spaces apart.

    Args:
        rows: with as many cells each.
        num_left: columns that stand to the left; all others stand to the right.
        least: width of the first columns where their cells need less.
    """
    widths = [max(map(display_width, column)) for column in zip(*rows, strict=True)]
    widths[: len(least)] = map(max, widths, least)
    lines = []
    for row in rows:
        cells = [
            _filled(cell, width, is_left=n < num_left)
            for n, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def _filled(cell: str, width: int, *, is_left: bool) -> str:
    space = " " * (width - display_width(cell))
    return cell + space if is_left else space + cell


class Page:
    """Lines of text of a limited width.

    Args:
        columns: that a line may take.
        is_coloured: whether lines may be bold or dim.
    """

    def __init__(self, columns: int, *, is_coloured: bool) -> None:
        self.columns = max(40, columns)
        self._is_coloured = is_coloured
        self._lines: list[str] = []

    def say(self, text: str, *, indent: int = 0, rest: int = 0, style: str = "") -> None:
        """Add a text, broken at spaces where the page ends.

        Args:
            text: one line.
            indent: spaces before it.
            rest: spaces more before what is broken off.
            style: number of a terminal's style; empty for none.
        """
        lines = wrapped(shown(text), self.columns - indent, indent=rest)
        self._add([f"{' ' * indent}{line}".rstrip() for line in lines], style)

    def say_as_it_is(self, text: str, *, indent: int = 0, style: str = "") -> None:
        """Add a line, such as code, that is not broken."""
        self._add([f"{' ' * indent}{shown(text)}".rstrip()], style)

    def say_cut(self, text: str, *, indent: int = 0, style: str = "") -> None:
        """Add a line whose end is left out if it does not fit."""
        self.say_as_it_is(fitted(shown(text), self.columns - indent), indent=indent, style=style)

    def text(self) -> str:
        """Return all lines."""
        return "\n".join(self._lines) + "\n"

    def _add(self, lines: list[str], style: str) -> None:
        if style and self._is_coloured:
            lines = [f"\x1b[{style}m{line}\x1b[0m" for line in lines]
        self._lines += lines


def shown(text: str) -> str:
    """Return a text in one line, with a mark for what a terminal would not show, but act on."""
    spaced = " ".join(text.splitlines()).expandtabs(4).replace("\N{NO-BREAK SPACE}", " ")
    return "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in spaced)


def fitted(text: str, columns: int) -> str:
    """Return a text, or its beginning and dots, in so many columns."""
    return text if display_width(text) <= columns else f"{cut(text, columns - 3)}..."


def display_width(text: str) -> int:
    """Return the columns that a text takes on a terminal; those of Chinese take two each."""
    return sum(map(_columns_of, text))


def _columns_of(character: str) -> int:
    if unicodedata.east_asian_width(character) in "WF":
        return 2
    return 0 if unicodedata.category(character) in ("Mn", "Me", "Cf", "Cc") else 1


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
