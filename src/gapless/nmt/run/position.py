"""How far a run is: kept with its weights, so that it goes on exactly."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from gapless.records.epoch import EpochRecord


if TYPE_CHECKING:
    from gapless.records.epoch import EpochResult


@dataclass(kw_only=True)
class Position:
    """How far a run is.

    Attributes:
        epoch: epochs done.
        batches: batches done of the next epoch.
        losses: of those batches.
        weights: of those batches.
        records: of the epochs done, and of the unfinished one if batches of it are done.
        best_loss: lowest validation loss so far.
        wall_seconds: that the run took so far, in all its processes.
    """

    epoch: int = 0
    batches: int = 0
    losses: list[float] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    records: list[EpochRecord] = field(default_factory=list)
    best_loss: float = math.inf
    wall_seconds: float = 0.0

    @property
    def batches_before(self) -> int:
        """Batches of the whole run so far."""
        return sum(record.num_batches for record in self.records)

    def add(self, result: EpochResult, *, weights: list[float], peak_memory_bytes: int) -> None:
        """Count what an epoch, or a part of one, did."""
        self.losses += result.losses
        self.weights += weights
        record = EpochRecord(
            epoch=self.epoch + 1,
            loss=_weighted_mean(self.losses, self.weights),
            num_batches=result.num_batches,
            target_tokens=round(result.weight),
            wall_ms=result.wall_ms,
            waits=result.waits.as_dict(),
            data_wait_ms=result.data_wait_ms,
            launch_ms=result.launch_ms,
            busy_ms=result.busy_ms,
            gap_ms=result.gap_ms,
            peak_memory_bytes=peak_memory_bytes,
        )
        if self.batches:
            record = self.records.pop().followed_by(record)
        self.records.append(record)
        self.batches += result.num_batches

    def end_epoch(self) -> EpochRecord:
        """Go to the next epoch; return the record of the one that ended."""
        self.epoch += 1
        self.batches = 0
        self.losses, self.weights = [], []
        return self.records[-1]

    def state(self) -> dict[str, Any]:
        """Return plain values to be kept."""
        return asdict(self)

    @classmethod
    def of_state(cls, state: dict[str, Any]) -> Position:
        """Return the position that `state` described."""
        records = [EpochRecord(**record) for record in state["records"]]
        return cls(**{**state, "records": records})


def _weighted_mean(losses: list[float], weights: list[float]) -> float:
    total = math.fsum(weights)
    weighted = math.fsum(loss * weight for loss, weight in zip(losses, weights, strict=True))
    return weighted / total if total else math.nan
