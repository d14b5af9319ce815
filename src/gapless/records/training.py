"""What a training run and its epochs did, as they are printed and kept in its files."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

from gapless.records.epoch_record import EpochRecord, gap_share
from gapless.records.wait_stats import WaitStats


if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


@dataclass(frozen=True, kw_only=True)
class RunProgress:
    """How far a training run is.

    Attributes:
        num_updates: made so far.
        total_updates: of the whole run, if nothing ends it earlier.
        learning_rate: of the next update.
        seconds_left: until training ends, validations included; None before there is an estimate.
    """

    num_updates: int
    total_updates: int
    learning_rate: float
    seconds_left: float | None


@dataclass(frozen=True, kw_only=True)
class TrainingEpoch:
    """One epoch of a training run.

    Attributes:
        number: counted from 1.
        work: what the loop did; its weights count target tokens, padding excluded.
        peak_memory_bytes: most memory in use so far.
        validation: figures of the validation after this epoch, if there was one.
    """

    number: int
    work: EpochRecord
    peak_memory_bytes: int
    validation: dict[str, float] = field(default_factory=dict)

    @property
    def target_tokens(self) -> int:
        """Target tokens trained on, padding excluded."""
        return round(self.work.weight)

    @property
    def tokens_per_second(self) -> float:
        """Target tokens trained on in a second, padding excluded."""
        work = self.work
        return self.target_tokens / work.wall_ms * 1000.0 if work.wall_ms else 0.0

    def followed_by(self, later: TrainingEpoch) -> TrainingEpoch:
        """Return the record of both parts of an epoch that was interrupted."""
        return replace(later, work=self.work.followed_by(later.work))

    def state(self) -> dict[str, Any]:
        """Return plain values, as a run keeps them; the losses of single batches are left out."""
        work = self.work
        return {
            "epoch": self.number,
            "loss": work.mean_loss,
            "num_batches": work.num_batches,
            "target_tokens": self.target_tokens,
            "wall_ms": work.wall_ms,
            "waits": work.waits.as_dict(),
            "data_wait_ms": work.data_wait_ms,
            "launch_ms": work.launch_ms,
            "busy_ms": work.busy_ms,
            "gap_ms": work.gap_ms,
            "peak_memory_bytes": self.peak_memory_bytes,
            "validation": self.validation,
        }

    @classmethod
    def of_state(cls, state: dict[str, Any]) -> TrainingEpoch:
        """Return the epoch that `state` described."""
        work = EpochRecord(
            num_batches=state["num_batches"],
            mean_loss=state["loss"],
            weight=state["target_tokens"],
            waits=WaitStats.of_dict(state["waits"]),
            data_wait_ms=state["data_wait_ms"],
            launch_ms=state["launch_ms"],
            wall_ms=state["wall_ms"],
            busy_ms=state["busy_ms"],
            gap_ms=state["gap_ms"],
        )
        return cls(
            number=state["epoch"],
            work=work,
            peak_memory_bytes=state["peak_memory_bytes"],
            validation=dict(state["validation"]),
        )


@dataclass(frozen=True, kw_only=True)
class RunHistory:
    """What `metrics.jsonl` tells of a run, under the names that the figures have there.

    Attributes:
        losses: of every batch in order; None where one was not finite.
        epochs: figures of each epoch; `step` is its number.
        test: figures of the final model; None before it was scored.
    """

    losses: tuple[float | None, ...] = ()
    epochs: tuple[dict[str, Any], ...] = ()
    test: dict[str, Any] | None = None

    @classmethod
    def of_lines(cls, lines: Iterable[str]) -> Self:
        """Return what the lines of the file say; damaged lines are left out."""
        rows: dict[str, list[dict[str, Any]]] = {}
        for line in lines:
            try:
                row = json.loads(line)
                rows.setdefault(row["kind"], []).append(row)
            except (ValueError, TypeError, KeyError, RecursionError):
                continue
        return cls(
            losses=tuple(row.get("loss") for row in rows.get("train", [])),
            epochs=tuple(rows.get("epoch", [])),
            test=rows["test"][-1] if "test" in rows else None,
        )


def run_totals(epochs: Sequence[TrainingEpoch]) -> dict[str, Any]:
    """Return what a run did in all its epochs, as plain values for `summary.json`."""
    works = [epoch.work for epoch in epochs]
    return {
        "epochs": len(epochs),
        "batches": sum(work.num_batches for work in works),
        "target_tokens": sum(epoch.target_tokens for epoch in epochs),
        "tokens_per_second": steady_tokens_per_second(epochs),
        "loss": [work.mean_loss for work in works],
        "host_waits": total_waits(epochs).as_dict(),
        "gap_share": total_gap_share(epochs),
        "data_wait_ms": sum(work.data_wait_ms for work in works),
        "launch_ms": sum(work.launch_ms for work in works),
        "busy_ms": sum(work.busy_ms for work in works),
        "train_seconds": sum(work.wall_ms for work in works) / 1000.0,
        "peak_memory_bytes": max((epoch.peak_memory_bytes for epoch in epochs), default=0),
    }


def total_waits(epochs: Sequence[TrainingEpoch]) -> WaitStats:
    """Return the host waits of all epochs."""
    waits = WaitStats()
    for epoch in epochs:
        waits.merge(epoch.work.waits)
    return waits


def steady_tokens_per_second(epochs: Sequence[TrainingEpoch]) -> float:
    """Return target tokens a second without the first epoch, which holds all warm-up.

    A run of one epoch has nothing else to show.
    """
    steady = epochs[1:] or epochs
    wall_ms = sum(epoch.work.wall_ms for epoch in steady)
    tokens = sum(epoch.target_tokens for epoch in steady)
    return tokens / wall_ms * 1000.0 if wall_ms else 0.0


def total_gap_share(epochs: Sequence[TrainingEpoch]) -> float | None:
    """Return the share of device time between steps over all epochs; None on a CPU."""
    gaps = [epoch.work.gap_ms for epoch in epochs if epoch.work.gap_ms is not None]
    busy_ms = sum(epoch.work.busy_ms for epoch in epochs)
    return gap_share(busy_ms, sum(gaps)) if gaps else None
