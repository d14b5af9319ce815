"""Ask whoever sits at the terminal for a language that nobody else can know."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from gapless.cli.output import terminal_columns, write
from gapless.report.text import wrapped


if TYPE_CHECKING:
    from gapless.errors import LanguageError


def ask_language(error: LanguageError) -> str:
    """Return the language that the user names, once it is one.

    Args:
        error: says what is not known; raised again where nobody is there to answer.

    Raises:
        LanguageError: there is no terminal, or no answer.
    """
    from gapless.nmt.data.languages import find_language

    if not _is_terminal():
        raise error
    what = str(error).partition(":")[0]
    default = f" [{error.suggestion}]" if error.suggestion else ""
    columns = terminal_columns(sys.stderr)
    for line in wrapped(f"{what[:1].upper()}{what[1:]}.", columns):
        write(sys.stderr, f"{line}\n")
    while True:
        write(sys.stderr, f"Which language is the text of the target side in?{default} ")
        line = _answer()
        answer = line.strip() or error.suggestion or ""
        if not line or not answer:
            raise error
        if find_language(answer, is_declared=True) is not None:
            return answer
        write(sys.stderr, f"{answer!r} is not a language; give its code or name, such as zh.\n")


def _answer() -> str:
    """Return the line that is typed; what is written next begins on a line of its own."""
    line = ""
    try:
        line = sys.stdin.readline()
    finally:
        if not line.endswith("\n"):
            write(sys.stderr, "\n")
    return line


def _is_terminal() -> bool:
    streams = (sys.stdin, sys.stderr)
    return all(stream is not None and stream.isatty() for stream in streams)
