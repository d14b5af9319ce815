"""Read text, UTF-8, one sentence a line: of files, plain or gzip, and of streams whose lines still arrive."""

from __future__ import annotations

import gzip
import re
import unicodedata
import zlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from gapless.errors import DataError


if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


# How a gzip file begins.
_GZIP = b"\x1f\x8b"

# Read from a stream at a time.
_MOST_BYTES = 1 << 16

# Some programs write a mark before that of another one.
_MARKS = re.compile("^\ufeff+", re.MULTILINE)

# Letters and marks that have no shape: fillers of Hangul and Braille, joiners, selectors of a variant.
_WITHOUT_SHAPE = frozenset("\u034f\u115f\u1160\u2800\u3164\uffa0") | frozenset(
    map(chr, (*range(0x180B, 0x1810), *range(0xFE00, 0xFE10)))
)


def read_lines(path: Path) -> list[str]:
    r"""Read a UTF-8 text file, plain or gzip, one sentence a line, empty lines kept.

    Only `\n` and `\r\n` end a line: other line separators of Unicode may occur in a sentence.

    Raises:
        DataError: the file is missing, a folder, empty, not UTF-8, or a broken archive, or its
            lines end in a carriage return alone.
    """
    return list(lines_of(path))


def lines_of(path: Path) -> Iterator[str]:
    """Yield the lines of a text file as `read_lines` does, without keeping them.

    Raises:
        DataError: as of `read_lines`.
    """
    parts = _parts_of(path)
    first = next(parts, [])
    if not first:
        raise DataError(f"{path} is empty, expected one sentence a line")
    second = next(parts, None)
    if len(first) == 1 and second is None and (returns := first[0].rstrip("\r").count("\r")):
        raise DataError(
            f"{path} is one line with {returns:,} carriage returns, which end no line; "
            "convert it, such as by tr '\\r' '\\n'"
        )
    yield from first
    if second is not None:
        yield from second
    for part in parts:
        yield from part


def _parts_of(path: Path) -> Iterator[list[str]]:
    """Yield the lines of a file, some at a time."""
    try:
        with _opened(path) as stream:
            num_lines = 0
            for text in _decoded(stream, name=str(path)):
                _check_no_zero(text, name=str(path), num_lines=num_lines)
                lines = split_lines(without_marks(text))
                num_lines += len(lines)
                yield lines
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path} is not a whole gzip file ({error}); fetch it again") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error


@contextmanager
def _opened(path: Path) -> Iterator[ByteStream]:
    if not path.is_file():
        raise DataError(f"{path} {why_no_file(path)}, expected a text file")
    with path.open("rb") as file:
        # A name may lack the ending, as that of a download.
        if file.peek(2).startswith(_GZIP):
            with gzip.open(file) as unpacked:
                yield unpacked
        else:
            yield file


def split_lines(text: str) -> list[str]:
    r"""Return the lines of a text, which end in `\n` or `\r\n`."""
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    return [line.removesuffix("\r") for line in lines]


def without_marks(text: str) -> str:
    """Return a text without byte order marks at its begin or, where files were joined, of a line."""
    return _MARKS.sub("", text)


def is_blank(text: str) -> bool:
    """Return whether nobody sees anything of a text: spaces, joiners and marks of any kind alone."""
    text = text.strip()
    # Nearly all text ends here.
    if not text or text.isprintable():
        return not text or _WITHOUT_SHAPE.issuperset(text)
    return all(
        sign.isspace() or sign in _WITHOUT_SHAPE or unicodedata.category(sign) in ("Cf", "Cc")
        for sign in text
    )


def decode_text(raw: bytes, *, name: str) -> str:
    """Return UTF-8 text, without byte order marks at its begin or, where files were joined, of a line.

    Args:
        raw: the bytes.
        name: where they come from.

    Raises:
        DataError: the bytes are not UTF-8; the message names the first bad one.
    """
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{name} is not UTF-8: byte 0x{raw[error.start]:02x} at offset {error.start}, line {line}; "
            f"{HOW_TO_CONVERT}"
        ) from error
    _check_no_zero(text, name=name)
    return without_marks(text)


def _check_no_zero(text: str, *, name: str, num_lines: int = 0) -> None:
    # English in UTF-16 without a mark is UTF-8 as well, with a zero beside each letter.
    zero = text.find("\0")
    if zero >= 0:
        line = num_lines + text.count("\n", 0, zero) + 1
        raise DataError(f"{name} holds a zero byte, line {line}, as UTF-16 does; {HOW_TO_CONVERT}")


HOW_TO_CONVERT = (
    "convert it with iconv -f ENCODING -t UTF-8: from CP1252 (Western Europe), GBK or BIG5 (Chinese), SHIFT_JIS "
    "(Japanese), EUC-KR (Korean) or UTF-16, whichever shows its text"
)


def check_text(text: str, *, where: str) -> str:
    """Return the text if it can be written as UTF-8.

    Raises:
        DataError: it holds half a surrogate pair, as JSON escapes and shell arguments can.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{where} is not Unicode text: {text[:40]!a} holds a lone surrogate"
        ) from error
    return text


def read_text(path: Path) -> str:
    """Read a UTF-8 text file, plain or gzip, without a byte order mark.

    Raises:
        DataError: the file is missing, a folder, a pipe, not UTF-8, or a broken archive.
    """
    return "\n".join(line for part in _parts_of(path) for line in part)


def why_no_file(path: Path) -> str:
    """Return what a path is that is no file."""
    if path.is_dir():
        return "is a folder"
    if path.exists():
        return "is a pipe or a device, which cannot be read again"
    return "is a link that leads nowhere" if path.is_symlink() else "does not exist"


# --- streams ---


class ByteStream(Protocol):
    """What `io.BufferedReader` and `io.BytesIO` have."""

    def read1(self, size: int, /) -> bytes:
        """Return what is there, at most so many bytes; wait if nothing is."""
        ...


def arriving_lines(stream: ByteStream, *, name: str) -> Iterator[list[str]]:
    r"""Yield lines of UTF-8 text, which end in `\n` or `\r\n`: each time those that are there.

    Args:
        stream: to read; byte order marks at its start and at the start of lines, as of files that were
            joined, are left out.
        name: of the stream, for the message.

    Raises:
        DataError: the text is not UTF-8, after the lines before that; the message names the place.
    """
    for text in _decoded(stream, name=name):
        yield split_lines(without_marks(text))


def _decoded(stream: ByteStream, *, name: str) -> Iterator[str]:
    """Yield the text of a stream, each time whole lines."""
    num_bytes = num_lines = 0
    for raw in _whole_lines(stream):
        try:
            yield raw.decode()
        except UnicodeDecodeError as error:
            good = raw[: raw.rfind(b"\n", 0, error.start) + 1]
            if good:
                yield good.decode()
            line = num_lines + good.count(b"\n") + 1
            at = num_bytes + error.start
            raise DataError(
                f"{name} is not UTF-8: byte 0x{raw[error.start]:02x} at offset {at}, "
                f"line {line}; {HOW_TO_CONVERT}"
            ) from error
        num_bytes += len(raw)
        num_lines += raw.count(b"\n")


def _whole_lines(stream: ByteStream) -> Iterator[bytes]:
    """Yield what arrives, cut behind a line's end; at the stream's end the rest."""
    begun: list[bytes] = []
    while part := stream.read1(_MOST_BYTES):
        whole, end, rest = part.rpartition(b"\n")
        if end:
            yield b"".join([*begun, whole, end])
            begun = []
        begun.append(rest)
    if last := b"".join(begun):
        yield last
