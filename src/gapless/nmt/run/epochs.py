"""The epochs of a run: what happens after each batch, between two parts, and at an epoch's end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gapless.errors import UserError
from gapless.nmt.run.nonfinite import LossWatch
from gapless.nmt.run.out_of_memory import OF_BATCHES
from gapless.nmt.run.run_report import TimeEstimate
from gapless.nmt.run.stopping import until_stopped
from gapless.nmt.run_folder.logs import LossLog
from gapless.pipeline.loaders import LoaderPart
from gapless.report.training_text import EpochTitle


if TYPE_CHECKING:
    from gapless.nmt.data.batch import AnyBatch
    from gapless.nmt.run.checkpoint_schedule import CheckpointSchedule
    from gapless.nmt.run.learning import LearningWatch
    from gapless.nmt.run.rank_agreement import Decisions
    from gapless.nmt.run.run_report import Messages
    from gapless.nmt.run.stopping import StopRequest
    from gapless.nmt.run.training_run import TrainingRun
    from gapless.nmt.run.validation import Validations
    from gapless.nmt.run_folder.checkpoint_writer import CheckpointWriter, SilentCheckpointWriter
    from gapless.nmt.run_folder.logs import RunLogs, SilentRunLogs
    from gapless.pipeline.watched_loader import WatchedLoader
    from gapless.records.epoch_record import EpochRecord, Progress
    from gapless.records.training import TrainingEpoch


@dataclass(frozen=True, kw_only=True)
class Epochs:
    """Takes a run through its epochs: parts of them are trained, with validations and saves between.

    Attributes:
        run: to train.
        logs: of the run.
        writer: writes its checkpoints.
        schedule: says when.
        validations: of the run.
        learning: looks at the end of training whether the model could learn.
        decisions: of its ranks.
        messages: tell what happens.
        stop: the request to stop.
    """

    run: TrainingRun
    logs: RunLogs | SilentRunLogs
    writer: CheckpointWriter | SilentCheckpointWriter
    schedule: CheckpointSchedule
    validations: Validations
    learning: LearningWatch
    decisions: Decisions
    messages: Messages
    stop: StopRequest

    def train(self, loader: WatchedLoader[AnyBatch]) -> None:
        """Train to the end of the run, or until it is asked to stop, and save the last state.

        Args:
            loader: of the batches that the run's sampler chooses.

        Raises:
            UserError: the limit of time leaves none for training.
            NonFiniteLossError: a loss was NaN or infinite, and the run does not skip such updates.
            LoaderError: the loader failed within an update.
            OSError: a file could not be written.

        Sync: Blocks the host as the plan says, and between epochs.
        """
        run, stop = self.run, self.stop
        estimate, had_ended = TimeEstimate(run), run.is_finished
        self._go_on_from_validations()
        while not run.is_finished and not stop.is_set:
            self._train_part(loader, estimate)
            if self.validations.are_due_inside(is_stopping=stop.is_set):
                self._validate_inside()
            # Otherwise the run was stopped, or is at its last update, inside an epoch that is not over.
            if run.progress.updates >= run.sampler.num_updates:
                self._close_epoch(run.progress.end_epoch())
        if run.progress.updates and not stop.is_set:
            self._close_epoch(run.progress.records[-1])
        if not stop.is_set:
            if had_ended:
                self.messages.note_nothing_left()
            else:
                self.learning.at_end()
                self.messages.note_early_end()
        self.schedule.save_end()

    def _go_on_from_validations(self) -> None:
        """Show those of a resumed run, and make one that was due when it was stopped."""
        run = self.run
        if run.is_finished and not run.step.num_updates:
            raise UserError(
                f"`max_time` is {run.config.max_time}, of which the start and the end of the run leave "
                "nothing for training; give it more"
            )
        for record in run.progress.records:
            if record.validation:
                self.messages.observer.validated(record.validation)
        if self.validations.are_due_inside(is_stopping=self.stop.is_set):
            self._validate_inside()

    def _train_part(self, loader: WatchedLoader[AnyBatch], estimate: TimeEstimate) -> None:
        """Train on the batches of an epoch that are not done yet, up to the next validation."""
        run, progress, losses = self.run, self.run.progress, self.run.loop.losses
        run.sampler.set_epoch(
            progress.epoch,
            skip=progress.updates,
            max_updates=self.validations.updates_to_go(),
        )
        num_done = run.sampler.num_skipped
        earlier = losses.read_since(max(0, losses.num_added - 1))
        self.messages.observer.epoch_started(
            EpochTitle(
                number=progress.epoch + 1,
                num_epochs=run.last_epoch,
                num_batches=run.sampler.whole_epoch,
                num_done=num_done,
                first_read=num_done + min(run.loop.plan.loss_interval, len(run.sampler)),
                earlier_loss=earlier[-1][0] if earlier else None,
            )
        )
        part = _Part(self, estimate)
        run.model.train()
        batches = LoaderPart(
            loader,
            lambda loader: until_stopped(loader, self.stop, is_over=self.validations.is_part_over),
        )
        with run.naming_phase("training", lower=OF_BATCHES):
            result = run.loop.run_epoch(batches, run.step, on_batch=part.on_batch)
        part.end(result)
        self.decisions.settle()

    def _close_epoch(self, record: TrainingEpoch) -> None:
        """Save the weights after an epoch, or a part of the last one, and validate them."""
        run, observer = self.run, self.messages.observer
        is_whole = not run.progress.updates
        validates = self.validations.are_due_after(record.number)
        if run.config.average == "auto" and not validates and not record.validation:
            # Writing a checkpoint could take longer than so short an epoch.
            self.logs.log_epoch(record)
            observer.epoch_ended(record)
            return
        weights = self.schedule.save_epoch(record.number)
        is_best = validates and self.validations.validate(record)
        # A run that ends inside an epoch logs it after the state, or a resumed run would keep the line
        # and log the epoch twice.
        if is_whole:
            self.logs.log_epoch(record)
        self.schedule.save_end_of_epoch(weights, is_best=is_best, may_wait=is_best or not is_whole)
        if not is_whole:
            self.logs.log_epoch(record)
        observer.epoch_ended(record)

    def _validate_inside(self) -> None:
        """Validate inside an epoch, and save the state if it is the best so far."""
        run = self.run
        record = run.progress.records[-1]
        is_best = self.validations.validate(record)
        self.logs.log("validation", step=run.step.num_updates, waits=None, **record.validation)
        figures = ", ".join(f"{name} {value:.4g}" for name, value in record.validation.items())
        self.messages.observer.noted(f"update {run.step.num_updates}: {figures}")
        if is_best:
            self.schedule.save_best()


class _Part:
    """A part of an epoch, which is trained without a break: looks after each of its batches.

    Args:
        epochs: of the run, of whose epoch the sampler gives this part.
        estimate: says when the run ends.
    """

    def __init__(self, epochs: Epochs, estimate: TimeEstimate) -> None:
        self._epochs = epochs
        self._estimate = estimate
        run, messages = epochs.run, epochs.messages
        losses, first_batch = run.loop.losses, run.progress.batches_before
        self._watch = LossWatch(
            first_batch=first_batch,
            first_update=run.step.num_updates + 1,
            update_of=run.sampler.update_of,
            on_skipped=messages.note_skipped if run.config.on_nonfinite == "skip" else None,
        )
        self._log = LossLog(
            epochs.logs, losses, first_batch=first_batch, look_at=self._watch.look_at
        )
        self._first, self._first_update = losses.num_added, run.step.num_updates

    def on_batch(self, progress: Progress) -> None:
        """Look after a batch that was queued.

        Raises:
            NonFiniteLossError: the run fails by a loss, on all of its ranks.
            OSError: a file could not be written.

        Sync: Does not block the host on the device, unless all ranks agree on something.
        """
        run, messages = self._epochs.run, self._epochs.messages
        decisions, schedule = self._epochs.decisions, self._epochs.schedule
        self._log.write_new()
        if self._watch.error is not None:
            decisions.ask_to_fail()
        messages.note_plan()
        self._epochs.writer.poll()
        schedule.is_saved = False
        if run.sampler.ends_update(progress.batch - 1):
            decisions.after_update(run.step.num_updates)
        if decisions.fails:
            self._log.write_new()
            self._watch.check()
        if schedule.is_due_after(progress, is_stopping=self._epochs.stop.is_set):
            schedule.save_inside(
                progress, log=self._log, first=self._first, first_update=self._first_update
            )
        messages.observer.batch_queued(progress, run=self._estimate.progress())

    def end(self, result: EpochRecord) -> None:
        """Take note that the part is over.

        Args:
            result: of its batches, all of whose losses are read.

        Raises:
            NonFiniteLossError: a loss is NaN or infinite, and the run does not skip such updates.
        """
        run, losses = self._epochs.run, self._epochs.run.loop.losses
        self._log.write_new()
        self._watch.check()
        read = losses.read_since(losses.num_added - result.num_batches)
        run.progress.add(
            result,
            updates=run.step.num_updates - self._first_update,
            weights=[weight for _, weight in read],
            peak_memory_bytes=run.device.peak_memory_bytes(),
        )
