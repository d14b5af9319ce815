"""The one door through which the host waits for the device.

Every wait of gapless passes through `HostWaits`, which counts and times it by reason. A wait
anywhere else is a bug. For a timeline, what the host did and when is noted if somebody asks.
"""

from __future__ import annotations

from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING

from gapless.records.timeline import Span
from gapless.records.wait_stats import WaitStats


if TYPE_CHECKING:
    from collections.abc import Iterator

    from gapless.device.base import Device, Event, Stream
    from gapless.records.timeline import SpanKind


class HostWaits:
    """Wait for the device, and keep account of it.

    Args:
        device: whose events and streams are waited for.
        wait_stats: where waits are counted; a new account if none is given.

    Attributes:
        log: what the host does is noted there; None: nowhere.
    """

    def __init__(self, device: Device, *, wait_stats: WaitStats | None = None) -> None:
        self.device = device
        self.stats = wait_stats if wait_stats is not None else WaitStats()
        self.log: HostLog | None = None

    @contextmanager
    def logged(self) -> Iterator[HostLog]:
        """Note what the host does in the body: its waits, and what the loop adds.

        Sync: Does not block the host.
        """
        self.log = HostLog()
        try:
            yield self.log
        finally:
            self.log = None

    def wait_event(self, event: Event, *, reason: str) -> None:
        """Wait until the work before an event's last record is done.

        Sync: Blocks the host until then; returns at once if the event is done. Counted either
            way, so that the count depends on the plan and not on the machine's speed.
        """
        with self.blocking(reason):
            if not self.device.query_event(event):
                self.device.synchronize_event(event)

    def wait_stream(self, stream: Stream, *, reason: str) -> None:
        """Wait until all work queued on a stream is done.

        Sync: Blocks the host until then.
        """
        with self.blocking(reason):
            self.device.synchronize_stream(stream)

    @contextmanager
    def blocking(self, reason: str) -> Iterator[None]:
        """Account for a body that is known to block the host, such as writing a checkpoint.

        Sync: Blocks the host as long as the body does.
        """
        start = perf_counter()
        try:
            with self.device.allow_waits():
                yield
        finally:
            self.stats.add(reason, ms=(perf_counter() - start) * 1000.0)
            if self.log is not None:
                self.log.note("wait", reason, since=start)


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
