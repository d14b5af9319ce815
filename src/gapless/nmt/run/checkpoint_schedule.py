"""When the weights and the state of a run are saved, and what its state holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gapless.nmt.run.rank_agreement import check_same_weights
from gapless.nmt.run_folder.training_progress import LateProgress
from gapless.nmt.settings.interval import Interval


if TYPE_CHECKING:
    from gapless.nmt.run.rank_agreement import Decisions
    from gapless.nmt.run.training_run import TrainingRun
    from gapless.nmt.run_folder.checkpoint_writer import CheckpointWriter, SilentCheckpointWriter
    from gapless.nmt.run_folder.logs import LossLog, RunLogs, SilentRunLogs
    from gapless.pipeline.host_copy import HostCopy
    from gapless.records.epoch_record import Progress


class CheckpointSchedule:
    """Says when the weights and the state of a run are saved: one state at a time, on all ranks at once.

    Args:
        run: that is saved.
        writer: writes what is due.
        logs: of the run; each state says how much of its metrics file it covers.
        decisions: say whether somebody asked for a state.

    Attributes:
        is_saved: whether the newest state is that of the run as it is now.
    """

    def __init__(
        self,
        run: TrainingRun,
        *,
        writer: CheckpointWriter | SilentCheckpointWriter,
        logs: RunLogs | SilentRunLogs,
        decisions: Decisions,
    ) -> None:
        self._run = run
        self._writer = writer
        self._logs = logs
        self._decisions = decisions
        self._clock = run.due_clock(Interval.of(run.config.save_every))
        # The state that a resumed run began with is there already, with the settings that it had then.
        self.is_saved = run.covered is not None and not run.changed

    def is_due_after(self, progress: Progress, *, is_stopping: bool) -> bool:
        """Return whether the state is to be saved inside an epoch, after a batch.

        The end of an epoch, and of a run, has a state of its own.

        Args:
            progress: of the part of the epoch that is under way.
            is_stopping: whether the run was asked to stop.
        """
        run = self._run
        is_inside = progress.batch < len(run.sampler)
        ends_update = is_inside and run.sampler.ends_update(progress.batch - 1)
        if not ends_update or is_stopping:
            return False
        if not (self._clock.is_due(run.step.num_updates) or self._decisions.take_save()):
            return False
        if self._is_under_way():
            self._clock.owe()
            return False
        return True

    def _is_under_way(self) -> bool:
        """Return whether a state is being saved, by rank 0, so that there is no other now."""
        return self._run.ranks.share(self._writer.is_saving_state)

    def save_inside(
        self, progress: Progress, *, log: LossLog, first: int, first_update: int
    ) -> None:
        """Save the state inside an epoch, when the losses so far have come.

        Args:
            progress: of the part of the epoch that is under way.
            log: writes the losses to the metrics file.
            first: number of the part's first batch, among all of this process.
            first_update: updates before the part.

        Sync: With several ranks, blocks the host until all are here.
        """
        run = self._run
        assert progress.so_far is not None
        run.progress.wall_seconds = run.clock.seconds()
        late = LateProgress(
            run.progress.copy(),
            record=progress.so_far(),
            losses=run.loop.losses,
            first=first,
            num_batches=progress.batch,
            num_updates=run.step.num_updates - first_update,
            log=log,
            needs_finite=run.config.on_nonfinite == "stop",
            peak_memory_bytes=run.device.peak_memory_bytes(),
        )
        self._save(self._copy_weights(), late=late)

    def save_epoch(self, epoch: int) -> HostCopy:
        """Save the weights at the end of an epoch; return the copy, which `save_end_of_epoch` takes.

        Args:
            epoch: counted from 1.

        Sync: Does not block the host on the device, unless many copies are under way.
        """
        weights = self._copy_weights()
        self._writer.save_epoch(weights, epoch, step=self._run.step.num_updates)
        return weights

    def save_end_of_epoch(self, weights: HostCopy, *, is_best: bool, may_wait: bool) -> None:
        """Save the state at the end of an epoch, or leave it to the next batch while one is under way.

        Args:
            weights: of this moment.
            is_best: whether a validation found them the best so far.
            may_wait: whether a state that is under way is waited for.

        Sync: Blocks the host if it may wait and has to; with several ranks, until all are here.
        """
        if may_wait and self._writer.is_saving_state:
            # One state at a time. The device has waited for a validation as well.
            self._writer.drain()
        if self._is_under_way():
            self.is_saved = False
            self._clock.owe()
        else:
            self._save_now(weights, is_best=is_best)

    def save_best(self) -> None:
        """Save the state inside an epoch after a validation that found the best weights so far.

        Sync: Blocks the host until what is under way is written.
        """
        self._writer.drain()
        self._save_now(self._copy_weights(), is_best=True)

    def save_end(self) -> None:
        """Save the state that a run ends or stops with, if it is not saved yet.

        Sync: With several ranks, blocks the host until all are here.
        """
        if not self.is_saved:
            self._save_now(self._copy_weights())

    def _copy_weights(self) -> HostCopy:
        with self._run.loop.on_compute_stream():
            return self._writer.copy_weights(self._run.model)

    def _save_now(self, weights: HostCopy, *, is_best: bool = False) -> None:
        """Save the state of a moment whose losses have all come."""
        self._logs.flush()
        history = self._run.history(self._logs.metrics.content())
        self._save(weights, history=history, is_best=is_best)

    def _save(
        self,
        weights: HostCopy,
        *,
        history: dict[str, Any] | None = None,
        late: LateProgress | None = None,
        is_best: bool = False,
    ) -> None:
        run, updates = self._run, self._run.step.num_updates
        with run.loop.on_compute_stream():
            check_same_weights(
                dict(run.model.named_parameters()),
                run.ranks,
                host_waits=run.host_waits,
                updates=updates,
            )
            self._writer.save_state(
                {**run.state(), **(history or {})},
                weights=weights,
                step=updates,
                epoch=run.progress.epoch,
                late=late,
                is_best=is_best,
                sync_first=self._logs.metrics.sync,
            )
        self._clock.done(updates)
        self.is_saved = True
