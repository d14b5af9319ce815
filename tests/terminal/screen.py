"""What a terminal shows: the few control characters that the command writes, and no others."""

from __future__ import annotations

import re
import unicodedata


_TOKENS = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])|\x1b.?|[^\x1b]", re.DOTALL)


class Screen:
    """The lines of a terminal, with all that has scrolled away, and its cursor.

    Characters that are too many for a line go on in the next, as on a real terminal, and `wrapped`
    keeps the numbers of the lines that begin so. An escape sequence that is unknown is an error.
    """

    def __init__(self, columns):
        self.columns = columns
        self.rows = [[]]
        self.row = self.column = 0
        self.is_cursor_visible = True
        self.wrapped = set()

    def feed(self, text):
        """Show what was written."""
        for token in _TOKENS.finditer(text):
            if token[2] is not None:
                self._escape(token[1], token[2])
            else:
                self._character(token[0])

    def lines(self):
        """Return what is shown, without the empty lines at the end."""
        shown = ["".join(row).rstrip() for row in self.rows]
        while shown and not shown[-1]:
            del shown[-1]
        return shown

    def line(self):
        """Return the line on which the cursor is."""
        return "".join(self.rows[self.row]).rstrip()

    def _escape(self, numbers, letter):
        if letter == "K" and numbers in ("", "0"):
            del self.rows[self.row][self.column :]
        elif (numbers, letter) in (("?25", "h"), ("?25", "l")):
            self.is_cursor_visible = letter == "h"
        else:
            raise AssertionError(f"unknown escape sequence: {numbers}{letter}")

    def _character(self, character):
        if character == "\r":
            self.column = 0
        elif character == "\n":
            self._next_row()
        elif character == "\b":
            self.column = max(0, self.column - 1)
        else:
            assert character.isprintable(), f"unknown control character: {character!r}"
            self._print(character)

    def _print(self, character):
        width = 2 if unicodedata.east_asian_width(character) in "WF" else 1
        if self.column + width > self.columns:
            self._next_row()
            self.column = 0
            self.wrapped.add(self.row)
        row = self.rows[self.row]
        row += [" "] * (self.column + width - len(row))
        # The second half of a wide character is an empty one.
        row[self.column : self.column + width] = [character] + [""] * (width - 1)
        self.column += width

    def _next_row(self):
        self.row += 1
        if self.row == len(self.rows):
            self.rows.append([])
