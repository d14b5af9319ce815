"""What the host did and when, for a timeline; nothing is noted unless somebody asks."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

from gapless.records.timeline import Span


if TYPE_CHECKING:
    from gapless.records.timeline import SpanKind


class HostLog:
    """Spans of one host thread.

    Attributes:
        spans: in the order in which they ended; times are microseconds of `perf_counter`.
    """

    def __init__(self) -> None:
        self.spans: list[Span] = []

    def note(self, kind: SpanKind, name: str, *, since: float) -> None:
        """Note what ends now.

        Args:
            kind: of what it was.
            name: of it.
            since: when it began, by `perf_counter`.
        """
        end = perf_counter()
        self.spans.append(Span(name=name, kind=kind, start_us=since * 1e6, end_us=end * 1e6))
