"""How far a run is, and how long it still takes."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

from gapless.records.training import RunProgress


if TYPE_CHECKING:
    from gapless.nmt.run.training_run import TrainingRun


class Pace:
    """Estimates when a run ends, from the time of its updates in this process.

    Validations and saves between updates count as well. The first update does not, for it takes
    longer than others. A limit of time ends a run earlier; that it stops getting better is not
    foreseen.

    Args:
        run: under way.
    """

    def __init__(self, run: TrainingRun) -> None:
        self._run = run
        self._first: int | None = None
        self._began = 0.0

    def progress(self) -> RunProgress:
        """Return how far the run is.

        Sync: Does not block the host.
        """
        step, total = self._run.step, self._run.total_updates
        return RunProgress(
            num_updates=step.num_updates,
            total_updates=total,
            learning_rate=step.learning_rate(),
            seconds_left=self._seconds_left(step.num_updates, total),
        )

    def _seconds_left(self, num_updates: int, total: int) -> float | None:
        now, limit = perf_counter(), self._run.time_limit.seconds_left
        if self._first is None:
            self._first, self._began = num_updates, now
        done = num_updates - self._first
        if done <= 0:
            return limit
        left = (now - self._began) / done * (total - num_updates)
        return left if limit is None else min(left, limit)
