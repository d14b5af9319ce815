"""The plain records that reports render."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from gapless.records.wait_stats import WaitStats


if TYPE_CHECKING:
    from collections.abc import Sequence

    from gapless.records.bottleneck import Diagnosis


@dataclass(frozen=True, kw_only=True)
class EpochResult:
    """What one epoch did.

    Attributes:
        losses: loss of every batch, in order.
        mean_loss: their weighted mean.
        weight: sum of the weights, such as target tokens.
        waits: host waits by reason.
        data_wait_ms: time the host waited for the loader.
        launch_ms: time the host spent in steps, queueing their work (on a CPU: doing it).
        wall_ms: time from the first batch asked for to the last loss read.
        busy_ms: time in which the device ran steps.
        gap_ms: time of the device between steps; None on a CPU.
    """

    losses: list[float]
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
        if self.gap_ms is None or not self.busy_ms:
            return None
        return self.gap_ms / (self.busy_ms + self.gap_ms)

    @property
    def num_batches(self) -> int:
        """Number of batches in the epoch."""
        return len(self.losses)


@dataclass(kw_only=True)
class Progress:
    """Where a running epoch stands; made anew for every epoch, kept up to date by the loop.

    Attributes:
        batch: number of batches queued so far in this epoch.
        mean_loss: weighted mean of the losses read so far, None before the first read.
        weight: sum of the weights read so far, such as target tokens.
        waits: host waits of this epoch so far.
        gap_share: share of device time between steps so far; None on a CPU or before a reading.
        diagnosis: what plan `auto` found out last, None before and under other plans; a new
            object whenever it says something new.
    """

    batch: int = 0
    mean_loss: float | None = None
    weight: float = 0.0
    waits: WaitStats = field(default_factory=WaitStats)
    gap_share: float | None = None
    diagnosis: Diagnosis | None = None


@dataclass(frozen=True, kw_only=True)
class EpochRecord:
    """What one epoch did.

    Attributes:
        epoch: counted from 1.
        loss: weighted mean of the training loss.
        num_batches: batches trained on.
        target_tokens: target tokens trained on, padding excluded.
        wall_ms: from the first batch asked for to the last loss read.
        waits: host waits, `{reason: {"count": ..., "ms": ...}}`.
        data_wait_ms: time the host waited for the loader.
        launch_ms: time the host spent queueing steps (on a CPU: doing them).
        busy_ms: time in which the device ran steps.
        gap_ms: device time between steps; None on a CPU.
        peak_memory_bytes: most memory in use so far.
        validation: figures of the validation after this epoch, if there was one.
    """

    epoch: int
    loss: float
    num_batches: int
    target_tokens: int
    wall_ms: float
    waits: dict[str, dict[str, float]]
    data_wait_ms: float
    launch_ms: float
    busy_ms: float
    gap_ms: float | None
    peak_memory_bytes: int
    validation: dict[str, float] = field(default_factory=dict)

    @property
    def tokens_per_second(self) -> float:
        """Target tokens trained on in a second, padding excluded."""
        return self.target_tokens / self.wall_ms * 1000.0 if self.wall_ms else 0.0

    @property
    def gap_share(self) -> float | None:
        """Share of device time between steps, 0 to 1; None on a CPU."""
        if self.gap_ms is None or not self.busy_ms:
            return None
        return self.gap_ms / (self.busy_ms + self.gap_ms)

    def followed_by(self, later: EpochRecord) -> EpochRecord:
        """Return the record of both parts of an interrupted epoch; the later loss counts."""
        waits = total_waits([self, later])
        sums = {name: getattr(self, name) + getattr(later, name) for name in _SUMMED}
        gaps = [part.gap_ms for part in (self, later) if part.gap_ms is not None]
        return replace(later, waits=waits, gap_ms=sum(gaps) if gaps else None, **sums)


_SUMMED = ("num_batches", "target_tokens", "wall_ms", "data_wait_ms", "launch_ms", "busy_ms")


def run_totals(records: Sequence[EpochRecord]) -> dict[str, Any]:
    """Return what a run did in all its epochs, as plain values for `summary.json`."""
    return {
        "epochs": len(records),
        "batches": sum(record.num_batches for record in records),
        "target_tokens": sum(record.target_tokens for record in records),
        "tokens_per_second": steady_tokens_per_second(records),
        "loss": [record.loss for record in records],
        "host_waits": total_waits(records),
        "gap_share": total_gap_share(records),
        "data_wait_ms": sum(record.data_wait_ms for record in records),
        "launch_ms": sum(record.launch_ms for record in records),
        "busy_ms": sum(record.busy_ms for record in records),
        "train_seconds": sum(record.wall_ms for record in records) / 1000.0,
        "peak_memory_bytes": max((record.peak_memory_bytes for record in records), default=0),
    }


def total_waits(records: Sequence[EpochRecord]) -> dict[str, dict[str, float]]:
    """Return the host waits of all epochs, by reason."""
    totals: dict[str, dict[str, float]] = {}
    for record in records:
        for reason, wait in record.waits.items():
            total = totals.setdefault(reason, {"count": 0, "ms": 0.0})
            total["count"] += wait["count"]
            total["ms"] = round(total["ms"] + wait["ms"], 3)
    return totals


def steady_tokens_per_second(records: Sequence[EpochRecord]) -> float:
    """Return target tokens a second without the first epoch, which holds all warm-up.

    A run of one epoch has nothing else to show.
    """
    steady = records[1:] or records
    wall_ms = sum(record.wall_ms for record in steady)
    return sum(record.target_tokens for record in steady) / wall_ms * 1000.0 if wall_ms else 0.0


def total_gap_share(records: Sequence[EpochRecord]) -> float | None:
    """Return the share of device time between steps over all epochs; None on a CPU."""
    gaps = [record.gap_ms for record in records if record.gap_ms is not None]
    busy_ms = sum(record.busy_ms for record in records)
    return sum(gaps) / (sum(gaps) + busy_ms) if gaps and busy_ms else None
