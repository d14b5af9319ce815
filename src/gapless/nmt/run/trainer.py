"""Train a translation model: epochs, validation, checkpoints, final scores."""

from __future__ import annotations

import math
from contextlib import closing
from time import perf_counter
from typing import TYPE_CHECKING, Any, Self

from gapless.errors import NonFiniteLossError
from gapless.nmt.data.sampler import PairBatches, make_loader
from gapless.nmt.run import checkpoints
from gapless.nmt.run.folder import LossLog, RunFolder, forget_later
from gapless.nmt.run.interrupt import StopRequest, until_stopped
from gapless.nmt.run.nonfinite import LossWatch
from gapless.nmt.run.saver import Saver
from gapless.nmt.run.summary import describe_run, summarize
from gapless.nmt.run.training_run import new_run, resumed_run
from gapless.nmt.run.validation import score_pairs, validate
from gapless.pipeline.loader_worker import prepare_worker
from gapless.pipeline.loaders import LoaderPart
from gapless.pipeline.watched_loader import WatchedLoader


if TYPE_CHECKING:
    from pathlib import Path

    from gapless.nmt.data.batch import AnyBatch
    from gapless.nmt.run.config import TrainConfig
    from gapless.nmt.run.observer import Observer
    from gapless.nmt.run.score import Scores
    from gapless.nmt.run.training_run import TrainingRun
    from gapless.pipeline.host_copy import HostCopy
    from gapless.records.epoch_record import Progress
    from gapless.records.training import TrainingEpoch


class Trainer:
    """Trains a run to its end; `Trainer.new` and `Trainer.resume` make one.

    Args:
        run: to train.
        observer: is told what happens.
        saved_batches: batches done in the state that the run resumes from, if there is one.
    """

    def __init__(
        self, run: TrainingRun, *, observer: Observer, saved_batches: int | None = None
    ) -> None:
        self.run = run
        self._observer = observer
        self._saver = Saver(
            run.run_dir,
            host_waits=run.host_waits,
            keep=run.config.average,
            state_epoch=run.position.epoch,
        )
        self._saved_batches = saved_batches
        self._warm_up_seconds = 0.0
        self._noted: set[str] = set()

    @classmethod
    def new(cls, config: TrainConfig, *, observer: Observer) -> Self:
        """Start a run.

        Args:
            config: of the run.
            observer: is told what happens.

        Raises:
            UserError: anything about settings, data, device or run folder that cannot be used; it
                is raised before anything is written.
        """
        return cls(new_run(config), observer=observer)

    @classmethod
    def resume(cls, config: TrainConfig, run_dir: Path, *, observer: Observer) -> Self:
        """Resume a run from the last state that it saved.

        Args:
            config: of the run.
            run_dir: folder of the run.
            observer: is told what happens.

        Raises:
            UserError: anything about settings, data, device or run folder that cannot be used; it
                is raised before anything is written.
        """
        run = resumed_run(config, run_dir)
        return cls(run, observer=observer, saved_batches=run.position.batches_before)

    def train(self, *, stop: StopRequest | None = None) -> dict[str, Any]:
        """Train, score the final model on the test pairs, and return the summary.

        Args:
            stop: is asked whether to stop; None: by signals, of which a second SIGINT raises
                KeyboardInterrupt.

        Raises:
            NonFiniteLossError: a loss was NaN or infinite, and the run does not skip such updates.
            LoaderError: a worker process of the loader died, raised, or was silent.
            OSError: the disk is full.

        Sync: Blocks the host as the plan says, and between epochs.
        """
        run = self.run
        self._observer.started(describe_run(run))
        forget_later(run.run_dir, batches=run.position.batches_before, epochs=run.position.epoch)
        stop = stop or StopRequest()
        with run.loop, self._saver, RunFolder(run.run_dir) as folder, stop:
            self._capture_ahead()
            with closing(self._loader()) as loader:
                self._run_epochs(loader, folder, stop)
            scores = None if stop.is_set else self._test(folder)
            summary = summarize(
                run, scores, interrupted=stop.is_set, warm_up_seconds=self._warm_up_seconds
            )
            folder.write_summary(summary)
            return summary

    def _capture_ahead(self) -> None:
        """Capture every fixed shape before the run, if the plan captures and the device can."""
        start = perf_counter()
        if self.run.loop.captures_ahead:
            self._capture_each_shape()
            self._note_decisions()
        self._warm_up_seconds = perf_counter() - start

    def _capture_each_shape(self) -> None:
        run, step = self.run, self.run.step
        pairs = PairBatches(run.task.train)
        examples = [pairs[micro] for micro in run.sampler.one_of_each()]
        run.model.train()
        self._observer.capturing_ahead(0, of=len(examples))
        run.loop.capture_ahead(
            examples,
            step,
            model=run.model,
            optimizer=step.optimizer,
            scaler=step.scaler if step.scaler.is_enabled() else None,
            on_batch=lambda done: self._observer.capturing_ahead(done, of=len(examples)),
        )

    def _note_decisions(self) -> None:
        """Say what plan `auto` decided, or why a step is not captured, when it is new."""
        diagnosis, capture = self.run.loop.diagnosis, self.run.loop.capture_report
        if diagnosis is not None:
            text = diagnosis.line
        elif capture is not None and (capture.refusal or capture.note):
            text = f"steps that are not captured run eagerly: {capture.refusal or capture.note}"
        else:
            return
        if text not in self._noted:
            self._noted.add(text)
            self._observer.noted(text)

    # --- epochs ---

    def _loader(self) -> WatchedLoader[AnyBatch]:
        run = self.run
        loader = make_loader(
            run.task.train, run.sampler, workers=run.workers, prepare_worker=prepare_worker
        )
        return WatchedLoader(loader, timeout_seconds=run.config.loader_timeout)

    def _run_epochs(
        self, loader: WatchedLoader[AnyBatch], folder: RunFolder, stop: StopRequest
    ) -> None:
        run = self.run
        while not run.is_finished and not stop.is_set:
            self._run_epoch(loader, folder, stop)
            # A rest is left if the run was stopped, or is at its last update.
            if run.position.batches >= run.sampler.whole_epoch:
                self._close_epoch(run.position.end_epoch(), folder)
        if run.position.batches and not stop.is_set:
            self._close_epoch(run.position.records[-1], folder)
        if self._saved_batches != run.position.batches_before:
            self._save_state(self._copy_weights())

    def _run_epoch(
        self, loader: WatchedLoader[AnyBatch], folder: RunFolder, stop: StopRequest
    ) -> None:
        """Train on the batches of an epoch that are not done yet."""
        run, position, losses = self.run, self.run.position, self.run.loop.losses
        run.sampler.set_epoch(position.epoch, skip=position.batches, max_updates=run.updates_left)
        self._observer.epoch_started(
            position.epoch + 1, num_batches=len(run.sampler), num_epochs=run.config.epochs
        )
        log = LossLog(folder, losses, first_batch=position.batches_before)
        watch = LossWatch(
            losses,
            first_batch=position.batches_before,
            first_update=run.step.num_updates + 1,
            accumulate=run.config.accumulate,
            on_skipped=self._note_skipped if run.config.on_nonfinite == "skip" else None,
        )

        def on_batch(progress: Progress) -> None:
            log.write_new()
            watch.look()
            self._note_decisions()
            self._saver.poll()
            self._observer.batch_queued(progress, num_updates=run.step.num_updates)

        run.model.train()
        batches = LoaderPart(loader, lambda loader: until_stopped(loader, stop))
        result = run.loop.run_epoch(batches, run.step, on_batch=on_batch)
        log.write_new()
        watch.look()
        read = losses.read_since(losses.num_added - result.num_batches)
        position.add(
            result,
            weights=[weight for _, weight in read],
            peak_memory_bytes=run.device.peak_memory_bytes(),
        )

    def _close_epoch(self, record: TrainingEpoch, folder: RunFolder) -> None:
        """Save the weights after an epoch, or a part of the last one, and validate them."""
        run = self.run
        weights = self._copy_weights()
        self._saver.save_epoch(weights, record.number)
        if record.number % run.config.val_interval == 0 or run.is_finished:
            record.validation.update(validate(run, on_batch=self._saver.poll))
            self._check_validation(record.validation["val_loss"])
            self._keep_if_best(weights, record.validation["val_loss"])
        if self._saver.state_is_due():
            self._save_state(weights)
        folder.log_epoch(record)
        self._observer.epoch_ended(record)

    def _note_skipped(self, update: int, loss: float) -> None:
        self._observer.noted(f"the loss of update {update} is {loss}; the update is skipped")

    def _check_validation(self, loss: float) -> None:
        if not math.isfinite(loss) and self.run.config.on_nonfinite == "stop":
            place = f"the validation after update {self.run.step.num_updates}"
            raise NonFiniteLossError(self.run.position.batches_before, loss, place=place)

    def _keep_if_best(self, weights: HostCopy, loss: float) -> None:
        if loss < self.run.position.best_loss:
            self.run.position.best_loss = loss
            self._saver.save_best(weights)

    # --- the end ---

    def _test(self, folder: RunFolder) -> Scores:
        """Score the mean of the newest weights, which becomes the final model."""
        run = self.run
        self._saver.finish()
        paths = checkpoints.epoch_paths(run.run_dir)[-run.config.average :]
        weights = checkpoints.average_weights(paths)
        with run.loop.on_compute_stream(), run.host_waits.blocking("checkpoint"):
            checkpoints.set_weights(run.model, weights, path=paths[-1])
        checkpoints.write_weights(weights, checkpoints.final_path(run.run_dir))
        pairs = run.task.corpus.test
        self._observer.testing(len(pairs))
        scores = score_pairs(run, pairs, beam=run.config.beam)
        folder.log("test", step=len(run.position.records), bleu=scores.bleu, chrf=scores.chrf)
        return scores

    # --- what a run resumes from ---

    def _copy_weights(self) -> HostCopy:
        with self.run.loop.on_compute_stream():
            return self._saver.copy_weights(self.run.model)

    def _save_state(self, weights: HostCopy) -> None:
        run = self.run
        with run.loop.on_compute_stream():
            self._saver.save_state(run.state(), weights=weights, epoch=run.position.epoch)
        self._saved_batches = run.position.batches_before
