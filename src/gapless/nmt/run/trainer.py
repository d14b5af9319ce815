"""Train a translation model: epochs, validation, checkpoints, final scores."""

from __future__ import annotations

from contextlib import closing, nullcontext, suppress
from dataclasses import asdict
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeAlias

from gapless.checkpoint.store import write_checkpoint
from gapless.errors import LoaderError
from gapless.nmt.data.sampler import PairBatches, make_loader
from gapless.nmt.model.compiling import declared_compiles
from gapless.nmt.run.checkpoint_schedule import CheckpointSchedule
from gapless.nmt.run.epochs import Epochs
from gapless.nmt.run.final_model import choose_final_model, put_weights
from gapless.nmt.run.learning import LearningWatch
from gapless.nmt.run.out_of_memory import OF_BATCHES, naming_phase
from gapless.nmt.run.rank_agreement import decisions_of
from gapless.nmt.run.run_report import Messages, describe_run, summarize
from gapless.nmt.run.stopping import StopNow, StopRequest
from gapless.nmt.run.validation import Validations, score_test
from gapless.nmt.run_folder import checkpoints
from gapless.nmt.run_folder.checkpoint_writer import CheckpointWriter, SilentCheckpointWriter
from gapless.nmt.run_folder.disk_space import DiskTroubles
from gapless.nmt.run_folder.folder import files_of_run
from gapless.nmt.run_folder.logs import METRICS, RunLogs, SilentRunLogs, go_back
from gapless.nmt.run_folder.tracker import Tracker
from gapless.pipeline.loader_worker import prepare_worker
from gapless.pipeline.watched_loader import WatchedLoader


if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from gapless.nmt.data.batch import AnyBatch
    from gapless.nmt.run.rank_agreement import Decisions
    from gapless.nmt.run.run_report import Observer
    from gapless.nmt.run.scores import Scores
    from gapless.nmt.run.training_run import TrainingRun

    AnyLogs: TypeAlias = RunLogs | SilentRunLogs


class Trainer:
    """Trains a run to its end.

    Args:
        run: to train, which `new_run` or `resumed_run` has made.
        observer: is called with what happens, on rank 0 alone.

    Attributes:
        facts: what is in force when it begins, each under its title.
    """

    def __init__(self, run: TrainingRun, *, observer: Observer) -> None:
        self.run = run
        # Not asked again at the end: by then every run would seem resumed, and an epoch as long as its last part.
        self.facts = describe_run(run)
        self._messages = Messages(run, observer=observer)
        self._files = files_of_run(run.config, run.task.vocabs)
        self._disk_troubles = DiskTroubles(self._messages.warn)
        is_first = run.ranks.is_first
        self._writer = (
            self._make_checkpoint_writer() if is_first else SilentCheckpointWriter(run.device)
        )
        self._final_name: str | None = None

    def _make_checkpoint_writer(self) -> CheckpointWriter:
        run = self.run
        return CheckpointWriter(
            run.run_dir,
            host_waits=run.host_waits,
            files=self._files,
            keep=run.config.num_averaged,
            keep_states=run.config.keep,
            state_epochs=checkpoints.state_epochs(run.run_dir),
            disk_troubles=self._disk_troubles,
        )

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
            self._messages.error(error)
            raise
        finally:
            self.run.lock.release()

    def _train(self, stop: StopRequest) -> dict[str, Any]:
        run, messages = self.run, self._messages
        messages.observer.started(self.facts)
        for choice in run.choices:
            messages.observer.noted(choice.line)
        learning = LearningWatch(run, warn=messages.warn)
        learning.at_start()
        if run.ranks.is_first:
            self._forget_later()
        logs = self._open_logs()
        decisions = decisions_of(
            run.ranks,
            stop=stop,
            clock=run.clock,
            losses=run.loop.losses,
            host_waits=run.host_waits,
        )
        schedule = CheckpointSchedule(run, writer=self._writer, logs=logs, decisions=decisions)
        validations = Validations(
            run,
            messages=messages,
            decisions=decisions,
            check_learning=learning.at_validation,
            poll=self._writer.poll,
        )
        epochs = Epochs(
            run=run,
            logs=logs,
            writer=self._writer,
            schedule=schedule,
            validations=validations,
            learning=learning,
            decisions=decisions,
            messages=messages,
            stop=stop,
        )
        # The writer is left before the stop request: a second SIGTERM must not cut the last save short.
        with stop, run.loop, logs, self._writer, self._declared_compiles():
            start = perf_counter()
            self._capture_ahead(decisions, stop)
            warm_up_seconds = perf_counter() - start
            # After the captures: they free the page-locked memory that torch caches, and would undo this.
            self._writer.reserve(run.model)
            with closing(self._loader(stop)) as loader:
                epochs.train(loader)
            if stop.failure is not None and stop.number is None:
                saved = f"update {run.step.num_updates} is saved"
                raise LoaderError(f"{stop.failure}; {saved}") from stop.failure
            scores = None if stop.is_set else self._test_on_all_ranks(logs, stop)
            summary = summarize(
                run,
                scores,
                interrupted=scores is None,
                warm_up_seconds=warm_up_seconds,
                final_weights=self._final_name,
            )
            logs.write_summary(summary)
        run.ranks.note_done()
        return summary

    def _declared_compiles(self) -> AbstractContextManager[None]:
        """Return a context in which other ranks know of it when this one compiles."""
        run = self.run
        if run.ranks.world == 1 or not run.effective.compiles:
            return nullcontext()
        return declared_compiles(lambda: run.ranks.pause("compilation"))

    def _open_logs(self) -> AnyLogs:
        if not self.run.ranks.is_first:
            return SilentRunLogs()
        run = self.run
        tracker = None
        if run.config.track is not None:
            tracker = Tracker(run.config.track, run.run_dir, asdict(run.config))
        return RunLogs(run.run_dir, troubles=self._disk_troubles, tracker=tracker)

    def _forget_later(self) -> None:
        """Say what was found when the run was resumed, and remove what came after its state.

        A run that was killed had done more than its state says. It will do the same again.
        """
        run = self.run
        updates, epochs = run.step.num_updates, run.progress.epoch
        checkpoints.drop_later(
            run.run_dir, updates=updates, epochs=epochs, is_finished=run.is_finished
        )
        damage = go_back(
            run.run_dir / METRICS,
            covered=run.covered,
            batches=run.progress.batches_before,
            updates=updates,
            epochs=epochs,
        )
        for note in [*run.notes, *([damage] if damage else [])]:
            self._messages.warn(note)

    def _capture_ahead(self, decisions: Decisions, stop: StopRequest) -> None:
        """Capture every fixed shape before the run, if the plan captures and the device can."""
        run = self.run
        if run.loop.captures_ahead:
            with suppress(StopNow), run.ranks.pause("capture"):
                self._capture_each_shape(decisions, stop)
            self._messages.note_plan()

    def _capture_each_shape(self, decisions: Decisions, stop: StopRequest) -> None:
        run, step, observer = self.run, self.run.step, self._messages.observer
        pairs = PairBatches(run.task.train)
        examples = [pairs[micro] for micro in run.sampler.one_of_each()]
        run.model.train()
        observer.capturing_ahead(0, of=len(examples))

        def on_batch(done: int) -> None:
            observer.capturing_ahead(done, of=len(examples))
            decisions.settle()
            stop.check()
            for following in examples[done : done + 1]:
                step.note_size(following)

        for first in examples[:1]:
            step.note_size(first)
        with run.naming_phase("capturing a step ahead", lower=OF_BATCHES):
            step.capture_ahead(run.loop, examples, on_batch=on_batch)

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

    # --- the end ---

    def _test_on_all_ranks(self, logs: AnyLogs, stop: StopRequest) -> Scores | None:
        """Make and score the final model, on all ranks; None if one of them is asked to stop."""
        ranks = self.run.ranks
        # No update follows at whose end ranks could agree: a signal counts at once, and is agreed on below.
        stop.tell_others(None)
        with ranks.pause("the final model", may_be_silent=False):
            scores = self._test(logs, stop)
            agreed = max(ranks.agree(stop.number or 0))
        # A signal that came after the agreement is dropped: this rank alone would stop for it.
        stop.number = agreed or None
        return None if agreed else scores

    def _test(self, logs: AnyLogs, stop: StopRequest) -> Scores | None:
        """Make and score the final model; None if the run is asked to stop meanwhile."""
        run = self.run
        self._writer.finish()
        final = choose_final_model(run, messages=self._messages, stop=stop)
        if final is None:
            return None
        path = checkpoints.final_path(run.run_dir)
        put_weights(run, final.weights, path=path)
        if run.ranks.is_first:
            write_checkpoint(
                path,
                step=run.step.num_updates,
                tensors=final.weights,
                meta={},
                files=self._files,
            )
        self._final_name = final.name
        self._messages.observer.testing(len(run.task.corpus.test))
        with naming_phase("translating the test sentences", lower="`beam`"):
            try:
                scores = score_test(run, on_batch=stop.check)
            except StopNow:
                return None
        logs.log("test", step=len(run.progress.records), bleu=scores.bleu, chrf=scores.chrf)
        return scores
