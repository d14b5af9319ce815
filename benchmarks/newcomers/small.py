"""A trial of the benchmark itself: made-up text, a tiny model, two configurations."""

from __future__ import annotations

import random

from benchmarks.newcomers.cuts import SEED, Cut, Pair, draw


CORPUS = "made-up"
SIZE = 60

TINY = (
    *("--d-model", "16", "--heads", "2", "--ffn", "16", "--encoder-layers", "1"),
    *("--decoder-layers", "1", "--vocab-size", "300", "--max-length", "20", "--beam", "1"),
    *("--batch-size", "16", "--workers", "0"),
)
DEFAULTS = (*TINY, "--max-steps", "8", "--warmup", "4")
CONFIGURATIONS = [
    [*TINY, "--warmup", "4", "--lr", rate, "--epochs", "10000"] for rate in ("1e-3", "4e-3")
]

_WORDS = {
    "cat": "Katze", "dog": "Hund", "house": "Haus", "tree": "Baum", "river": "Fluss", "book": "Buch",
    "sees": "sieht", "finds": "findet", "likes": "mag", "old": "alt", "red": "rot", "small": "klein",
}  # fmt: skip


def cut() -> Cut:
    """Return the one cut of the trial."""
    languages = ("en", "de")
    return draw(CORPUS, _pool(), size=SIZE, languages=languages, num_test=8, num_choosing=8)


def lesson() -> tuple[list[Pair], list[Pair]]:
    """Return pairs for the first lesson, and some of them."""
    pairs = _pool()[:SIZE]
    return pairs, pairs[:8]


def _pool() -> list[Pair]:
    chance = random.Random(SEED)
    words = list(_WORDS)
    lines = [[chance.choice(words) for _ in range(chance.randint(3, 6))] for _ in range(200)]
    pairs = [(" ".join(line), " ".join(_WORDS[word] for word in line)) for line in lines]
    return list(dict.fromkeys(pairs))
