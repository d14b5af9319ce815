"""What a run says about itself: while it runs, at its start, and in `summary.json` at its end."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

import torch

from gapless.nmt.run_folder.logs import ErrorLog, Silent
from gapless.records.training import RunProgress, run_totals
from gapless.report.figures import counted, duration


if TYPE_CHECKING:
    from collections.abc import Mapping

    from gapless.device.base import Device
    from gapless.nmt.run.scores import Scores
    from gapless.nmt.run.task import Task
    from gapless.nmt.run.training_run import TrainingRun
    from gapless.nmt.settings.config import TrainConfig
    from gapless.nmt.settings.effective_settings import EffectiveSettings
    from gapless.nmt.settings.score_tokenizer import ScoreTokenizer
    from gapless.plans import Plan
    from gapless.records.epoch_record import Progress
    from gapless.records.training import TrainingEpoch
    from gapless.report.training_text import EpochTitle


# --- while it runs ---

# Seconds beyond a limit of time that are worth a word.
_WORTH_TELLING = 5.0


class Observer(Protocol):
    """Is called with what a run does; the command line prints its progress from it."""

    def started(self, facts: dict[str, str]) -> None:
        """The run is ready; the facts say what is in force, each under its title."""

    def noted(self, text: str) -> None:
        """The run has something to say to its user; it says nothing twice."""

    def warned(self, text: str) -> None:
        """Something is not as it should be, and the run goes on."""

    def capturing_ahead(self, done: int, *, of: int) -> None:
        """This many of the fixed shapes are captured, before the run trains on any batch."""

    def epoch_started(self, title: EpochTitle) -> None:
        """An epoch begins, or goes on where some of its batches are done."""

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


class Messages:
    """Tells of a run while it trains: its observer and, of what is amiss, `errors.log`; on rank 0 alone.

    Args:
        run: under way.
        observer: is called with what happens.

    Attributes:
        observer: on rank 0 the one that was given, on others one that does nothing.
    """

    def __init__(self, run: TrainingRun, *, observer: Observer) -> None:
        is_first = run.ranks.is_first
        self.observer: Observer | Silent = observer if is_first else Silent()
        self._run = run
        self._error_log = ErrorLog(run.run_dir) if is_first else Silent()
        self._noted: set[str] = set()

    def warn(self, text: str) -> None:
        """Tell of something that is not as it should be, while the run goes on."""
        self.observer.warned(text)
        self._error_log.warning(text, update=self._run.step.num_updates)

    def error(self, error: BaseException) -> None:
        """Write down the error that ends the run; whoever catches it shows it."""
        self._error_log.error(error, update=self._run.step.num_updates)

    def note_once(self, text: str) -> None:
        """Note something, unless it was noted before."""
        if text not in self._noted:
            self._noted.add(text)
            self.observer.noted(text)

    def note_skipped(self, update: int, loss: float) -> None:
        """Tell that an update is skipped, for its loss is not finite."""
        text = f"the loss of update {update} is {loss}; the update is skipped"
        self.observer.noted(text)
        self._error_log.warning(text, update=self._run.step.num_updates)

    def note_plan(self) -> None:
        """Tell what plan `auto` decided, or why a step is not captured, when it is new."""
        loop = self._run.loop
        diagnosis, capture = loop.diagnosis, loop.capture_report
        if diagnosis is not None:
            text = diagnosis.line
        elif capture is not None and (capture.refusal or capture.note):
            text = f"steps that are not captured run eagerly: {capture.refusal or capture.note}"
        else:
            return
        self.note_once(text)

    def note_early_end(self) -> None:
        """Tell why the run ends before its last epoch, if it does so by itself."""
        run = self._run
        done = f"after {counted(run.step.num_updates, 'update')}"
        is_inside = run.progress.epoch < run.config.epochs
        if run.is_out_of_patience:
            num = counted(run.progress.validations_without_better, "validation")
            self.observer.noted(f"training ends {done}: {num} brought no better BLEU or loss")
        elif run.time_limit.is_up and is_inside:
            over = run.time_limit.seconds_over
            longer = f", which take about {duration(over)} longer" if over > _WORTH_TELLING else ""
            self.observer.noted(
                f"training ends {done}: the rest of {run.config.max_time} is for the final model "
                f"and its scores{longer}"
            )
        elif run.updates_left == 0 and is_inside:
            self.observer.noted(f"training ends {done}, as many as `max_steps` says")
        elif run.updates_left and not is_inside:
            self.observer.noted(
                f"training ends {done}, with epoch {run.config.epochs} of {run.config.epochs}, though "
                f"`max_steps` says {run.config.max_steps:,}; raise `epochs` to go on"
            )

    def note_nothing_left(self) -> None:
        """Tell that a resumed run had ended before, and what lets it go on."""
        run = self._run
        ended_by = " and ".join(f"`{name}`" for name in run.ended_by)
        self.observer.noted(
            f"nothing is left to train: the run has ended after {counted(run.step.num_updates, 'update')}; "
            f"raise {ended_by}, which ended it, to go on"
        )


class TimeEstimate:
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


# --- at its start and its end ---


# Scores of fewer different sentences are luck.
_FEWEST_SCORED = 10


def describe_run(run: TrainingRun) -> dict[str, str]:
    """Return what is in force in a run, each line under its title."""
    vocabs = run.task.vocabs
    return {
        "run": f"{run.run_dir}{_describe_resumed(run)}",
        "device": f"{run.device.torch_device} ({run.device.describe()}), "
        f"torch {torch.__version__}, {run.config.precision}",
        "plan": describe_plan(run.effective, device=run.device, workers=run.workers),
        **describe_text(run.config, run.task, run.score_tokenizer),
        "model": f"{run.num_parameters:,} parameters, vocabulary {len(vocabs.src)} to "
        f"{len(vocabs.tgt)}",
        "batches": f"{len(run.sampler)} an epoch, {run.sampler.describe()}",
        **({"changed": ", ".join(run.changed)} if run.changed else {}),
    }


def _describe_resumed(run: TrainingRun) -> str:
    updates = run.step.num_updates
    if not updates:
        return ""
    done, of = run.progress.updates, run.updates_per_epoch()
    where = f", {done} of {of} updates of epoch {run.progress.epoch + 1} are done" if done else ""
    return f", resumed after update {updates:,}{where}"


def describe_plan(effective: EffectiveSettings, *, device: Device, workers: int) -> str:
    """Return how a run moves its work.

    Args:
        effective: settings of the run.
        device: where it runs.
        workers: processes that make its batches.
    """
    plan = effective.plan
    # On a CPU the plan may ask for pinned memory, but staging buffers are pageable.
    pinned = plan.pin_memory and device.is_accelerator
    # Plan `auto` says so itself.
    has_no_graphs = plan.graphs == "always" and not device.is_accelerator
    return (
        f"{plan.name}: {plan.streams} streams, waits with {plan.wait_with}, "
        f"prefetch {plan.prefetch}, {workers} workers, "
        f"{'pinned' if pinned else 'pageable'} staging"
        f"{', layers compiled' if effective.compiles else ''}"
        f"{'; a CPU has no CUDA graphs, so every step runs eagerly' if has_no_graphs else ''}"
    )


def describe_text(
    config: TrainConfig, task: Task, score_tokenizer: ScoreTokenizer
) -> dict[str, str]:
    """Return what a run learns from, and how its translations are scored, each line under its title."""
    note = f"; {score_tokenizer.note}" if score_tokenizer.note else ""
    return {
        "data": describe_data(config, task),
        **task.corpus.filtered,
        **({} if task.store is None else {"store": task.store}),
        "scores": f"BLEU with tokenizer {score_tokenizer.name}, as {score_tokenizer.because}{note}",
    }


def describe_data(config: TrainConfig, task: Task) -> str:
    """Return what a run learns from."""
    corpus = task.corpus
    skipped = f", {task.skipped_long} too long" if task.skipped_long else ""
    if empty := corpus.dropped_empty:
        skipped += f", {empty} without text on one side left out"
    if repeated := corpus.num_repeated:
        skipped += f", {repeated} the same as others"
    long_val = f" ({n} too long for its loss)" if (n := len(corpus.val) - len(task.val)) else ""
    is_small = min(len(set(pairs.src)) for pairs in (corpus.val, corpus.test)) < _FEWEST_SCORED
    names = [{"val": "validation"}.get(split, split) for split in corpus.held_out]
    held_out = f", {' and '.join(names)} pairs held out of train" if names else ""
    return (
        f"{config.data_name()}, {config.src} to {config.tgt}: "
        f"{len(task.train)} training pairs{skipped}, {len(corpus.val)} validation{long_val}, "
        f"{len(corpus.test)} test{held_out}{', too few for scores to mean much' if is_small else ''}"
    )


def plan_settings(plan: Plan) -> dict[str, Any]:
    """Return a plan as plain values for `summary.json`.

    The keys are the format of a file; they do not follow the class.
    """
    return {
        "name": plan.name,
        "summary": plan.summary,
        "streams": plan.streams,
        "wait_with": plan.wait_with,
        "sync_interval": plan.sync_interval,
        "loss_interval": plan.loss_interval,
        "prefetch": plan.prefetch,
        "workers": plan.workers,
        "pin_memory": plan.pin_memory,
        "run_ahead": plan.run_ahead,
        "capture": plan.graphs == "always",
        "auto": plan.graphs == "auto",
    }


def summarize(
    run: TrainingRun,
    scores: Scores | None,
    *,
    interrupted: bool,
    warm_up_seconds: float,
    final_weights: str | None,
) -> dict[str, Any]:
    """Return the figures of a run as plain values for `summary.json`.

    Args:
        run: that ended or was interrupted.
        scores: of the final model on the test pairs; None if it was interrupted.
        interrupted: whether it was.
        warm_up_seconds: time in which shapes were captured ahead.
        final_weights: what the final model is made of; None if there is none.
    """
    loop = run.loop
    return {
        "plan": run.config.plan,
        "plan_settings": plan_settings(loop.plan),
        "device": str(run.device.torch_device),
        "hardware": run.device.describe(),
        "torch": str(torch.__version__),
        "precision": run.config.precision,
        "interrupted": interrupted,
        "steps": run.step.num_updates,
        "skipped_updates": run.step.num_skipped(host_waits=run.host_waits),
        **run_totals(run.progress.records),
        "validation_seconds": run.progress.validation_seconds,
        "padding_share": run.padding_share,
        "host_waits_outside_training": run.host_waits.stats.as_dict(),
        "capture": None if loop.capture_report is None else loop.capture_report.as_dict(),
        "final_weights": final_weights,
        "bleu": scores and scores.bleu,
        "chrf": scores and scores.chrf,
        "signature": scores and scores.bleu_signature,
        "chrf_signature": scores and scores.chrf_signature,
        "bleu_detail": scores and scores.bleu_detail,
        "exact_match": scores and scores.exact_match,
        "test_sentences": scores and scores.count,
        "cut_translations": scores and scores.num_cut,
        "long_sources": scores and scores.num_long,
        "parameters": run.num_parameters,
        "skipped_long": run.task.skipped_long,
        "dropped_empty": run.task.corpus.dropped_empty,
        "diagnosis": None if loop.diagnosis is None else loop.diagnosis.line,
        "warm_up_seconds": warm_up_seconds,
        "wall_seconds": run.clock.seconds(),
    }
