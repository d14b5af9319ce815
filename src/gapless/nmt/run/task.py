"""What a run learns: its corpus, vocabularies and token ids."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from gapless.errors import DataError
from gapless.nmt.data import demo_corpus as demo
from gapless.nmt.data.corpus import Corpus, Pairs, load_corpus
from gapless.nmt.data.token_pairs import TokenPairs
from gapless.nmt.data.vocab import Vocab, WordVocab, train_subwords


if TYPE_CHECKING:
    from collections.abc import Mapping

    from gapless.nmt.run.config import TrainConfig


@dataclass(frozen=True, kw_only=True)
class Vocabs:
    """The vocabularies of both sides; one object twice if they share it."""

    src: Vocab
    tgt: Vocab

    @property
    def is_shared(self) -> bool:
        """Whether both sides use one vocabulary."""
        return self.src is self.tgt


@dataclass(frozen=True, kw_only=True)
class Task:
    """The text of a run, as sentences and as token ids.

    Attributes:
        corpus: the text.
        vocabs: made from its training split.
        train: token ids of the training pairs that are short enough.
        val: token ids of the validation pairs that are short enough.
        skipped_long: training pairs left out because a side has more than `max_length` tokens.
    """

    corpus: Corpus
    vocabs: Vocabs
    train: TokenPairs
    val: TokenPairs
    skipped_long: int

    @cached_property
    def fingerprint(self) -> dict[str, int]:
        """Tells these training pairs, in this order, from others."""
        return {"count": len(self.train), "checksum": self.train.checksum()}


def check_pairs(found: Mapping[str, int], *, begun: Mapping[str, int]) -> None:
    """Check that a resumed run has the training pairs that it began with.

    Args:
        found: fingerprint of the task.
        begun: fingerprint of the task when the run began.

    Raises:
        DataError: there are other pairs, or they are in another order.
    """
    if found != begun:
        raise DataError(
            f"the {found['count']} training pairs are not the {begun['count']} that the run began "
            "with; resume with the same data, sides and columns, or start a new run"
        )


def read_corpus(config: TrainConfig) -> Corpus:
    """Return the corpus of a run: the user's, or the embedded one.

    Raises:
        DataError: anything about the data that cannot be used.
    """
    if config.data is not None:
        return load_corpus(
            Path(config.data),
            src=config.src,
            tgt=config.tgt,
            columns=config.column_names(),
            seed=config.seed,
        )
    if {config.src, config.tgt} != {"en", "zh"}:
        raise DataError(
            f"the embedded corpus is English-Chinese, but `src` is {config.src!r} and `tgt` "
            f"{config.tgt!r}; name your own text with `data`"
        )
    at = 0 if config.src == "en" else 1
    # The corpus does not depend on the run's seed, so that runs with two seeds can be compared.
    splits = {
        name: Pairs(src=[pair[at] for pair in pairs], tgt=[pair[1 - at] for pair in pairs])
        for name, pairs in demo.generate().items()
    }
    return Corpus(
        src_lang=config.src,
        tgt_lang=config.tgt,
        train=splits["train"],
        val=splits["val"],
        test=splits["test"],
    )


def prepare(config: TrainConfig, *, vocabs: Vocabs | None = None) -> Task:
    """Read the corpus, make the vocabularies and encode the pairs.

    Args:
        config: of the run.
        vocabs: those of a run that is resumed; None: make them from the corpus.

    Raises:
        DataError: anything about the data that cannot be used.
    """
    corpus = read_corpus(config)
    vocabs = vocabs or _make_vocabs(corpus.train, config)
    train, skipped = _encode(corpus.train, vocabs, max_length=config.max_length)
    val, skipped_val = _encode(corpus.val, vocabs, max_length=config.max_length)
    for pairs, count, kind in ((train, skipped, "training"), (val, skipped_val, "validation")):
        if count and not len(pairs):
            raise DataError(
                f"all {count} {kind} pairs have more than {config.max_length} tokens; "
                "raise `max_length`"
            )
    return Task(corpus=corpus, vocabs=vocabs, train=train, val=val, skipped_long=skipped)


def _make_vocabs(train: Pairs, config: TrainConfig) -> Vocabs:
    if config.shared_vocab:
        both = _make_vocab([*train.src, *train.tgt], config)
        return Vocabs(src=both, tgt=both)
    return Vocabs(src=_make_vocab(train.src, config), tgt=_make_vocab(train.tgt, config))


def _make_vocab(sentences: list[str], config: TrainConfig) -> Vocab:
    if config.tokenizer == "none":
        return WordVocab.of(sentences, size=config.vocab_size)
    return train_subwords(sentences, size=config.vocab_size, model=config.vocab_model)


def _encode(pairs: Pairs, vocabs: Vocabs, *, max_length: int) -> tuple[TokenPairs, int]:
    src, tgt = vocabs.src.encode(pairs.src), vocabs.tgt.encode(pairs.tgt)
    short = [n for n in range(len(src)) if max(len(src[n]), len(tgt[n])) <= max_length]
    kept = TokenPairs([src[n] for n in short], [tgt[n] for n in short])
    return kept, len(src) - len(short)
