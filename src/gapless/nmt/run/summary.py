"""What a run says about itself: facts at its start, and `summary.json` at its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from gapless.records.training import run_totals


if TYPE_CHECKING:
    from gapless.device.base import Device
    from gapless.nmt.run.config import TrainConfig
    from gapless.nmt.run.resolved import Resolved
    from gapless.nmt.run.score import Scores
    from gapless.nmt.run.scoring import Scoring
    from gapless.nmt.run.task import Task
    from gapless.nmt.run.training_run import TrainingRun
    from gapless.plans import Plan


# Scores of fewer different sentences are luck.
_FEWEST_SCORED = 10


def describe_run(run: TrainingRun) -> dict[str, str]:
    """Return what is in force in a run, each line under its title."""
    vocabs = run.task.vocabs
    return {
        "run": f"{run.run_dir}{_describe_resumed(run)}",
        "device": f"{run.device.torch_device} ({run.device.describe()}), "
        f"torch {torch.__version__}, {run.config.precision}",
        "plan": describe_plan(run.resolved, device=run.device, workers=run.workers),
        "data": describe_data(run.config, run.task),
        "scores": describe_scoring(run.scoring),
        "model": f"{run.num_parameters:,} parameters, vocabulary {len(vocabs.src)} to "
        f"{len(vocabs.tgt)}",
        "batches": f"{len(run.sampler)} an epoch, {run.sampler.describe()}",
        **({"changed": ", ".join(run.changed)} if run.changed else {}),
    }


def _describe_resumed(run: TrainingRun) -> str:
    updates = run.step.num_updates
    if not updates:
        return ""
    done, of = run.position.updates, run.updates_per_epoch()
    where = f", {done} of {of} updates of epoch {run.position.epoch + 1} are done" if done else ""
    return f", resumed after update {updates:,}{where}"


def describe_plan(resolved: Resolved, *, device: Device, workers: int) -> str:
    """Return how a run moves its work.

    Args:
        resolved: settings of the run.
        device: where it runs.
        workers: processes that make its batches.
    """
    plan = resolved.plan
    # On a CPU staging buffers are ordinary memory, whatever the plan says.
    pinned = plan.pin_memory and device.is_accelerator
    return (
        f"{plan.name}: {plan.streams} streams, waits with {plan.wait_with}, "
        f"prefetch {plan.prefetch}, {workers} workers, "
        f"{'pinned' if pinned else 'pageable'} staging"
        f"{', layers compiled' if resolved.compiles else ''}"
    )


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
        f"{config.data or 'embedded corpus'}, {config.src} to {config.tgt}: "
        f"{len(task.train)} training pairs{skipped}, {len(corpus.val)} validation{long_val}, "
        f"{len(corpus.test)} test{held_out}{', too few for scores to mean much' if is_small else ''}"
    )


def describe_scoring(scoring: Scoring) -> str:
    """Return how translations are scored, with what to know before scores are compared."""
    note = f"; {scoring.note}" if scoring.note else ""
    return f"BLEU with tokenizer {scoring.tokenizer}, as {scoring.because}{note}"


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
        **run_totals(run.position.records),
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
