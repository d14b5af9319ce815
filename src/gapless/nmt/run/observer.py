"""Who watches a training run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol


if TYPE_CHECKING:
    from gapless.records.epoch import EpochRecord, Progress


class Observer(Protocol):
    """Sees a run go by; the command line draws its progress from it."""

    def started(self, facts: dict[str, str]) -> None:
        """The run is ready; the facts say what is in force."""

    def noted(self, text: str) -> None:
        """Something about the run that its user should know; each is said once."""

    def warming_up(self, done: int, *, of: int) -> None:
        """So many shapes of batches are compiled and captured, ahead of the run."""

    def epoch_started(self, epoch: int, *, num_batches: int, num_epochs: int) -> None:
        """An epoch of so many batches begins; epochs count from 1."""

    def batch_queued(self, progress: Progress, *, num_updates: int) -> None:
        """A batch was queued."""

    def epoch_ended(self, record: EpochRecord) -> None:
        """An epoch is over."""

    def testing(self, count: int) -> None:
        """The final model begins to translate so many test sentences."""
