"""What commands print, and files that users name for results.

People may have gone away: an output that is closed stops no training.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TextIO

from gapless.cli.error_text import with_flags
from gapless.report.terminal_text import wrapped


if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path


_FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


# Names of options of the command that runs.
_flags: set[str] = set()

# Stands in the place of a file's name in an error of a write.
STANDARD_OUTPUT = "standard output"


def say(text: str) -> None:
    """Print a line to standard output at once, also into a pipe: somebody may be watching it."""
    write(sys.stdout, f"{text}\n")


def print_result(text: str) -> None:
    """Print what a command was asked for, at once; unlike `say`, it fails where that cannot be done.

    Raises:
        OSError: standard output, which it names, does not take the text.
    """
    with naming_output():
        print(text, flush=True)


def print_wrapped(text: str, *, indent: int = 2) -> None:
    """Print a result; on a terminal its lines are broken at spaces where it ends."""
    print_result(fitting(text, sys.stdout, indent=indent))


@contextmanager
def naming_output() -> Iterator[None]:
    """Let an error of a write say that it is about standard output, which the system's does not.

    What could not be written is thrown away: Python would fail on it again, at its end.
    """
    try:
        yield
    except OSError as error:
        throw_away(sys.stdout)
        if error.filename is None:
            error.filename = STANDARD_OUTPUT
        raise


def say_wrapped(text: str, *, indent: int = 2) -> None:
    """Print lines; on a terminal they are broken at spaces where it ends."""
    say(fitting(text, sys.stdout, indent=indent))


def warn_with_flags_of(names: Collection[str]) -> None:
    """Let warnings say options of a command, by their names, as its flags."""
    _flags.clear()
    _flags.update(names)


def as_flags(text: str) -> str:
    """Return text in which options of the command that runs are its flags."""
    return with_flags(text, _flags)


def warn(text: str) -> None:
    """Print a warning to standard error; on a terminal it is broken at spaces where it ends."""
    text = as_flags(text)
    write(sys.stderr, fitting(f"gapless: warning: {text}", sys.stderr) + "\n")


def draws_bars(stream: TextIO | None) -> bool:
    """Return whether a stream leads to a terminal that can draw a line anew."""
    return stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"


def fitting(text: str, stream: TextIO | None, *, indent: int = 2) -> str:
    """Return lines as they suit a stream: broken at spaces where a terminal ends.

    For a file or a pipe they stay as they are.

    Args:
        text: lines.
        stream: for which they are.
        indent: column where the rest of a broken line begins.
    """
    if stream is None or not stream.isatty():
        return text
    columns = terminal_columns(stream)
    lines = [wrapped(line, columns, indent=indent) for line in text.splitlines()]
    return "\n".join(part for parts in lines for part in parts)


def write(stream: TextIO | None, text: str) -> None:
    """Write text at once, if the stream still leads anywhere.

    What a full disk does not take is kept for the next time. What comes after a pipe was closed, or
    a terminal, is thrown away.
    """
    if stream is None:  # closed before the process began
        return
    try:
        stream.write(text)
        stream.flush()
    except OSError as error:
        if error.errno not in _FULL_DISK:
            throw_away(stream)
            if stream is sys.stdout:
                notice = "standard output is closed; the run goes on without it"
                write(sys.stderr, f"gapless: warning: {notice}\n")


def is_unicode(stream: TextIO | None) -> bool:
    """Return whether a stream takes every character; one that is closed takes anything."""
    return stream is None or (stream.encoding or "").lower().replace("_", "-").startswith("utf")


def take_any_text(stream: TextIO | None) -> None:
    """Let a stream of another encoding than UTF-8 show what it lacks as escapes, as errors are shown.

    A translation, or the name of a file that is no text, ends no command.
    """
    if isinstance(stream, io.TextIOWrapper):
        # Python asks where a file is, which a pipe in its place does not know.
        with suppress(OSError):
            stream.reconfigure(errors="backslashreplace")


def write_utf8(stream: TextIO | None) -> None:
    """Let a file or a pipe have text in UTF-8, as text is read, whatever the encoding of messages.

    A terminal shows text in its own.
    """
    if isinstance(stream, io.TextIOWrapper) and not stream.isatty():
        with suppress(OSError):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")


def terminal_columns(stream: TextIO) -> int:
    """Return the width of the terminal that a stream leads to; COLUMNS wins, as elsewhere."""
    try:
        asked = int(os.environ.get("COLUMNS") or 0)
        return asked or os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def throw_away(stream: TextIO) -> None:
    """Let a stream lead nowhere, so that neither we nor Python at its end fail on it.

    A stream that is no file of the system's, as in a notebook, stays.
    """
    with suppress(io.UnsupportedOperation):
        number = stream.fileno()
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, number)
        os.close(null)


# --- files ---


def write_whole(path: Path, content: bytes) -> None:
    """Write a file that a user named: whole or not at all, or into what it is if it is no plain file.

    A link stays, and what it leads to is written; so do devices and pipes such as /dev/stdout.

    Raises:
        OSError: the disk is full, or the place cannot be written.
    """
    # Only here: most commands write no file.
    from gapless.checkpoint.files import replace_file

    if _is_open_already(path) or (path.exists() and not path.is_file()):
        with path.open("ab") as file:
            file.write(content)
    else:
        replace_file(path.resolve(), content)


def _is_open_already(path: Path) -> bool:
    """Return whether a path names a file that this process has open, as /dev/stdout and /dev/fd/3 do.

    Where it is a plain file, whoever opened it goes on to write to it, whatever then has its name.
    """
    place = path.parent.resolve() / path.name
    leads_to = place.readlink() if place.is_symlink() else place
    return place.is_relative_to("/proc") or leads_to.is_relative_to("/proc")
