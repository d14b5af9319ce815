"""What an epoch did, and the progress of a running one."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from gapless.records.wait_stats import WaitStats


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gapless.records.bottleneck import Diagnosis


@dataclass(frozen=True, kw_only=True)
class EpochRecord:
    """What one epoch did; filled in by the loop, and printed as it is.

    Attributes:
        num_batches: batches trained on.
        losses: loss of every batch, in order; empty in a record that was read from a file.
        mean_loss: their weighted mean.
        weight: sum of the weights, such as target tokens.
        waits: host waits by reason.
        data_wait_ms: time the host waited for the loader.
        launch_ms: time the host spent in steps, queueing their work (on a CPU: doing it).
        wall_ms: time from the first batch asked for to the last loss read.
        busy_ms: time in which the device ran steps.
        gap_ms: time of the device between steps; None on a CPU.
    """

    num_batches: int
    losses: list[float] = field(default_factory=list)
    mean_loss: float
    weight: float
    waits: WaitStats
    data_wait_ms: float
    launch_ms: float
    wall_ms: float
    busy_ms: float
    gap_ms: float | None

    @property
    def gap_share(self) -> float | None:
        """Share of device time between steps, 0 to 1; None on a CPU."""
        return gap_share(self.busy_ms, self.gap_ms)

    @property
    def busy_share(self) -> float | None:
        """Share of the wall time in which the device ran steps, 0 to 1; None on a CPU."""
        if self.gap_ms is None or not self.wall_ms:
            return None
        return self.busy_ms / self.wall_ms

    def utilisation(self) -> dict[str, float | None]:
        """Return where the time went, as plain values for the files of a run."""
        return {
            "num_batches": self.num_batches,
            "wall_ms": self.wall_ms,
            "data_wait_ms": self.data_wait_ms,
            "launch_ms": self.launch_ms,
            "busy_ms": self.busy_ms,
            "gap_ms": self.gap_ms,
            "busy_share": self.busy_share,
            "gap_share": self.gap_share,
            "num_waits": self.waits.count,
            "wait_ms": self.waits.ms,
        }

    def followed_by(self, later: EpochRecord) -> EpochRecord:
        """Return the record of this epoch and the one after it together."""
        weight = self.weight + later.weight
        losses = self.mean_loss * self.weight + later.mean_loss * later.weight
        gaps = [part.gap_ms for part in (self, later) if part.gap_ms is not None]
        waits = WaitStats()
        waits.merge(self.waits)
        waits.merge(later.waits)
        sums = {name: getattr(self, name) + getattr(later, name) for name in _SUMMED}
        return replace(
            later,
            mean_loss=losses / weight if weight else later.mean_loss,
            waits=waits,
            gap_ms=sum(gaps) if gaps else None,
            **sums,
        )


_SUMMED = (
    *("num_batches", "losses", "weight"),
    *("data_wait_ms", "launch_ms", "wall_ms", "busy_ms"),
)


def total(records: Sequence[EpochRecord]) -> EpochRecord:
    """Return the record of several epochs together, at least one."""
    found = records[0]
    for record in records[1:]:
        found = found.followed_by(record)
    return found


def gap_share(busy_ms: float, gap_ms: float | None) -> float | None:
    """Return the share of device time between steps, 0 to 1.

    None on a CPU, which has no such time, and before a step was measured.
    """
    if gap_ms is None or not busy_ms:
        return None
    return gap_ms / (busy_ms + gap_ms)


@dataclass(kw_only=True)
class Progress:
    """Progress of a running epoch; a new one for every epoch, kept up to date by the loop.

    Attributes:
        batch: number of batches queued so far in this epoch.
        loss: the newest that was read, None before the first read.
        mean_loss: weighted mean of the losses read so far, None before the first read.
        weight: sum of the weights read so far, such as target tokens.
        waits: host waits of this epoch so far.
        gap_share: share of device time between steps so far; None on a CPU or before a reading.
        diagnosis: what plan `auto` found out last, None before and under other plans; a new
            object whenever it says something new.
        so_far: returns the record of the batches whose losses were read so far; to be called during
            the epoch.
    """

    batch: int = 0
    loss: float | None = None
    mean_loss: float | None = None
    weight: float = 0.0
    waits: WaitStats = field(default_factory=WaitStats)
    gap_share: float | None = None
    diagnosis: Diagnosis | None = None
    so_far: Callable[[], EpochRecord] | None = None
