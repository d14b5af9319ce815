"""Who watches a training run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol


if TYPE_CHECKING:
    from collections.abc import Mapping

    from gapless.records.epoch_record import Progress
    from gapless.records.training import RunProgress, TrainingEpoch


class Observer(Protocol):
    """Is told what a run does; the command line prints its progress from it."""

    def started(self, facts: dict[str, str]) -> None:
        """The run is ready; the facts say what is in force, each under its title."""

    def noted(self, text: str) -> None:
        """The run has something to say to its user; it says nothing twice."""

    def warned(self, text: str) -> None:
        """Something is not as it should be, and the run goes on."""

    def capturing_ahead(self, done: int, *, of: int) -> None:
        """This many of the fixed shapes are captured, before the run trains on any batch."""

    def epoch_started(
        self,
        epoch: int,
        *,
        num_epochs: int,
        num_batches: int,
        num_done: int,
        first_read: int,
        earlier_loss: float | None,
    ) -> None:
        """An epoch of this many batches begins, or goes on where some are done; epochs count from 1.

        Its first losses are read after batch `first_read` of it; `earlier_loss` is the newest that
        was read before.
        """

    def batch_queued(self, progress: Progress, *, run: RunProgress) -> None:
        """A batch was queued."""

    def validating(self) -> None:
        """A validation begins."""

    def validated(self, figures: Mapping[str, float]) -> None:
        """These are the figures of the newest validation; a resumed run tells the last it had."""

    def epoch_ended(self, record: TrainingEpoch) -> None:
        """An epoch is over."""

    def testing(self, count: int) -> None:
        """The final model begins to translate this many test sentences."""
