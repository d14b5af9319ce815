"""Read text files: UTF-8, plain or gzip, one sentence a line."""

from __future__ import annotations

import codecs
import gzip
import re
import shlex
import zipfile
import zlib
from pathlib import PurePath
from typing import TYPE_CHECKING

from gapless.errors import DataError


if TYPE_CHECKING:
    from pathlib import Path


_HIGH_BYTES = re.compile(rb"[\x80-\xff]+")
_BYTES_TO_LOOK_AT = 1_000_000

# How such files begin.
_GZIP, _ZIP = b"\x1f\x8b", b"PK\x03\x04"

_BOM_UTF16 = codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE
# Of Unicode; the byte above it is zero in UTF-32.
_LAST_PLANE = 0x10
_BOM_UTF32 = codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE

# Some programs write a mark before that of another one.
_MARKS = re.compile("^\ufeff+", re.MULTILINE)

# So many zeros in a text are no slip; characters such as U+4E00 have one on the other side.
_FEWEST_ZEROS, _ZEROS_ASIDE = 8, 0.3
# Of UTF-16 that is UTF-8 as well, which is of ASCII alone, every other byte is a zero.
_ZEROS_OF_LATIN = 0.4

# What packs a file otherwise, by the ending of its name: how that begins, and what unpacks it.
_PACKED = {
    ".bz2": (re.compile(rb"BZh[1-9]1AY&SY"), "bzip2 -dc"),
    ".xz": (re.compile(rb"\xfd7zXZ\x00"), "xz -dc"),
    ".zst": (re.compile(rb"\x28\xb5\x2f\xfd"), "zstd -dc"),
    ".zip": (re.compile(rb"PK\x03\x04"), "unzip -p"),
    ".7z": (re.compile(rb"7z\xbc\xaf\x27\x1c"), "7z x -so"),
}


def read_lines(path: Path) -> list[str]:
    r"""Read a UTF-8 text file, plain or gzip, one sentence a line, empty lines kept.

    Only `\n` and `\r\n` end a line: other line separators of Unicode may occur in a sentence.

    Raises:
        DataError: the file is missing, a folder, empty, not UTF-8, or a broken archive, or its
            lines end in a carriage return alone.
    """
    text = read_text(path)
    lines = split_lines(text)
    if not lines:
        raise DataError(f"{path} is empty, expected one sentence a line")
    if "\n" not in text and "\r" in text.removesuffix("\r"):
        raise DataError(
            f"{path} is one line with {text.count(chr(13)):,} carriage returns, which end no line; "
            "convert it, such as by tr '\\r' '\\n'"
        )
    return lines


def split_lines(text: str) -> list[str]:
    r"""Return the lines of a text, which end in `\n` or `\r\n`."""
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    return [line.removesuffix("\r") for line in lines]


def without_marks(text: str) -> str:
    """Return a text without byte order marks at its begin or, where files were joined, of a line."""
    return _MARKS.sub("", text)


def decode_text(raw: bytes, *, name: str) -> str:
    """Return UTF-8 text, without byte order marks at its begin or, where files were joined, of a line.

    Args:
        raw: the bytes.
        name: where they come from.

    Raises:
        DataError: the bytes are not UTF-8; the message names the first bad one.
    """
    encoding = _wide_encoding(raw)
    if encoding is not None:
        raise DataError(
            f"{name} is {encoding} without a mark that says so, expected UTF-8; convert it, such as by "
            f"iconv -f {encoding} -t UTF-8"
        )
    try:
        return without_marks(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{name} is not UTF-8: byte 0x{raw[error.start]:02x} at offset {error.start}, "
            f"line {line}; {_how_to_convert(raw)}"
        ) from error


def _how_to_convert(raw: bytes) -> str:
    lines = [line for line in raw.split(b"\n") if not line.isascii()]
    bad = sum(not _is_utf8(line) for line in lines)
    if bad < len(lines) / 2:
        return (
            f"{len(lines) - bad:,} lines with such bytes are UTF-8 and {bad:,} are not, so convert "
            "these lines alone, or leave them out"
        )
    encoding = likely_encoding(raw)
    others = ", or from BIG5, SHIFT_JIS, EUC-KR or CP1251, whichever shows its text"
    return (
        f"convert it, such as by iconv -f {encoding} -t UTF-8{others if encoding == 'GBK' else ''}"
    )


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def likely_encoding(raw: bytes) -> str:
    """Return the encoding that text which is not UTF-8 may have, by its bytes."""
    if raw.startswith(_BOM_UTF32):  # first, as that of UTF-16 begins alike
        return "UTF-32"
    if raw.startswith(_BOM_UTF16):
        return "UTF-16"
    wide = _wide_encoding(raw)
    if wide is not None:
        return wide
    # Accented letters stand alone among others; characters of two bytes seldom do.
    runs = _HIGH_BYTES.findall(raw[:_BYTES_TO_LOOK_AT])
    letters = sum(len(run) == 1 and run >= b"\xc0" for run in runs)
    return "CP1252" if letters > len(runs) / 2 else "GBK"


def _wide_encoding(raw: bytes) -> str | None:
    """Return what text without a mark is that has zeros where UTF-16 or UTF-32 has them, if it is such."""
    some = raw[:_BYTES_TO_LOOK_AT]
    if some.startswith((*_BOM_UTF32, *_BOM_UTF16)):
        return None
    for name, high, plane in (("UTF-32BE", 0, 1), ("UTF-32LE", 3, 2)):
        if len(some) < _FEWEST_ZEROS or any(some[high::4]):
            continue
        if max(some[plane::4]) <= _LAST_PLANE:
            return name
    zeros = some[::2].count(0), some[1::2].count(0)
    # Slips in UTF-8, such as a zero at the end of each line, are few beside letters.
    whole_lines = some[: some.rfind(b"\n") + 1] or some
    if sum(zeros) < _ZEROS_OF_LATIN * len(some) and _is_utf8(whole_lines):
        return None
    # Each end of a line has one, and always on the same side.
    fewest = max(_FEWEST_ZEROS, some.count(b"\n") / 2)
    if sum(zeros) < fewest or min(zeros) > _ZEROS_ASIDE * sum(zeros):
        return None
    encoding = "UTF-16BE" if zeros[0] > zeros[1] else "UTF-16LE"
    return encoding if "\n" in some.decode(encoding, errors="replace") else None


def how_to_unpack(path: Path) -> str | None:
    """Return how a file is unpacked that is packed otherwise than by gzip, by its name; None: it is not."""
    found = _PACKED.get(path.suffix.casefold())
    if found is None:
        return None
    to = path.with_suffix("")
    if not to.suffix:
        to = to.with_suffix(_ending_inside(path))
    return _unpack(path, command=found[1], to=to)


def _ending_inside(path: Path) -> str:
    """Return the ending of the files in a zip archive; empty if they have several, or it is no such archive."""
    try:
        with zipfile.ZipFile(path) as archive:
            inside = {
                PurePath(item.filename).suffix for item in archive.infolist() if not item.is_dir()
            }
    except (OSError, zipfile.BadZipFile):
        return ""
    return inside.pop() if len(inside) == 1 else ""


def _unpack(path: Path, *, command: str, to: Path) -> str:
    return f"unpack it, such as by {command} {shlex.quote(str(path))} > {shlex.quote(str(to))}"


def check_text(text: str, *, where: str) -> str:
    """Return the text if it can be written as UTF-8.

    Raises:
        DataError: it holds half a surrogate pair, as JSON escapes and shell arguments can.
    """
    if any("\ud800" <= sign <= "\udfff" for sign in text):
        raise DataError(f"{where} is not Unicode text: {text[:40]!a} holds a lone surrogate")
    return text


def read_text(path: Path) -> str:
    """Read a UTF-8 text file, plain or gzip, without a byte order mark.

    Raises:
        DataError: the file is missing, a folder, a pipe, not UTF-8, or a broken archive.
    """
    if path.is_dir():
        raise DataError(f"{path} is a folder, expected a text file")
    if not path.is_file():
        raise DataError(f"{path} {_why_no_file(path)}, expected a text file")
    try:
        raw = path.read_bytes()
        # A name may lack the ending, as that of a download.
        if raw.startswith(_GZIP):
            raw = gzip.decompress(raw)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path} is not a whole gzip file ({error}); fetch it again") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    if raw.startswith(_GZIP):
        raise DataError(
            f"{path} is packed by gzip twice, expected text or gzip; "
            f"{_unpack(path, command='gunzip -c', to=path.with_name(f'unpacked-{path.stem}.gz'))}"
        )
    for ending, (begin, command) in _PACKED.items():
        if ending != ".zip" and begin.match(raw):
            advice = _unpack(path, command=command, to=path.with_name(f"unpacked-{path.name}"))
            raise DataError(f"{path} is packed as {ending}, expected text or gzip; {advice}")
    if raw.startswith(_ZIP):
        raise DataError(
            f"{path} is a zip archive or a workbook, expected text; extract it, or export it as CSV in "
            "UTF-8"
        )
    return decode_text(raw, name=str(path))


def _why_no_file(path: Path) -> str:
    if path.exists():
        return "is a pipe or a device, which cannot be read again"
    return "is a link that leads nowhere" if path.is_symlink() else "does not exist"
