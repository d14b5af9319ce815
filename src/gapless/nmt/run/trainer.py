"""Train a translation model: epochs, validation, checkpoints, final scores."""

from __future__ import annotations

import math
from contextlib import closing, nullcontext, suppress
from time import perf_counter
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from gapless.errors import LoaderError, NonFiniteLossError, UserError
from gapless.nmt.data.sampler import PairBatches, make_loader
from gapless.nmt.model.compiling import declared_compiles
from gapless.nmt.run.final_model import FinalModel, averaged_model, best_of_all, put_weights
from gapless.nmt.run.new_run import new_run
from gapless.nmt.run.nonfinite import LossWatch
from gapless.nmt.run.out_of_memory import naming_phase
from gapless.nmt.run.rank_agreement import check_same_weights, decisions_of
from gapless.nmt.run.rank_warnings import RankWarnings
from gapless.nmt.run.resume import resumed_run
from gapless.nmt.run.run_report import Pace, SilentObserver, describe_run, summarize
from gapless.nmt.run.stopping import StopNow, StopRequest, until_stopped
from gapless.nmt.run.validation import LearningWatch, score_pairs, validate
from gapless.nmt.run_folder import checkpoints
from gapless.nmt.run_folder.disk_space import DiskTroubles
from gapless.nmt.run_folder.folder import files_of_run, forget_later
from gapless.nmt.run_folder.logs import ErrorLog, LossLog, RunFolder, SilentFolder, SilentLog
from gapless.nmt.run_folder.saver import Saver, SilentSaver
from gapless.nmt.run_folder.training_progress import LateHistory
from gapless.nmt.settings.interval import DueClock
from gapless.pipeline.loader_worker import prepare_worker
from gapless.pipeline.loaders import LoaderPart
from gapless.pipeline.watched_loader import WatchedLoader
from gapless.records.epoch_record import total
from gapless.report.epoch_text import waits_table
from gapless.report.text import counted, duration


if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    from gapless.device.base import Device
    from gapless.nmt.data.batch import AnyBatch
    from gapless.nmt.run.new_run import ChosenRun
    from gapless.nmt.run.run_report import Observer
    from gapless.nmt.run.scoring import Scores
    from gapless.nmt.run.training_run import TrainingRun
    from gapless.nmt.settings.config import TrainConfig
    from gapless.pipeline.host_copy import HostCopy
    from gapless.ranks import Ranks
    from gapless.records.epoch_record import EpochRecord, Progress
    from gapless.records.training import TrainingEpoch

    AnyFolder: TypeAlias = RunFolder | SilentFolder


# Settings that take less memory when they are lower.
_OF_BATCHES = "`batch_tokens` or `batch_size`, and raise `accumulate`; or lower `capture_memory`"
# Seconds beyond a limit of time that are worth a word.
_WORTH_TELLING = 5.0
_OF_MODELS = "`d_model`, `ffn` or the number of layers"


class Trainer:
    """Trains a run to its end; `Trainer.new` and `Trainer.resume` make one.

    Args:
        run: to train.
        observer: is told what happens, on rank 0 alone.
    """

    def __init__(self, run: TrainingRun, *, observer: Observer) -> None:
        self.run = run
        self._is_first = run.ranks.is_first
        self._observer: Observer | SilentObserver = (
            observer if self._is_first else SilentObserver()
        )
        self._files = files_of_run(run.config, run.task.vocabs)
        self._error_log = ErrorLog(run.run_dir) if self._is_first else SilentLog()
        self._disk_troubles = DiskTroubles(self._warn)
        self._saver = self._make_saver() if self._is_first else SilentSaver(run.device)
        now = None if run.ranks.world == 1 else run.clock.seconds
        updates = run.step.num_updates
        self._clock = DueClock(run.config.save_interval(), updates=updates, now=now)
        interval = run.config.validation_interval()
        self._validation_clock = (
            None if interval is None else DueClock(interval, updates=updates, now=now)
        )
        if self._validation_clock is not None and self._lacks_validation():
            self._validation_clock.owe()
        # The state that a resumed run began with is there already, with the settings that it had then.
        self._is_saved = run.covered is not None and not run.changed
        self._has_trained = False
        self._warm_up_seconds = 0.0
        self._final_name: str | None = None
        self._noted: set[str] = set()
        self._learning = LearningWatch(run, warn=self._warn)
        self._warnings = RankWarnings(run.ranks, say=self._observer.warned)

    def _lacks_validation(self) -> bool:
        """Return whether a resumed run was stopped, or its state saved, before a validation that was due."""
        updates, interval = self.run.step.num_updates, self.run.config.validation_interval()
        if interval is None or interval.updates is None or not updates:
            return False
        is_due = updates % interval.updates == 0
        return is_due and self.run.position.validated_at != updates

    def _make_saver(self) -> Saver:
        run = self.run
        return Saver(
            run.run_dir,
            host_waits=run.host_waits,
            files=self._files,
            keep=run.config.num_averaged,
            keep_states=run.config.keep,
            state_epochs=checkpoints.state_epochs(run.run_dir),
            disk_troubles=self._disk_troubles,
        )

    @classmethod
    def new(
        cls,
        config: TrainConfig,
        *,
        observer: Observer,
        chosen: ChosenRun | None = None,
        ranks: Ranks | None = None,
        device: Device | None = None,
    ) -> Self:
        """Start a run.

        Args:
            config: of the run.
            observer: is told what happens.
            chosen: how these settings were chosen, if they were; as `new_run` says.
            ranks: that train it together; None: this process alone.
            device: of this rank; None: as the settings say.

        Raises:
            UserError: anything about settings, data, device or run folder that cannot be used; it
                is raised before anything is written.
        """
        with naming_phase("building the model", lower=_OF_MODELS):
            run = new_run(config, chosen=chosen, ranks=ranks, device=device)
        return cls(run, observer=observer)

    @classmethod
    def resume(
        cls,
        config: TrainConfig,
        run_dir: Path,
        *,
        observer: Observer,
        ranks: Ranks | None = None,
        device: Device | None = None,
    ) -> Self:
        """Resume a run from the newest whole state that it saved.

        Args:
            config: of the run.
            run_dir: folder of the run.
            observer: is told what happens.
            ranks: that train it together; None: this process alone.
            device: of this rank; None: as the settings say.

        Raises:
            UserError: anything about settings, data, device or run folder that cannot be used; it
                is raised before anything is written.
        """
        with naming_phase("building the model", lower=_OF_MODELS):
            run = resumed_run(config, run_dir, ranks=ranks, device=device)
        return cls(run, observer=observer)

    def train(self, *, stop: StopRequest | None = None) -> dict[str, Any]:
        """Train, score the final model on the test pairs, and return the summary.

        Args:
            stop: is asked whether to stop; None: by signals, of which a second SIGINT raises
                KeyboardInterrupt.

        Raises:
            NonFiniteLossError: a loss was NaN or infinite, and the run does not skip such updates.
            OutOfMemoryError: memory is short; the text says where and what to lower.
            LoaderError: a worker process of the loader died, raised, or was silent.
            OSError: the disk is full.

        Sync: Blocks the host as the plan says, and between epochs.
        """
        try:
            return self._train(stop or StopRequest())
        except Exception as error:
            self._error_log.error(error, update=self.run.step.num_updates)
            raise
        finally:
            self.run.lock.release()

    def _train(self, stop: StopRequest) -> dict[str, Any]:
        run = self.run
        self._observer.started(describe_run(run))
        for choice in run.choices:
            self._observer.noted(choice.line)
        self._learning.at_start()
        if self._is_first:
            self._forget_later()
        folder = self._open_folder()
        self._decisions = decisions_of(
            run.ranks,
            stop=stop,
            clock=run.clock,
            losses=run.loop.losses,
            host_waits=run.host_waits,
        )
        # The request is the last to go: a second SIGTERM must not cut the last save short.
        with self._warnings, stop, run.loop, folder, self._saver, self._declared_compiles():
            self._capture_ahead(stop)
            # After the captures, which give back the page-locked memory that torch keeps.
            self._saver.reserve(run.model)
            with closing(self._loader(stop)) as loader:
                self._run_epochs(loader, folder, stop)
            self._warnings.gather()
            if stop.failure is not None and stop.number is None:
                saved = f"update {run.step.num_updates} is saved"
                raise LoaderError(f"{stop.failure}; {saved}") from stop.failure
            scores = None if stop.is_set else self._test_together(folder, stop)
            summary = summarize(
                run,
                scores,
                interrupted=scores is None,
                warm_up_seconds=self._warm_up_seconds,
                final_weights=self._final_name,
            )
            folder.write_summary(summary)
        run.ranks.note_done()
        return summary

    def _declared_compiles(self) -> AbstractContextManager[None]:
        """Return a context in which other ranks know of it when this one compiles."""
        run = self.run
        if run.ranks.world == 1 or not run.resolved.compiles:
            return nullcontext()
        return declared_compiles(lambda: run.ranks.pause("compilation"))

    def _open_folder(self) -> AnyFolder:
        if not self._is_first:
            return SilentFolder()
        return RunFolder(self.run.run_dir, troubles=self._disk_troubles)

    def _forget_later(self) -> None:
        """Say what was found when the run was resumed, and remove what came after its state."""
        run = self.run
        damage = forget_later(
            run.run_dir,
            covered=run.covered,
            updates=run.step.num_updates,
            batches=run.position.batches_before,
            epochs=run.position.epoch,
            is_finished=run.is_finished,
        )
        for note in [*run.notes, *([damage] if damage else [])]:
            self._warn(note)

    def _warn(self, text: str) -> None:
        self._observer.warned(text)
        self._error_log.warning(text, update=self.run.step.num_updates)

    def _naming_phase(self, phase: str, *, lower: str) -> AbstractContextManager[None]:
        run = self.run

        def graph_bytes() -> int:
            report = run.loop.capture_report
            return 0 if report is None else report.captured_bytes

        return naming_phase(phase, lower=lower, shape=run.step.shape, graph_bytes=graph_bytes)

    def _capture_ahead(self, stop: StopRequest) -> None:
        """Capture every fixed shape before the run, if the plan captures and the device can."""
        start = perf_counter()
        if self.run.loop.captures_ahead:
            with suppress(StopNow), self.run.ranks.pause("capture"):
                self._capture_each_shape(stop)
            self._note_decisions()
        self._warm_up_seconds = perf_counter() - start

    def _capture_each_shape(self, stop: StopRequest) -> None:
        run, step = self.run, self.run.step
        pairs = PairBatches(run.task.train)
        examples = [pairs[micro] for micro in run.sampler.one_of_each()]
        run.model.train()
        self._observer.capturing_ahead(0, of=len(examples))

        def on_batch(done: int) -> None:
            self._observer.capturing_ahead(done, of=len(examples))
            self._decisions.settle()
            stop.check()
            for following in examples[done : done + 1]:
                step.note_size(following)

        for first in examples[:1]:
            step.note_size(first)
        naming = self._naming_phase("capturing a step ahead", lower=_OF_BATCHES)
        with naming, run.loop.on_compute_stream(), step.uncounted():
            run.loop.capture_ahead(
                examples,
                step,
                model=run.model,
                optimizer=step.optimizer,
                scaler=step.scaler if step.scaler.is_enabled() else None,
                on_batch=on_batch,
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
        self._note_once(text)

    def _note_once(self, text: str) -> None:
        if text not in self._noted:
            self._noted.add(text)
            self._observer.noted(text)

    # --- epochs ---

    def _loader(self, stop: StopRequest) -> WatchedLoader[AnyBatch]:
        run = self.run
        loader = make_loader(
            run.task.train, run.sampler, workers=run.workers, prepare_worker=prepare_worker
        )
        return WatchedLoader(
            loader,
            timeout_seconds=run.config.loader_timeout,
            is_urgent=lambda: stop.is_set,
        )

    def _run_epochs(
        self, loader: WatchedLoader[AnyBatch], folder: AnyFolder, stop: StopRequest
    ) -> None:
        run = self.run
        pace, had_ended = Pace(run), run.is_finished
        self._go_on_from_validations(folder, stop)
        while not run.is_finished and not stop.is_set:
            self._run_epoch(loader, folder, stop, pace)
            if self._validates_inside(stop):
                self._validate_inside(folder)
            # A rest is left if the run was stopped, or is at its last update.
            if run.position.updates >= run.sampler.num_updates:
                self._close_epoch(run.position.end_epoch(), folder)
        if run.position.updates and not stop.is_set:
            self._close_epoch(run.position.records[-1], folder)
        if had_ended and not stop.is_set:
            ended_by = " and ".join(f"`{name}`" for name in run.ended_by)
            self._observer.noted(
                f"nothing is left to train: the run has ended after {counted(run.step.num_updates, 'update')}; "
                f"raise {ended_by}, which ended it, to go on"
            )
        else:
            self._note_early_end(stop)
        if not self._is_saved:
            self._save_state(self._copy_weights(), folder)

    def _go_on_from_validations(self, folder: AnyFolder, stop: StopRequest) -> None:
        """Show those of a resumed run, and make one that was due when it was stopped."""
        run = self.run
        if run.is_finished and not run.step.num_updates:
            raise UserError(
                f"`max_time` is {run.config.max_time}, of which the start and the end of the run leave "
                "nothing for training; give it more"
            )
        for record in run.position.records:
            if record.validation:
                self._observer.validated(record.validation)
        if self._validates_inside(stop):
            self._validate_inside(folder)

    def _run_epoch(
        self,
        loader: WatchedLoader[AnyBatch],
        folder: AnyFolder,
        stop: StopRequest,
        pace: Pace,
    ) -> None:
        """Train on the batches of an epoch that are not done yet, up to the next validation."""
        run, position, losses = self.run, self.run.position, self.run.loop.losses
        run.sampler.set_epoch(
            position.epoch, skip=position.updates, max_updates=self._updates_to_go()
        )
        self._note_training()
        num_done = run.sampler.num_skipped
        earlier = losses.read_since(max(0, losses.num_added - 1))
        self._observer.epoch_started(
            position.epoch + 1,
            num_epochs=run.last_epoch,
            num_batches=run.sampler.whole_epoch,
            num_done=num_done,
            first_read=num_done + min(run.loop.plan.loss_interval, len(run.sampler)),
            earlier_loss=earlier[-1][0] if earlier else None,
        )
        log = LossLog(folder, losses, first_batch=position.batches_before)
        watch = LossWatch(
            losses,
            first_batch=position.batches_before,
            first_update=run.step.num_updates + 1,
            update_of=run.sampler.update_of,
            on_skipped=self._note_skipped if run.config.on_nonfinite == "skip" else None,
        )
        first, first_update = losses.num_added, run.step.num_updates

        def on_batch(progress: Progress) -> None:
            log.write_new()
            watch.look()
            if watch.error is not None:
                self._decisions.ask_to_fail()
            self._note_decisions()
            self._saver.poll()
            self._is_saved = False
            if run.sampler.ends_update(progress.batch - 1):
                self._decisions.after_update(run.step.num_updates)
            if self._decisions.fails:
                watch.look()
                watch.check()
            if self._saves_after(progress, stop):
                self._save_inside(progress, folder, log, first=first, first_update=first_update)
            if stop.take_account():
                self._observer.noted(waits_table(self._work_so_far(progress)))
            self._observer.batch_queued(progress, run=pace.progress())

        run.model.train()
        batches = LoaderPart(
            loader, lambda loader: until_stopped(loader, stop, is_over=self._is_part_over)
        )
        with self._naming_phase("training", lower=_OF_BATCHES):
            result = run.loop.run_epoch(batches, run.step, on_batch=on_batch)
        log.write_new()
        watch.look()
        watch.check()
        read = losses.read_since(losses.num_added - result.num_batches)
        position.add(
            result,
            updates=run.step.num_updates - first_update,
            weights=[weight for _, weight in read],
            peak_memory_bytes=run.device.peak_memory_bytes(),
        )
        self._decisions.settle()

    def _note_training(self) -> None:
        """Keep what is trained on, once, when there is something to train on."""
        if len(self.run.sampler) and not self._has_trained:
            self.run.note_training()
            self._has_trained = True

    def _work_so_far(self, progress: Progress) -> EpochRecord:
        """Return what the run did, up to the newest loss that was read."""
        assert progress.so_far is not None
        return total([*(record.work for record in self.run.position.records), progress.so_far()])

    def _close_epoch(self, record: TrainingEpoch, folder: AnyFolder) -> None:
        """Save the weights after an epoch, or a part of the last one, and validate them."""
        run = self.run
        is_whole = not run.position.updates
        validates = self._validates_after(record)
        if run.config.average == "auto" and not validates and not record.validation:
            # So short an epoch that its checkpoint may take longer than itself.
            folder.log_epoch(record)
            self._observer.epoch_ended(record)
            return
        weights = self._copy_weights()
        self._saver.save_epoch(weights, record.number, step=run.step.num_updates)
        is_best = validates and self._validate(record)
        # The end of a run inside an epoch is logged once more when it is resumed.
        if is_whole:
            folder.log_epoch(record)
        if (is_best or not is_whole) and self._saver.is_saving_state:
            # One state at a time. The device has waited for a validation as well.
            self._saver.drain()
        if self._first_is_saving():
            self._is_saved = False
            self._clock.owe()
        else:
            self._save_state(weights, folder, is_best=is_best)
        if not is_whole:
            folder.log_epoch(record)
        self._observer.epoch_ended(record)

    # --- validation ---

    def _validates_after(self, record: TrainingEpoch) -> bool:
        """Return whether the weights are validated at the end of an epoch, or of the run."""
        run = self.run
        if run.is_finished:
            return True
        if self._validation_clock is not None:
            return self._validation_clock.is_due(run.step.num_updates)
        return record.number % run.config.val_interval == 0

    def _updates_to_go(self) -> int | None:
        """Return the updates until the next validation or the end of the run; None: no limit."""
        run, interval = self.run, self.run.config.validation_interval()
        limits = [] if run.updates_left is None else [run.updates_left]
        if interval is not None and interval.updates is not None:
            limits.append(interval.updates - run.step.num_updates % interval.updates)
        return min(limits, default=None)

    def _is_part_over(self) -> bool:
        """Return whether time says that the run, or its part before a validation, is over."""
        is_due = (
            self._validation_clock is not None
            and self._validation_clock.is_timed
            and self._validation_clock.is_due(self.run.step.num_updates)
        )
        return is_due or self.run.time_limit.is_up

    def _validates_inside(self, stop: StopRequest) -> bool:
        """Return whether a validation is due inside an epoch; at its end, the end sees to it."""
        run, clock = self.run, self._validation_clock
        is_inside = 0 < run.position.updates < run.sampler.num_updates
        if clock is None or not is_inside or stop.is_set or run.is_finished:
            return False
        return clock.is_due(run.step.num_updates)

    def _validate_inside(self, folder: AnyFolder) -> None:
        """Validate inside an epoch, and save the state if it is the best so far."""
        run = self.run
        record = run.position.records[-1]
        is_best = self._validate(record)
        folder.log("validation", step=run.step.num_updates, waits=None, **record.validation)
        figures = ", ".join(f"{name} {value:.4g}" for name, value in record.validation.items())
        self._observer.noted(f"update {run.step.num_updates}: {figures}")
        if is_best:
            self._saver.drain()
            self._save_state(self._copy_weights(), folder, is_best=True)

    def _validate(self, record: TrainingEpoch) -> bool:
        """Validate the weights; return whether they are the best so far."""
        run = self.run
        self._observer.validating()
        start = perf_counter()
        pause = run.ranks.pause("validation", may_be_silent=False)
        with pause, self._naming_phase("validating", lower=_OF_BATCHES):
            found = validate(run, on_batch=self._saver.poll)
        seconds = run.ranks.share(perf_counter() - start)
        self._warnings.gather()
        self._check_validation(found["val_loss"])
        record.validation.clear()
        record.validation.update(found)
        self._observer.validated(found)
        if "val_cut" in found:
            self._note_once(
                f"val_cut: validation translations that were cut at {run.config.max_length} "
                "tokens, where the model would have gone on"
            )
        run.time_limit.note_validation(seconds)
        self._decisions.settle()
        if self._validation_clock is not None:
            self._validation_clock.done(run.step.num_updates)
        if self._is_first:
            self._learning.at_validation()
        return run.position.note_validation(
            loss=found["val_loss"], bleu=found["val_bleu"], updates=run.step.num_updates
        )

    def _note_early_end(self, stop: StopRequest) -> None:
        """Say why the run ends before its last epoch, if it does so by itself."""
        run = self.run
        if stop.is_set:
            return
        self._learning.at_end()
        done = f"after {counted(run.step.num_updates, 'update')}"
        if run.is_out_of_patience:
            num = counted(run.position.validations_without_better, "validation")
            self._observer.noted(f"training ends {done}: {num} brought no better BLEU or loss")
        elif run.time_limit.is_up and run.position.epoch < run.config.epochs:
            over = run.time_limit.seconds_over
            longer = f", which take about {duration(over)} longer" if over > _WORTH_TELLING else ""
            self._observer.noted(
                f"training ends {done}: the rest of {run.config.max_time} is for the final model "
                f"and its scores{longer}"
            )
        elif run.updates_left == 0 and run.position.epoch < run.config.epochs:
            self._observer.noted(f"training ends {done}, as many as `max_steps` says")
        elif run.updates_left and run.position.epoch >= run.config.epochs:
            self._observer.noted(
                f"training ends {done}, with epoch {run.config.epochs} of {run.config.epochs}, though "
                f"`max_steps` says {run.config.max_steps:,}; raise `epochs` to go on"
            )

    def _note_skipped(self, update: int, loss: float) -> None:
        text = f"the loss of update {update} is {loss}; the update is skipped"
        self._observer.noted(text)
        self._error_log.warning(text, update=self.run.step.num_updates)

    def _check_validation(self, loss: float) -> None:
        if not math.isfinite(loss) and self.run.config.on_nonfinite == "stop":
            place = f"the validation after update {self.run.step.num_updates}"
            raise NonFiniteLossError(self.run.position.batches_before, loss, place=place)

    # --- the end ---

    def _test_together(self, folder: AnyFolder, stop: StopRequest) -> Scores | None:
        """Make and score the final model, on all ranks; None if one of them is asked to stop."""
        ranks = self.run.ranks
        # There is no update any more at the end of which all could agree.
        stop.tell_others(None)
        with ranks.pause("the final model", may_be_silent=False):
            scores = self._test(folder, stop)
            agreed = max(ranks.agree(stop.number or 0))
            self._warnings.gather()
        # Whoever is asked to stop from here on is done.
        stop.number = agreed or None
        return None if agreed else scores

    def _test(self, folder: AnyFolder, stop: StopRequest) -> Scores | None:
        """Make and score the final model; None if the run is asked to stop meanwhile."""
        run = self.run
        self._saver.finish()
        final = self._final_model(stop)
        if final is None:
            return None
        path = checkpoints.final_path(run.run_dir)
        put_weights(run, final.weights, path=path)
        if self._is_first:
            updates = run.step.num_updates
            checkpoints.write_weights(final.weights, path, step=updates, files=self._files)
        self._final_name = final.name
        pairs = run.task.corpus.test
        self._observer.testing(len(pairs))
        with naming_phase("translating the test sentences", lower="`beam`"):
            try:
                scores = score_pairs(run, pairs, beam=run.config.beam, on_batch=stop.check)
            except StopNow:
                return None
        folder.log("test", step=len(run.position.records), bleu=scores.bleu, chrf=scores.chrf)
        return scores

    def _final_model(self, stop: StopRequest) -> FinalModel | None:
        run = self.run
        if run.config.average != "auto":
            final, asked = averaged_model(run), run.config.num_averaged
            if final.num_averaged < asked:
                self._observer.noted(
                    f"the final model has the {final.name}, though `average={asked}` asks for more: the run "
                    "has no others"
                )
            return final
        with naming_phase("comparing weights on the validation sentences", lower=_OF_BATCHES):
            try:
                final = best_of_all(run, on_batch=stop.check, on_damaged=self._observer.warned)
            except StopNow:
                return None
        self._observer.noted(final.line)
        return final

    # --- what a run resumes from ---

    def _copy_weights(self) -> HostCopy:
        with self.run.loop.on_compute_stream():
            return self._saver.copy_weights(self.run.model)

    def _saves_after(self, progress: Progress, stop: StopRequest) -> bool:
        """Return whether the state is to be saved after this batch."""
        run = self.run
        # The end of an epoch, and of a run, has a state of its own.
        is_inside = progress.batch < len(run.sampler)
        ends_update = is_inside and run.sampler.ends_update(progress.batch - 1)
        if not ends_update or stop.is_set:
            return False
        if not (self._clock.is_due(run.step.num_updates) or self._decisions.take_save()):
            return False
        if self._first_is_saving():
            self._clock.owe()
            return False
        return True

    def _first_is_saving(self) -> bool:
        """Return whether a state is being saved, by rank 0, so that there is no other now."""
        return self.run.ranks.share(self._saver.is_saving_state)

    def _save_inside(
        self,
        progress: Progress,
        folder: AnyFolder,
        log: LossLog,
        *,
        first: int,
        first_update: int,
    ) -> None:
        """Save the state inside an epoch, when the losses so far have come."""
        run = self.run
        assert progress.so_far is not None
        run.position.wall_seconds = run.clock.seconds()
        late = LateHistory(
            run.position.copy(),
            record=progress.so_far(),
            losses=run.loop.losses,
            first=first,
            num_batches=progress.batch,
            num_updates=run.step.num_updates - first_update,
            log=log,
            needs_finite=run.config.on_nonfinite == "stop",
            peak_memory_bytes=run.device.peak_memory_bytes(),
        )
        self._save(self._copy_weights(), folder, late=late)

    def _save_state(self, weights: HostCopy, folder: AnyFolder, *, is_best: bool = False) -> None:
        """Save the state between two epochs, or at the end of a run."""
        folder.flush()
        history = self.run.history(folder.metrics.content())
        self._save(weights, folder, history=history, is_best=is_best)

    def _save(
        self,
        weights: HostCopy,
        folder: AnyFolder,
        *,
        history: dict[str, Any] | None = None,
        late: LateHistory | None = None,
        is_best: bool = False,
    ) -> None:
        run, updates = self.run, self.run.step.num_updates
        with run.loop.on_compute_stream():
            check_same_weights(
                dict(run.model.named_parameters()),
                run.ranks,
                host_waits=run.host_waits,
                updates=updates,
            )
            self._saver.save_state(
                {**run.state(), **(history or {})},
                weights=weights,
                step=updates,
                epoch=run.position.epoch,
                late=late,
                is_best=is_best,
                sync_first=folder.metrics.sync,
            )
        self._clock.done(updates)
        self._is_saved = True
