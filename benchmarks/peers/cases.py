"""What all rows train on: the same pairs, the same model, the same settings."""

from __future__ import annotations

import pickle
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.peers.flops import model_flops
from gapless.nmt.data.fixed_layout import choose_fixed_layout
from gapless.nmt.data.sampler import Microbatch, MicrobatchSampler
from gapless.nmt.data.token_pairs import TokenPairs
from gapless.nmt.run.build import training_sampler
from gapless.nmt.run.task import prepare
from gapless.nmt.settings.config import TrainConfig


if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gapless.nmt.run.task import Task


# Batches that are each padded to their longest sentence, on which peers and plans agree.
PLAIN_LAYOUT: dict[str, Any] = {"pack": False, "fixed_shapes": False, "compile": False}

# The Transformer base of Vaswani et al. 2017 with two vocabularies of 32,000: 93 M parameters.
_BASE: dict[str, Any] = {
    "share": "none",
    "d_model": 512,
    "heads": 8,
    "ffn": 2048,
    "encoder_layers": 6,
    "decoder_layers": 6,
    "dropout": 0.1,
}

# The Transformer big: 274 M parameters with the same vocabularies.
_BIG: dict[str, Any] = _BASE | {"d_model": 1024, "heads": 16, "ffn": 4096}

# Seconds on two CPU cores; shows that everything runs.
TINY: dict[str, Any] = {
    "d_model": 32,
    "heads": 2,
    "ffn": 64,
    "encoder_layers": 1,
    "decoder_layers": 1,
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One workload, as every row gets it.

    Attributes:
        name: of the case.
        config: settings of model, optimizer and batches; the plan is the row's own.
        train: sentence pairs as token ids.
        vocabs: `src` and `tgt`, of which only the sizes matter.
        workers: loader processes of every row.
    """

    name: str
    config: TrainConfig
    train: TokenPairs
    vocabs: Any
    workers: int

    @property
    def counts(self) -> tuple[int]:
        """Pairs of each corpus that the case is of: one has all of them."""
        return (len(self.train),)

    def plain_batches(self) -> list[Microbatch]:
        """Return the batches that all peers train on, each padded to its longest sentence."""
        return list(training_sampler(self.config, self.train, layout="padded"))

    def shaped_batches(self, *, max_shapes: int) -> MicrobatchSampler:
        """Return batches padded to a few shapes, for whoever compiles or captures each shape."""
        budgets: dict[str, Any] = {
            "max_tokens": self.config.batch_tokens,
            "max_sentences": self.config.batch_size,
        }
        lengths = self.train.src_lengths, self.train.tgt_lengths
        layout = choose_fixed_layout(*lengths, **budgets, max_shapes=max_shapes)
        return MicrobatchSampler(self.train, layout, seed=self.config.seed)

    def count(self, batches: Sequence[Microbatch]) -> dict[str, float]:
        """Return sentences, tokens, padding and arithmetic of these batches.

        Tokens are those without padding: of the source, and to predict of the target.
        """
        of_src, of_tgt = self.train.src_lengths, self.train.tgt_lengths
        pairs = np.concatenate([batch.pairs for batch in batches])
        num_src, num_tgt = int(of_src[pairs].sum()), int(of_tgt[pairs].sum())
        positions = sum(batch.shape.num_tokens for batch in batches)
        return {
            "sentences": len(pairs),
            "source_tokens": num_src,
            "target_tokens": num_tgt,
            "padding_share": 1.0 - (num_src + num_tgt) / positions,
            "model_flops": model_flops(
                self.config,
                tgt_vocab=len(self.vocabs.tgt),
                src_lengths=of_src[pairs],
                tgt_lengths=of_tgt[pairs],
            ),
        }


@dataclass(frozen=True, kw_only=True)
class CaseFile:
    """A case in a file, from which many processes read it at the same time.

    A process that is given the case itself has to be waited for until it has imported everything
    and read it; the next one starts only then.

    Attributes:
        path: of the file.
    """

    path: Path

    @classmethod
    @contextmanager
    def of(cls, case: Case) -> Iterator[CaseFile]:
        """Return a file of a case that is there for the body."""
        with tempfile.TemporaryDirectory(prefix="case-") as folder:
            path = Path(folder) / "case.pickle"
            path.write_bytes(pickle.dumps(case))
            yield cls(path=path)

    def read(self) -> Case:
        """Return the case."""
        case: Case = pickle.loads(self.path.read_bytes())
        return case


def base32(
    *, workers: int, precision: str = "bf16", num_pairs: int = 40_000, **sizes: Any
) -> Case:
    """Return synthetic pairs in batches of 32 sentences.

    Lengths are log-normal around 28 tokens, as of news text in subwords.
    """
    vocab_size = 32_000 if not sizes else 1_000
    config = TrainConfig(batch_size=32, precision=precision, max_length=100, **(_BASE | sizes))
    return Case(
        name="base32",
        config=config,
        train=synthetic_pairs(num_pairs, vocab_size=vocab_size, seed=config.seed),
        vocabs=_vocabs(vocab_size, vocab_size),
        workers=workers,
    )


def base8192(*, batch_tokens: int = 8192, **settings: Any) -> Case:
    """Return a user's text in batches of 8,192 tokens, padding included.

    Args:
        batch_tokens: budget of a batch's longer side.
        settings: as of `token_case`.

    Raises:
        DataError: anything about the data that cannot be used.
    """
    return token_case(f"base{batch_tokens}", batch_tokens=batch_tokens, **(_BASE | settings))


def big25k(*, target_tokens: int = 25_000, **settings: Any) -> Case:
    """Return the Transformer big on batches of about 25,000 target tokens, padding included.

    A budget is that of the longer side: where the source is longer, it is that much larger.

    Args:
        target_tokens: of a batch.
        settings: as of `token_case`.

    Raises:
        DataError: anything about the data that cannot be used.
    """
    case = token_case("big25k", batch_tokens=target_tokens, **(_BIG | settings))
    src, tgt = case.train.src_lengths.mean(), case.train.tgt_lengths.mean()
    budget = round(target_tokens * max(src, tgt) / tgt)
    return replace(case, config=replace(case.config, batch_tokens=budget))


def token_case(
    name: str,
    *,
    workers: int,
    batch_tokens: int,
    data: str | None = None,
    src: str = "en",
    tgt: str = "zh",
    vocab_size: int = 32_000,
    num_pairs: int = 40_000,
    **settings: Any,
) -> Case:
    """Return a case with a budget of tokens; learns subwords first, which takes a while.

    Args:
        name: of the case.
        workers: loader processes.
        batch_tokens: budget of a batch's longer side.
        data: folder or file of sentence pairs; none: synthetic ones, as in `base32`.
        src: source side of the data.
        tgt: target side.
        vocab_size: of each side.
        num_pairs: synthetic ones.
        settings: of model and precision.

    Raises:
        DataError: anything about the data that cannot be used.
    """
    config = TrainConfig(data=data, src=src, tgt=tgt, batch_tokens=batch_tokens, **settings)
    if data is None:
        train = synthetic_pairs(num_pairs, vocab_size=vocab_size, seed=config.seed)
        return Case(
            name=name,
            config=config,
            train=train,
            vocabs=_vocabs(vocab_size, vocab_size),
            workers=workers,
        )
    task = _text(data, src, tgt, vocab_size)
    return Case(
        name=name,
        config=config,
        train=task.train,
        vocabs=_vocabs(len(task.vocabs.src), len(task.vocabs.tgt)),
        workers=workers,
    )


@cache
def _text(data: str, src: str, tgt: str, vocab_size: int) -> Task:
    return prepare(TrainConfig(data=data, src=src, tgt=tgt, vocab_size=vocab_size))


def synthetic_pairs(count: int, *, vocab_size: int, seed: int) -> TokenPairs:
    """Return pairs of random ids; a target's length is about its source's."""
    random = np.random.default_rng(seed)
    src_lengths = np.clip(random.lognormal(np.log(28), 0.5, count), 3, 98).astype(int)
    stretched = src_lengths * random.lognormal(0.0, 0.15, count)
    tgt_lengths = np.clip(stretched, 3, 98).astype(int)
    sides = (
        [random.integers(4, vocab_size, n) for n in n_s] for n_s in (src_lengths, tgt_lengths)
    )
    return TokenPairs(*sides)


def _vocabs(src: int, tgt: int) -> SimpleNamespace:
    return SimpleNamespace(src=range(src), tgt=range(tgt))
