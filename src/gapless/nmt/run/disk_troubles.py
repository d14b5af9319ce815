"""Tell of a disk without room once, however many files find none."""

from __future__ import annotations

from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from collections.abc import Callable


class DiskTroubles:
    """Keeps which writers find no room, and warns when the first of them does.

    Args:
        warn: is called with a line; again when all had room in the meantime.
    """

    def __init__(self, warn: Callable[[str], object] = lambda line: None) -> None:
        self._warn = warn
        self._writers: set[str] = set()

    def begin(self, writer: str, error: OSError) -> None:
        """Take note that a writer finds no room."""
        if not self._writers:
            self._warn(
                f"{error.filename}: {error.strerror}; training goes on, and what is to be saved is "
                "written when it can be"
            )
        self._writers.add(writer)

    def end(self, writer: str) -> None:
        """Take note that a writer finds room."""
        self._writers.discard(writer)
