"""Whether the model of a run learns: it warns if it cannot, or has not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.nmt.run.validation import training_loss


if TYPE_CHECKING:
    from collections.abc import Callable

    from gapless.nmt.run.training_run import TrainingRun


# A model that learns knows by then at least how frequent tokens are.
_ENOUGH_UPDATES = 100


class LearningWatch:
    """Looks at a run before it starts, once when its rate has been high for a while, and at its end.

    Args:
        run: to watch.
        warn: is called with a line for each reason why it learns nothing, once.
    """

    def __init__(self, run: TrainingRun, *, warn: Callable[[str], None]) -> None:
        self._run = run
        self._warn = warn
        self._has_looked = self._has_said_short = False

    def at_start(self) -> None:
        """Warn if the run has fewer updates than its warm-up, and any of them left."""
        if self._run.is_finished:
            return
        if self._run.total_updates <= self._run.config.warmup:
            self._say_short(self._run.total_updates, "makes")

    def at_validation(self) -> None:
        """Warn, after the warm-up, if the model has learned nothing but how frequent tokens are.

        It has as many updates after the warm-up as in it, and enough of them, or all that the run
        has.

        Sync: Blocks the host, once.
        """
        run, updates = self._run, self._run.step.num_updates
        warmup = run.config.warmup
        has_enough = updates >= max(2 * warmup, _ENOUGH_UPDATES)
        if self._has_looked or updates <= warmup or not (has_enough or run.is_finished):
            return
        self._has_looked = True
        loss, entropy = training_loss(run), run.task.train.target_entropy()
        if not loss < entropy:
            advice = "change `lr`, or train longer" if has_enough else "train longer"
            self._warn(
                f"update {updates:,}, after the warm-up{'' if has_enough else ' and the last'}: "
                f"a target token costs {loss:.2f} nats, and the frequencies of tokens alone would give "
                f"{entropy:.2f}; the model has learned nothing of the sources, so {advice}"
            )

    def at_end(self) -> None:
        """Warn if the run has ended within its warm-up."""
        if self._run.step.num_updates <= self._run.config.warmup:
            self._say_short(self._run.step.num_updates, "made")

    def _say_short(self, updates: int, verb: str) -> None:
        if self._has_said_short:
            return
        self._has_said_short = True
        self._warn(short_line(updates, warmup=self._run.config.warmup, verb=verb))


def short_line(updates: int, *, warmup: int, verb: str = "makes") -> str:
    """Return what is wrong with a run that ends within its warm-up."""
    return (
        f"the run {verb} {updates:,} updates, but its rate rises for {warmup:,}: "
        f"it learns next to nothing; lower `warmup` to {updates // 10}, or train longer"
    )
