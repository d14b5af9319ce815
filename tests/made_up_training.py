"""Figures of a training run on a GPU, made up as `metrics.jsonl` has them."""

from __future__ import annotations

import math
import random

from gapless.records.training import RunHistory


def made_up_epoch(number, **changed):
    """Return the line of an epoch."""
    return {
        "kind": "epoch",
        "step": number,
        "loss": 5.0 / number,
        "tokens_per_second": 10_000.0 + number,
        "num_batches": 100,
        "wall_ms": 4000.0,
        "data_wait_ms": 20.0,
        "launch_ms": 350.0,
        "busy_ms": 3600.0,
        "busy_share": 0.9,
        "gap_ms": 40.0,
        "gap_share": 0.011,
        "num_waits": 11,
        "wait_ms": 30.0,
        "peak_memory_bytes": 2**30,
        "waits": {"interval": {"count": 10, "ms": 29.0}, "epoch_end": {"count": 1, "ms": 1.0}},
        **changed,
    }


def made_up_run(*, num_epochs=8):
    """Return the figures of a run that learns, with a validation after every second epoch."""
    draw = random.Random(5)
    losses = [
        1.9 + 5.0 * math.exp(-batch / 150) + draw.gauss(0.0, 0.12)
        for batch in range(100 * num_epochs)
    ]
    epochs = [
        made_up_epoch(
            number,
            loss=sum(losses[100 * (number - 1) : 100 * number]) / 100,
            tokens_per_second=(71_000.0 if number == 1 else 98_000.0) + draw.uniform(-1500, 1500),
            data_wait_ms=draw.uniform(10, 35),
            wait_ms=draw.uniform(25, 40),
            busy_share=(0.81 if number == 1 else 0.975) + draw.uniform(-0.01, 0.01),
            gap_share=(0.12 if number == 1 else 0.015) + draw.uniform(-0.004, 0.004),
            **(
                {}
                if number % 2
                else {"val_loss": 1.8 + 3.0 / number, "val_bleu": 31.0 - 40.0 / number}
            ),
        )
        for number in range(1, num_epochs + 1)
    ]
    return RunHistory(
        losses=tuple(losses), epochs=tuple(epochs), test={"bleu": 28.41, "chrf": 51.2}
    )
