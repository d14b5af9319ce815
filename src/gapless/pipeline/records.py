"""What a step takes and gives, and what the loop says about an epoch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from gapless.pipeline.sync import SyncStats


if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from gapless.pipeline.auto import Diagnosis


@dataclass(frozen=True, kw_only=True)
class StepLoss:
    """The loss of one batch, on the device.

    Attributes:
        loss: one number, whose gradient the step follows.
        report: the loss to keep in the history; `loss` itself if None.
        weight: of this batch in the mean, such as its number of target tokens.
    """

    loss: torch.Tensor
    report: torch.Tensor | None = None
    weight: torch.Tensor | float = 1.0


@runtime_checkable
class SplitStep(Protocol):
    """A step in two parts, so that a plan can put them on streams of their own."""

    def forward(self, batch: Any) -> StepLoss:
        """Compute the loss of a batch."""

    def backward(self, out: StepLoss) -> None:
        """Compute gradients and update the weights."""


@runtime_checkable
class HostPart(Protocol):
    """What a step does on the host for each batch, such as counting or setting a rate.

    Captured work is launched again without the step's own code; this is called all the same.
    """

    def on_host(self, batch: Any) -> None:
        """Do it; called before the batch's work is queued, on the compute stream."""


WholeStep: TypeAlias = "Callable[[Any], StepLoss | torch.Tensor]"


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
    waits: SyncStats
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
    waits: SyncStats = field(default_factory=SyncStats)
    gap_share: float | None = None
    diagnosis: Diagnosis | None = None
