"""Read lines from a stream as they come, without waiting for its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from gapless.errors import DataError
from gapless.nmt.data.text_files import HOW_TO_CONVERT, split_lines, without_marks


if TYPE_CHECKING:
    from collections.abc import Iterator


_MOST_BYTES = 1 << 16


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
    num_bytes = num_lines = 0
    for raw in _whole_lines(stream):
        try:
            yield _lines(raw)
        except UnicodeDecodeError as error:
            good = raw[: raw.rfind(b"\n", 0, error.start) + 1]
            if good:
                yield _lines(good)
            line = num_lines + good.count(b"\n") + 1
            at = num_bytes + error.start
            raise DataError(
                f"{name} is not UTF-8: byte 0x{raw[error.start]:02x} at offset {at}, "
                f"line {line}; {HOW_TO_CONVERT}"
            ) from error
        num_bytes += len(raw)
        num_lines += raw.count(b"\n")


def _lines(whole: bytes) -> list[str]:
    return split_lines(without_marks(whole.decode()))


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
