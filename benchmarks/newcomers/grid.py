"""Configurations that somebody who knows the field would try, drawn from a grid by one seed.

Each size of corpus has its own grid. Chinese needs a subword for each of its characters, so its
vocabularies are larger. The time ends a run, except with the cosine schedule, which needs to know
the epochs beforehand.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from benchmarks.newcomers.cuts import SEED


NUM_CONFIGURATIONS = 24

# Width: heads, and the highest learning rates that such a width is trained with.
_HEADS_AND_RATES = {
    64: (2, ("1e-3", "2e-3", "4e-3")),
    128: (4, ("1e-3", "2e-3", "3e-3")),
    256: (4, ("5e-4", "1e-3", "2e-3")),
    512: (8, ("2e-4", "5e-4", "1e-3")),
}


@dataclass(frozen=True, kw_only=True)
class _Grid:
    widths: tuple[int, ...]
    layers: tuple[int, ...]
    warmup: tuple[int, ...]
    batch_tokens: tuple[int, ...]
    vocabulary_zh: tuple[int, ...]
    vocabulary_other: tuple[int, ...]
    dropout: tuple[float, ...]
    cosine_epochs: tuple[int, ...]
    val_interval: int


_BY_SIZE = {
    500: _Grid(
        widths=(64, 128, 256),
        layers=(1, 2, 3),
        warmup=(50, 100, 200, 400),
        batch_tokens=(512, 1024, 2048),
        vocabulary_zh=(1500, 2000, 3000),
        vocabulary_other=(500, 1000, 2000),
        dropout=(0.1, 0.2, 0.3, 0.4),
        cosine_epochs=(60, 150, 400),
        val_interval=10,
    ),
    5_000: _Grid(
        widths=(128, 256, 512),
        layers=(2, 3, 4),
        warmup=(200, 400, 1000),
        batch_tokens=(1024, 2048, 4096),
        vocabulary_zh=(3000, 4000, 8000),
        vocabulary_other=(1000, 2000, 4000, 8000),
        dropout=(0.1, 0.2, 0.3, 0.4),
        cosine_epochs=(20, 50, 120),
        val_interval=2,
    ),
    20_000: _Grid(
        widths=(256, 512),
        layers=(3, 4, 6),
        warmup=(400, 1000, 2000, 4000),
        batch_tokens=(2048, 4096, 8192),
        vocabulary_zh=(4000, 8000, 16000),
        vocabulary_other=(2000, 4000, 8000, 16000),
        dropout=(0.1, 0.2, 0.3),
        cosine_epochs=(8, 20, 40),
        val_interval=1,
    ),
}

_LABEL_SMOOTHING = (0.0, 0.1, 0.2)
_ATTENTION_DROPOUT = (0.0, 0.1)
_SCHEDULES = ("inverse-sqrt", "inverse-sqrt", "cosine", "constant")
_NORMS = ("pre", "pre", "post")
_VOCABULARIES = (("--no-shared-vocab", "decoder"), ("--shared-vocab", "all"))
_EPOCHS_WITHOUT_END = 10_000


def configurations(size: int, languages: tuple[str, str]) -> list[list[str]]:
    """Return the 24 lists of flags for a cut; both directions have the same.

    Args:
        size: of the cut, which has a grid of its own.
        languages: codes of both.
    """
    kind = "zh" if "zh" in languages else "other"
    chance = random.Random(f"{SEED} grid {size} {kind}")
    found: list[list[str]] = []
    while len(found) < NUM_CONFIGURATIONS:
        flags = _draw(chance, size, kind)
        if flags not in found:
            found.append(flags)
    return found


def _draw(chance: random.Random, size: int, kind: str) -> list[str]:
    grid = _BY_SIZE[size]
    vocabulary = grid.vocabulary_zh if kind == "zh" else grid.vocabulary_other
    width = chance.choice(grid.widths)
    heads, rates = _HEADS_AND_RATES[width]
    layers = chance.choice(grid.layers)
    schedule = chance.choice(_SCHEDULES)
    cosine_epochs = chance.choice(grid.cosine_epochs)
    shared, share = chance.choice(_VOCABULARIES)
    values = {
        "--d-model": width,
        "--heads": heads,
        "--ffn": width * chance.choice((2, 4)),
        "--encoder-layers": layers,
        "--decoder-layers": layers,
        "--norm": chance.choice(_NORMS),
        "--share": share,
        "--vocab-size": chance.choice(vocabulary),
        "--dropout": chance.choice(grid.dropout),
        "--attention-dropout": chance.choice(_ATTENTION_DROPOUT),
        "--label-smoothing": chance.choice(_LABEL_SMOOTHING),
        "--lr": chance.choice(rates),
        "--warmup": chance.choice(grid.warmup),
        "--schedule": schedule,
        "--batch-tokens": chance.choice(grid.batch_tokens),
        "--epochs": cosine_epochs if schedule == "cosine" else _EPOCHS_WITHOUT_END,
        "--val-interval": grid.val_interval,
    }
    return [shared, *(word for name, value in values.items() for word in (name, str(value)))]
