"""Says of a run that it cannot learn, while there is time to stop it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.nmt.run.validation import training_loss


if TYPE_CHECKING:
    from collections.abc import Callable

    from gapless.nmt.run.training_run import TrainingRun


class LearningWatch:
    """Looks at a run before it starts, once after its warm-up, and at its end.

    Args:
        run: to watch.
        warn: is called with a line for each reason why it learns nothing, once.
    """

    def __init__(self, run: TrainingRun, *, warn: Callable[[str], None]) -> None:
        self._run = run
        self._warn = warn
        self._is_warmed_up = self._has_said_short = False

    def at_start(self) -> None:
        """Warn if the run has fewer updates than its warm-up."""
        if self._run.total_updates <= self._run.config.warmup:
            self._say_short(self._run.total_updates, "makes")

    def at_validation(self) -> None:
        """Warn, after the warm-up, if the model has learned nothing but how frequent tokens are.

        Sync: Blocks the host, at the first call after the warm-up.
        """
        run = self._run
        if self._is_warmed_up or run.step.num_updates <= run.config.warmup:
            return
        self._is_warmed_up = True
        loss, entropy = training_loss(run), run.task.train.target_entropy()
        if not loss < entropy:
            self._warn(
                f"after the warm-up a target token costs {loss:.2f} nats, and the frequencies of "
                f"tokens alone would give {entropy:.2f}: the model has learned nothing of the "
                "sources yet; lower or raise `lr`, or train longer"
            )

    def at_end(self) -> None:
        """Warn if the run has ended within its warm-up."""
        if self._run.step.num_updates <= self._run.config.warmup:
            self._say_short(self._run.step.num_updates, "made")

    def _say_short(self, updates: int, verb: str) -> None:
        if self._has_said_short:
            return
        self._has_said_short = True
        self._warn(
            f"the run {verb} {updates:,} updates, but its rate rises for {self._run.config.warmup:,}: "
            f"it learns next to nothing; lower `warmup` to {updates // 10}, or train longer"
        )
