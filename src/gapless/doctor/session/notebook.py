"""`with gapless.doctor.watch() as watched:` around a stretch of steps, as in a notebook."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from gapless.doctor.session.make_session import make_session
from gapless.doctor.watching.step_source import watched_by
from gapless.doctor.watching.watch import Watch
from gapless.errors import UserError
from gapless.report.html.session_page import session_page
from gapless.report.perfetto import perfetto_json
from gapless.report.session_text import session_text


if TYPE_CHECKING:
    from collections.abc import Iterator

    from gapless.doctor.watching.watch import WatchSettings
    from gapless.records.finding import Session


class Watched:
    """What was seen of the body of `watch`.

    Attributes:
        session: all that a report shows; None as long as the body runs.
    """

    def __init__(self) -> None:
        self.session: Session | None = None

    def text(self, *, columns: int = 100) -> str:
        """Return the report as text.

        Args:
            columns: that its lines may take.

        Raises:
            UserError: the body has not ended.
        """
        return session_text(self._ended(), columns=columns)

    def show(self) -> None:
        """Print the report.

        Raises:
            UserError: the body has not ended.
        """
        sys.stdout.write(self.text())

    def _repr_html_(self) -> str:
        """Return the page as a notebook shows it: in a frame of its own, as its styles are for a page."""
        if self.session is None:
            return ""
        source = escape(session_page(self.session))
        style = "width: 100%; height: 40em; border: 0"
        return f'<iframe srcdoc="{source}" style="{style}"></iframe>'

    def save_html(self, path: str | Path) -> None:
        """Write the report as a page for a browser.

        Raises:
            UserError: the body has not ended.
            OSError: the file cannot be written.
        """
        Path(path).write_text(session_page(self._ended()), encoding="utf-8")

    def save_perfetto(self, path: str | Path) -> None:
        """Write the timeline, which ui.perfetto.dev opens.

        Raises:
            UserError: the body has not ended, or there is no timeline: it needs a device.
            OSError: the file cannot be written.
        """
        session = self._ended()
        if session.timeline is None:
            raise UserError("there is no timeline: it needs a device and torch's profiler")
        text = perfetto_json((session.timeline, session.findings))
        Path(path).write_text(text, encoding="utf-8")

    def _ended(self) -> Session:
        if self.session is None:
            raise UserError(
                "nothing is known before the body of `gapless.doctor.watch()` has ended"
            )
        return self.session


@contextmanager
def watched_body(settings: WatchSettings) -> Iterator[Watched]:
    """Watch the body; what was seen is there once it is over."""
    watched = Watched()
    watch = Watch(settings)
    with watched_by(watch):
        watch.start()
        try:
            yield watched
        finally:
            watch.end()
            if watch.is_in_its_process:
                watched.session = make_session(watch, command=("gapless.doctor.watch()",))
