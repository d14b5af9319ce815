"""Read lines from a stream as they come, without waiting for its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from gapless.errors import DataError
from gapless.nmt.data.text_files import likely_encoding, split_lines


if TYPE_CHECKING:
    from collections.abc import Iterator


_MOST_BYTES = 1 << 16

_MARK = b"\xef\xbb\xbf"


class ByteStream(Protocol):
    """What `io.BufferedReader` and `io.BytesIO` have."""

    def read1(self, size: int, /) -> bytes:
        """Return what is there, at most so many bytes; wait if nothing is."""
        ...


def arriving_lines(stream: ByteStream, *, name: str) -> Iterator[list[str]]:
    r"""Yield lines of UTF-8 text, which end in `\n` or `\r\n`: each time those that are there.

    Args:
        stream: to read; a byte order mark at its start is left out.
        name: of the stream, for the message.

    Raises:
        DataError: the text is not UTF-8, after the lines before that; the message names the place.
    """
    num_bytes = num_lines = 0
    for raw in _whole_lines(stream):
        text = raw.removeprefix(_MARK) if not num_bytes else raw
        try:
            yield split_lines(text.decode())
        except UnicodeDecodeError as error:
            good = text[: text.rfind(b"\n", 0, error.start) + 1]
            if good:
                yield split_lines(good.decode())
            line = num_lines + good.count(b"\n") + 1
            at = num_bytes + len(raw) - len(text) + error.start
            raise DataError(
                f"{name} is not UTF-8: byte 0x{text[error.start]:02x} at offset {at}, "
                f"line {line}; convert it, such as by iconv -f {likely_encoding(raw)} -t UTF-8"
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
