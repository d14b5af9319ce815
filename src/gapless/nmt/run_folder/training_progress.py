"""How far a run is. Its states keep this, so that it can be resumed exactly."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from gapless.records.training import TrainingEpoch


if TYPE_CHECKING:
    from gapless.nmt.run_folder.logs import LossLog
    from gapless.pipeline.host_waits import HostWaits
    from gapless.pipeline.losses.deferred_loss import DeferredLoss
    from gapless.records.epoch_record import EpochRecord


@dataclass(kw_only=True)
class TrainingProgress:
    """How far a run is.

    Attributes:
        epoch: epochs done.
        updates: updates done of the next epoch. With another number of ranks it goes on after them.
        batches: batches done of the next epoch, on each rank.
        losses: of those batches.
        weights: of those batches.
        records: of the epochs done, and of the unfinished one if batches of it are done.
        best_loss: lowest validation loss so far.
        best_bleu: highest validation BLEU so far.
        validations_without_better: since either of them was reached.
        validated_at: updates of the run at its newest validation; -1 before the first.
        validation_seconds: that validations took, in all processes of the run.
        wall_seconds: that the run took, in all its processes, up to the last state.
    """

    epoch: int = 0
    updates: int = 0
    batches: int = 0
    losses: list[float] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    records: list[TrainingEpoch] = field(default_factory=list)
    best_loss: float = math.inf
    best_bleu: float = -math.inf
    validations_without_better: int = 0
    validated_at: int = -1
    validation_seconds: float = 0.0
    wall_seconds: float = 0.0

    @property
    def batches_before(self) -> int:
        """Batches of the whole run so far."""
        return sum(record.work.num_batches for record in self.records)

    def add(
        self,
        result: EpochRecord,
        *,
        updates: int,
        weights: list[float],
        peak_memory_bytes: int,
    ) -> None:
        """Count what an epoch, or a part of one, did."""
        self.losses += result.losses
        self.weights += weights
        record = TrainingEpoch(
            number=self.epoch + 1, work=result, peak_memory_bytes=peak_memory_bytes
        )
        if self.batches:
            record = self.records.pop().followed_by(record)
        # Over all losses of the epoch: a mean of means would round twice, and differ in a resumed run.
        loss = weighted_mean(self.losses, self.weights)
        # The losses of single batches are in `metrics.jsonl`; kept here they would only take memory.
        record = replace(record, work=replace(record.work, mean_loss=loss, losses=[]))
        self.records.append(record)
        self.updates += updates
        self.batches += result.num_batches

    def end_epoch(self) -> TrainingEpoch:
        """Go to the next epoch; return the record of the one that ended."""
        self.epoch += 1
        self.updates = self.batches = 0
        self.losses, self.weights = [], []
        return self.records[-1]

    def note_validation(self, *, loss: float, bleu: float, updates: int) -> bool:
        """Take note of a validation; return whether its weights are the best so far.

        BLEU decides, and the loss where it is equal: of a small corpus the loss is lowest long before
        the translations are best. One of the same weights, as of a run that is resumed after its end,
        counts once.
        """
        if updates == self.validated_at:
            return False
        self.validated_at = updates
        is_best = (bleu, -loss) > (self.best_bleu, -self.best_loss)
        is_better = bleu > self.best_bleu or loss < self.best_loss
        self.best_bleu = max(bleu, self.best_bleu)
        self.best_loss = min(loss, self.best_loss)
        self.validations_without_better = 0 if is_better else self.validations_without_better + 1
        return is_best

    def forget_validations(self) -> None:
        """Let the next validation be the first: earlier ones had other text, or another score."""
        self.best_loss, self.best_bleu = math.inf, -math.inf
        self.validations_without_better, self.validated_at = 0, -1

    def state(self) -> dict[str, Any]:
        """Return plain values, as a run's states keep them.

        The keys are the format of a file.
        """
        return {
            "epoch": self.epoch,
            "updates": self.updates,
            "batches": self.batches,
            "losses": list(self.losses),
            "weights": list(self.weights),
            "records": [record.state() for record in self.records],
            "best_loss": self.best_loss,
            "best_bleu": self.best_bleu,
            "validations_without_better": self.validations_without_better,
            "validated_at": self.validated_at,
            "validation_seconds": self.validation_seconds,
            "wall_seconds": self.wall_seconds,
        }

    def copy(self) -> TrainingProgress:
        """Return a copy that does not change with this one."""
        return TrainingProgress.of_state(self.state())

    @classmethod
    def of_state(cls, state: dict[str, Any]) -> TrainingProgress:
        """Return the progress that `state` described.

        Args:
            state: of a run.
        """
        return cls(
            epoch=state["epoch"],
            updates=state["updates"],
            batches=state["batches"],
            losses=list(map(float, state["losses"])),
            weights=list(map(float, state["weights"])),
            records=[TrainingEpoch.of_state(record) for record in state["records"]],
            best_loss=state["best_loss"],
            best_bleu=state["best_bleu"],
            validations_without_better=state["validations_without_better"],
            validated_at=state["validated_at"],
            validation_seconds=state["validation_seconds"],
            wall_seconds=state["wall_seconds"],
        )


def weighted_mean(losses: list[float], weights: list[float]) -> float:
    """Return the mean of losses, rounded once; NaN if nothing has a weight."""
    total = math.fsum(weights)
    # Without those of weight 0: their loss may be NaN, and 0 * NaN is NaN.
    pairs = zip(losses, weights, strict=True)
    weighted = math.fsum(loss * weight for loss, weight in pairs if weight)
    return weighted / total if total else math.nan


# --- inside an epoch ---


class LateProgress:
    """Progress of a run inside an epoch, and what its metrics file holds by then.

    Made right after the update at which the state is saved; it is done when the losses of all its
    batches have been read and logged.

    Args:
        progress: where this process's part of the epoch began; a copy that nobody else changes.
        record: times and waits of that part so far.
        losses: of the loop.
        first: number in `losses` of the part's first batch.
        num_batches: done in the part.
        num_updates: done in the part.
        log: writes the losses to the metrics file.
        needs_finite: whether a loss that is NaN or infinite stops the run.
        peak_memory_bytes: most memory in use so far.

    Sync: Does not block the host; new losses are sent to it.
    """

    def __init__(
        self,
        progress: TrainingProgress,
        *,
        record: EpochRecord,
        losses: DeferredLoss,
        first: int,
        num_batches: int,
        num_updates: int,
        log: LossLog,
        needs_finite: bool,
        peak_memory_bytes: int,
    ) -> None:
        self._progress = progress
        self._record = record
        self._losses = losses
        self._first = first
        self._num_batches = num_batches
        self._num_updates = num_updates
        self._log = log
        self._needs_finite = needs_finite
        self._peak_memory_bytes = peak_memory_bytes
        self._batch = progress.batches_before + num_batches
        losses.flush()
        log.mark(self._batch)

    def is_done(self) -> bool:
        """Return whether all losses are read and logged.

        Sync: Does not block the host.
        """
        return self._log.content_at(self._batch) is not None

    def wait(self, host_waits: HostWaits, *, reason: str) -> None:
        """Wait until they are.

        Sync: Blocks the host until the last of them is computed and copied.
        """
        del host_waits  # the losses have an account of their own
        self._losses.wait_for_flushed(reason=reason)
        self._log.write_new()

    def is_spoiled(self) -> bool:
        """Return whether the run stops by one of the losses, so that nobody should resume from here."""
        return self._needs_finite and not all(math.isfinite(loss) for loss, _ in self._read())

    def _read(self) -> list[tuple[float, float]]:
        return self._losses.read_since(self._first)[: self._num_batches]

    def value(self) -> dict[str, Any]:
        """Return the parts of the state that had to be waited for."""
        read = self._read()
        weights = [weight for _, weight in read]
        record = replace(
            self._record,
            num_batches=len(read),
            losses=[loss for loss, _ in read],
            weight=sum(weights),
        )
        self._progress.add(
            record,
            updates=self._num_updates,
            weights=weights,
            peak_memory_bytes=self._peak_memory_bytes,
        )
        content = self._log.content_at(self._batch)
        assert content is not None
        return {"position": self._progress.state(), "metrics": asdict(content)}
