"""`errors.log` of a run: what went wrong, when, and at which update."""

from __future__ import annotations

import traceback
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from gapless.errors import GaplessError


if TYPE_CHECKING:
    from pathlib import Path


ERRORS = "errors.log"


class ErrorLog:
    """Appends a line for each warning of a run, and for the error that ends it.

    The file is made with its first line; a resumed run goes on with it. A disk that takes no line
    is no further error: the same text is on standard error.

    Args:
        folder: of the run.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / ERRORS

    def warning(self, text: str, *, update: int) -> None:
        """Append a line about something that the run goes on with.

        Args:
            text: one line.
            update: number of updates queued by then.
        """
        self._append(f"warning: {text}", update=update)

    def error(self, error: BaseException, *, update: int) -> None:
        """Append a line about the error that ends the run; its traceback, if it is not one of ours.

        Args:
            error: that was raised.
            update: number of updates queued by then.
        """
        if isinstance(error, GaplessError):
            self._append(f"error: {' '.join(str(error).split())}", update=update)
        else:
            lines = "".join(traceback.format_exception(error)).splitlines()
            self._append("\n  ".join([f"error: {lines[-1]}", *lines]), update=update)

    def _append(self, text: str, *, update: int) -> None:
        time = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        line = f"{time}  update {update}  {text}\n"
        # The name of a folder may be no text.
        with suppress(OSError), self._path.open("ab") as file:
            file.write(line.encode(errors="backslashreplace"))
