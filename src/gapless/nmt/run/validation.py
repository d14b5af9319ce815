"""Measure the model of a run: its loss on pairs, its translations, and when both are due."""

from __future__ import annotations

import math
from time import perf_counter
from typing import TYPE_CHECKING

from gapless.errors import NonFiniteLossError
from gapless.nmt.data.sampler import make_loader
from gapless.nmt.model.compiling import eager_layers
from gapless.nmt.model.decode_settings import DecodeSettings
from gapless.nmt.run.build import training_sampler, validation_sampler
from gapless.nmt.run.out_of_memory import OF_BATCHES
from gapless.nmt.run.scores import evaluate, num_translated
from gapless.nmt.run.translator import longest_source
from gapless.nmt.run_folder.training_progress import weighted_mean
from gapless.pipeline.losses.deferred_loss import DeferredLoss


if TYPE_CHECKING:
    from collections.abc import Callable

    from gapless.nmt.data.sampler import MicrobatchSampler
    from gapless.nmt.data.sentences import Pairs
    from gapless.nmt.data.token_pairs import TokenPairs
    from gapless.nmt.run.rank_agreement import Decisions
    from gapless.nmt.run.run_report import Messages
    from gapless.nmt.run.scores import Scores
    from gapless.nmt.run.training_run import TrainingRun
    from gapless.records.training import TrainingEpoch


# Updates whose batches show whether a model has learned anything.
_NUM_TRAINING_UPDATES = 4


def validate(run: TrainingRun, *, on_batch: Callable[[], None]) -> dict[str, float]:
    """Return the figures of a validation: loss, and scores of some translations.

    The ranks of a run share the work, in whole batches; all return the figures of one rank alone.

    Args:
        run: whose model is measured; it is left in evaluation mode.
        on_batch: called after each batch of the loss.

    Sync: Blocks the host; waits are counted in `run.host_waits`.
    """
    ranks = run.ranks
    sampler = validation_sampler(run.config, run.task.val, rank=ranks.rank, world=ranks.world)
    of_ranks = ranks.agree(_losses(run, run.task.val, sampler, on_batch=on_batch))
    scores = score_validation(run, num_translated(run.task.corpus.val))
    return {
        "val_loss": _mean([row for rows in of_ranks for row in rows]),
        "val_bleu": scores.bleu,
        "val_exact_match": scores.exact_match,
        **({"val_cut": float(scores.num_cut)} if scores.num_cut else {}),
    }


def training_loss(run: TrainingRun) -> float:
    """Return the loss a target token of a few training batches, not smoothed, without dropout.

    Args:
        run: whose model is measured; it is left in evaluation mode.

    Sync: Blocks the host; waits are counted in `run.host_waits`.
    """
    sampler = training_sampler(run.config, run.task.train, counts=run.task.counts, layout="padded")
    sampler.set_epoch(0, max_updates=_NUM_TRAINING_UPDATES)
    return _mean(_losses(run, run.task.train, sampler))


def _losses(
    run: TrainingRun,
    pairs: TokenPairs,
    sampler: MicrobatchSampler,
    *,
    on_batch: Callable[[], None] = lambda: None,
) -> list[tuple[float, float]]:
    """Return the loss a token of each batch, and its tokens."""
    loader = make_loader(pairs, sampler, workers=0)
    run.model.eval()
    losses = DeferredLoss(run.device, warn_nonfinite=False, wait_stats=run.host_waits.stats)
    with run.loop.on_compute_stream(), eager_layers():
        for batch in run.loop.prefetch(loader):
            losses.add(run.step.evaluate(batch), weight=batch.ntokens)
            on_batch()
        losses.drain(reason="validation")
    return losses.read_since(0)


def _mean(read: list[tuple[float, float]]) -> float:
    return weighted_mean([loss for loss, _ in read], [weight for _, weight in read])


def score_validation(
    run: TrainingRun, count: int, *, on_batch: Callable[[], None] = lambda: None
) -> Scores:
    """Translate the first validation pairs by greedy search, and score them by BLEU.

    Args:
        run: whose model translates.
        count: of the pairs.
        on_batch: called after each batch of translations.

    Sync: Blocks the host; waits are counted in `run.host_waits`.
    """
    pairs = run.task.corpus.val.take(range(count))
    return _score(run, pairs, beam=1, with_chrf=False, on_batch=on_batch)


def score_test(run: TrainingRun, *, on_batch: Callable[[], None]) -> Scores:
    """Translate the test pairs as the settings say, and score them.

    Args:
        run: whose model translates.
        on_batch: called after each batch of translations.

    Sync: Blocks the host; waits are counted in `run.host_waits`.
    """
    pairs = run.task.corpus.test
    return _score(run, pairs, beam=run.config.beam, with_chrf=True, on_batch=on_batch)


def _score(
    run: TrainingRun,
    pairs: Pairs,
    *,
    beam: int,
    with_chrf: bool,
    on_batch: Callable[[], None],
) -> Scores:
    config = run.config
    settings = DecodeSettings(
        beam=beam,
        length_penalty=config.length_penalty,
        max_length=config.max_length,
        early_stopping=config.early_stopping,
    )
    with run.loop.on_compute_stream(), eager_layers():
        found = evaluate(
            run.decoder,
            run.task.vocabs,
            pairs,
            settings,
            max_source=longest_source(config.max_length),
            score_tokenizer=run.score_tokenizer,
            with_chrf=with_chrf,
            on_done=lambda _: on_batch(),
            ranks=run.ranks,
        )
    return found.scores


# --- when it is validated ---


class Validations:
    """Validates a run when it is due, on all of its ranks.

    Args:
        run: to validate.
        messages: tell of it.
        decisions: the ranks agree on what is open after each validation.
        check_learning: called on rank 0 after each validation.
        poll: called after each batch, so that what waits to be saved does not wait longer.
    """

    def __init__(
        self,
        run: TrainingRun,
        *,
        messages: Messages,
        decisions: Decisions,
        check_learning: Callable[[], None],
        poll: Callable[[], None],
    ) -> None:
        self._run = run
        self._messages = messages
        self._decisions = decisions
        self._check_learning = check_learning
        self._poll = poll
        self._interval = run.config.validation_interval()
        self._clock = None if self._interval is None else run.due_clock(self._interval)
        if self._clock is not None and self._lacks_one():
            self._clock.owe()

    def _lacks_one(self) -> bool:
        """Return whether a resumed run was stopped, or its state saved, before a validation that was due."""
        updates, interval = self._run.step.num_updates, self._interval
        if interval is None or interval.updates is None or not updates:
            return False
        is_due = updates % interval.updates == 0
        return is_due and self._run.progress.validated_at != updates

    def updates_to_go(self) -> int | None:
        """Return the updates until the next validation or the end of the run; None: no limit."""
        run, interval = self._run, self._interval
        limits = [] if run.updates_left is None else [run.updates_left]
        if interval is not None and interval.updates is not None:
            limits.append(interval.updates - run.step.num_updates % interval.updates)
        return min(limits, default=None)

    def is_part_over(self) -> bool:
        """Return whether time says that the run, or its part before a validation, is over."""
        clock = self._clock
        is_due = clock is not None and clock.is_timed and clock.is_due(self._run.step.num_updates)
        return is_due or self._run.time_limit.is_up

    def are_due_inside(self, *, is_stopping: bool) -> bool:
        """Return whether one is due inside an epoch; at its end, the end sees to it.

        Args:
            is_stopping: whether the run was asked to stop.
        """
        run, clock = self._run, self._clock
        is_inside = 0 < run.progress.updates < run.sampler.num_updates
        if clock is None or not is_inside or is_stopping or run.is_finished:
            return False
        return clock.is_due(run.step.num_updates)

    def are_due_after(self, epoch: int) -> bool:
        """Return whether the weights are validated at the end of an epoch, or of the run.

        Args:
            epoch: counted from 1.
        """
        run = self._run
        if run.is_finished:
            return True
        if self._clock is not None:
            return self._clock.is_due(run.step.num_updates)
        return epoch % run.config.val_interval == 0

    def validate(self, record: TrainingEpoch) -> bool:
        """Validate the weights; return whether they are the best so far.

        Args:
            record: of the epoch under way, or just done, which takes the figures.

        Raises:
            NonFiniteLossError: the loss is NaN or infinite, and the run does not skip such updates.

        Sync: Blocks the host; waits are counted in the run's `host_waits`.
        """
        run, observer = self._run, self._messages.observer
        observer.validating()
        start = perf_counter()
        pause = run.ranks.pause("validation", may_be_silent=False)
        with pause, run.naming_phase("validating", lower=OF_BATCHES):
            found = validate(run, on_batch=self._poll)
        seconds = run.ranks.share(perf_counter() - start)
        self._check(found["val_loss"])
        record.validation.clear()
        record.validation.update(found)
        observer.validated(found)
        if "val_cut" in found:
            self._messages.note_once(
                f"val_cut: validation translations that were cut at {run.config.max_length} "
                "tokens, where the model would have gone on"
            )
        run.progress.validation_seconds += seconds
        run.time_limit.note_validation(seconds)
        self._decisions.settle()
        if self._clock is not None:
            self._clock.done(run.step.num_updates)
        if run.ranks.is_first:
            self._check_learning()
        return run.progress.note_validation(
            loss=found["val_loss"], bleu=found["val_bleu"], updates=run.step.num_updates
        )

    def _check(self, loss: float) -> None:
        run = self._run
        if not math.isfinite(loss) and run.config.on_nonfinite == "stop":
            place = f"the validation after update {run.step.num_updates}"
            raise NonFiniteLossError(run.progress.batches_before, loss, place=place)
