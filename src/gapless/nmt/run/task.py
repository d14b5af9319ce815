"""What a run learns: its corpus, vocabularies and token ids."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from gapless.errors import DataError
from gapless.nmt.data.corpus import Corpus, Pairs, files_of_text, load_corpus
from gapless.nmt.data.demo import demo_pairs
from gapless.nmt.data.languages import find_language
from gapless.nmt.data.token_pairs import TokenPairs
from gapless.nmt.data.vocab import (
    LONGEST_SUBWORD,
    Vocab,
    Vocabs,
    WordVocab,
    train_subwords,
)


if TYPE_CHECKING:
    from collections.abc import Mapping

    from gapless.nmt.settings.config import TrainConfig


@dataclass(frozen=True, kw_only=True)
class Task:
    """The text of a run, as sentences and as token ids.

    Attributes:
        corpus: the text.
        vocabs: made from its training split.
        train: token ids of the training pairs that are short enough.
        val: token ids of the validation pairs that are short enough.
        long: numbers of the training pairs left out because a side has more than `max_length` tokens.
    """

    corpus: Corpus
    vocabs: Vocabs
    train: TokenPairs
    val: TokenPairs
    long: list[int]

    @property
    def skipped_long(self) -> int:
        """How many training pairs are left out because they are too long."""
        return len(self.long)

    @cached_property
    def fingerprint(self) -> dict[str, dict[str, int]]:
        """Tells the pairs of each split, in this order, from others.

        Of the training pairs their tokens count, of the others their text.
        """
        train = {"count": len(self.train), "checksum": self.train.checksum()}
        return {
            "training": train,
            "validation": _fingerprint(self.corpus.val),
            "test": _fingerprint(self.corpus.test),
        }


def _fingerprint(pairs: Pairs) -> dict[str, int]:
    text = "\n".join((*pairs.src, *pairs.tgt))
    return {"count": len(pairs), "checksum": zlib.crc32(text.encode())}


def check_pairs(
    found: Mapping[str, Mapping[str, int]], *, begun: Mapping[str, Mapping[str, int]]
) -> None:
    """Check that a resumed run has the pairs that it began with.

    Args:
        found: fingerprint of the task.
        begun: fingerprint of the task when the run began.

    Raises:
        DataError: there are other pairs, or they are in another order.
    """
    changed = [
        f"the {found[split]['count']} {split} pairs are not the {begun[split]['count']} that the "
        "run began with"
        for split in begun
        if dict(found[split]) != dict(begun[split])
    ]
    if changed:
        raise DataError(
            f"{', and '.join(changed)}; resume with the same data, sides and columns, go on with "
            "these by `allow_changed_data=True`, or start a new run"
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
    named = [find_language(side) for side in (config.src, config.tgt)]
    languages = ["" if language is None else language.code for language in named]
    if sorted(languages) != ["en", "zh"]:
        raise DataError(
            f"the embedded corpus is English-Chinese, but `src` is {config.src!r} and `tgt` "
            f"{config.tgt!r}; name your own text with `data`"
        )
    at = languages.index("en")
    # The corpus does not depend on the run's seed, so that runs with two seeds can be compared.
    splits = {
        name: Pairs(src=[pair[at] for pair in pairs], tgt=[pair[1 - at] for pair in pairs])
        for name, pairs in demo_pairs().items()
    }
    return Corpus(
        src_lang=config.src,
        tgt_lang=config.tgt,
        train=splits["train"],
        val=splits["val"],
        test=splits["test"],
    )


def read_recorded(config: TrainConfig, *, run_dir: Path) -> Corpus:
    """Return the corpus of a run that was begun before, by the path that it recorded.

    Raises:
        DataError: it is not there any more, or anything about it that cannot be used.
    """
    data = config.data
    if data is not None and not Path(data).exists() and not files_of_text(Path(data)):
        where = "" if Path(data).is_absolute() else f" in {Path.cwd()}"
        raise DataError(
            f"{data}, the path of its text that {run_dir} recorded, does not exist{where}; name "
            "another one with `data`"
        )
    return read_corpus(config)


def prepare(
    config: TrainConfig, *, corpus: Corpus | None = None, vocabs: Vocabs | None = None
) -> Task:
    """Read the corpus, make the vocabularies and encode the pairs.

    Args:
        config: of the run.
        corpus: of it; None: read it.
        vocabs: those of a run that is resumed; None: make them from the corpus.

    Raises:
        DataError: anything about the data that cannot be used.
    """
    corpus = corpus or read_corpus(config)
    vocabs = vocabs or make_vocabs(corpus.train, config)
    train, long = _encode(corpus.train, vocabs, max_length=config.max_length)
    val, long_val = _encode(corpus.val, vocabs, max_length=config.max_length)
    for pairs, left_out, kind in ((train, long, "training"), (val, long_val, "validation")):
        if left_out and not len(pairs):
            raise DataError(
                f"all {len(left_out)} {kind} pairs have more than {config.max_length} tokens; "
                "raise `max_length`"
            )
    return Task(corpus=corpus, vocabs=vocabs, train=train, val=val, long=long)


def make_vocabs(train: Pairs, config: TrainConfig, *, nearest: bool = False) -> Vocabs:
    """Return the vocabularies of a run.

    Args:
        train: its training pairs.
        config: of the run.
        nearest: take the nearest size that the text can give, where it cannot give the one asked for; two
            vocabularies do in any case.

    Raises:
        DataError: the text cannot give one vocabulary of that size.
    """

    def of(sentences: list[str], *, nearest: bool) -> Vocab:
        if config.tokenizer == "none":
            return WordVocab.of(sentences, size=config.vocab_size, nearest=nearest)
        size, model = config.vocab_size, config.vocab_model
        tags = config.tag_names()
        return train_subwords(sentences, size=size, model=model, nearest=nearest, tags=tags)

    train = may_be_learned(train, config)
    if config.shared_vocab:
        both = of([*train.src, *train.tgt], nearest=nearest)
        return Vocabs(src=both, tgt=both)
    # One size need not suit both sides: each takes the nearest that it can have.
    return Vocabs(src=of(train.src, nearest=True), tgt=of(train.tgt, nearest=True))


def may_be_learned(train: Pairs, config: TrainConfig) -> Pairs:
    """Return the pairs that can have few enough tokens, or all if none can.

    Text that is never trained on decides nothing about the vocabulary.
    """
    if config.tokenizer == "none":
        return train
    most = config.max_length * LONGEST_SUBWORD
    short = [n for n in range(len(train)) if max(len(train.src[n]), len(train.tgt[n])) <= most]
    return train.take(short) if short else train


def _encode(pairs: Pairs, vocabs: Vocabs, *, max_length: int) -> tuple[TokenPairs, list[int]]:
    """Return the pairs that are short enough, and the numbers of the others."""
    src, tgt = vocabs.src.encode(pairs.src), vocabs.tgt.encode(pairs.tgt)
    long = [n for n in range(len(src)) if max(len(src[n]), len(tgt[n])) > max_length]
    left_out = set(long)
    short = [n for n in range(len(src)) if n not in left_out]
    return TokenPairs([src[n] for n in short], [tgt[n] for n in short]), long
