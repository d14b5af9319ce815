"""The one door through which the host waits for the device.

Every wait passes through `HostSync`, which counts and times it by reason. A wait anywhere else
is a defect.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from collections.abc import Iterator

    from gapless.device.base import Device, Event, Stream


@dataclass
class WaitTotal:
    """Count and total time of the host waits of one reason.

    Attributes:
        count: number of waits.
        ms: time the host spent in them, in milliseconds.
    """

    count: int = 0
    ms: float = 0.0


@dataclass
class SyncStats:
    """Count the host's waits by reason; the origin's `SyncStats`, with reasons.

    Attributes:
        by_reason: total of every reason that occurred, in order of first occurrence.
    """

    by_reason: dict[str, WaitTotal] = field(default_factory=dict)

    @property
    def sync_count(self) -> int:
        """Number of waits of all reasons."""
        return sum(total.count for total in self.by_reason.values())

    @property
    def total_sync_time_ms(self) -> float:
        """Time of all waits, in milliseconds."""
        return sum(total.ms for total in self.by_reason.values())

    def add(self, reason: str, *, ms: float, count: int = 1) -> None:
        """Count waits of one reason.

        Sync: Does not block the host.
        """
        total = self.by_reason.setdefault(reason, WaitTotal())
        total.count += count
        total.ms += ms

    def merge(self, other: SyncStats) -> None:
        """Add the counts of `other` to these."""
        for reason, total in other.by_reason.items():
            self.add(reason, ms=total.ms, count=total.count)

    def as_dict(self) -> dict[str, dict[str, float]]:
        """Return `{reason: {"count": ..., "ms": ...}}` for reports."""
        return {
            reason: {"count": total.count, "ms": round(total.ms, 3)}
            for reason, total in self.by_reason.items()
        }


class HostSync:
    """Wait for the device, and keep account of it.

    Args:
        device: whose events and streams are waited for.
        stats: where waits are counted; a new account if none is given.
    """

    def __init__(self, device: Device, *, stats: SyncStats | None = None) -> None:
        self.device = device
        self.stats = stats if stats is not None else SyncStats()

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
            with self.device.allow_syncs():
                yield
        finally:
            self.stats.add(reason, ms=(perf_counter() - start) * 1000.0)
