"""What a run learns: its corpus, vocabularies and token ids."""

from __future__ import annotations

import zlib
from dataclasses import astuple, dataclass, replace
from functools import cached_property, partial
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gapless.device.instruments.processor import num_cores
from gapless.errors import DataError
from gapless.nmt.data.corpus import Corpus, corpus_files, load_corpus, stored_corpus
from gapless.nmt.data.demo import demo_pairs
from gapless.nmt.data.filters import Filters
from gapless.nmt.data.languages import find_language
from gapless.nmt.data.pair_store import VERSION
from gapless.nmt.data.selection import TrainingText
from gapless.nmt.data.sentences import CHUNK, Pairs, in_order
from gapless.nmt.data.stores import StoreFolder, default_folder
from gapless.nmt.data.text_sources import files_of_text, find_corpus
from gapless.nmt.data.token_pairs import SIDES, TokenPairs, encode
from gapless.nmt.data.vocab import (
    LONGEST_SUBWORD,
    Vocab,
    Vocabs,
    WordVocab,
    train_subwords,
)


if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gapless.nmt.data.pair_store import Store
    from gapless.nmt.settings.config import TrainConfig


# Processes that read text, at most: one process hands it out and writes what they return.
_MOST_WORKERS = 32


@dataclass(frozen=True, kw_only=True)
class Task:
    """The text of a run, as sentences and as token ids.

    Attributes:
        corpus: the text.
        vocabs: made from its training split.
        train: token ids of the training pairs that are short enough.
        val: token ids of the validation pairs that are short enough.
        counts: training pairs of each text that the corpus was made of.
        skipped_long: training pairs left out because a side has more than `max_length` tokens.
        store: where the token ids are, for people; None: in memory.
    """

    corpus: Corpus
    vocabs: Vocabs
    train: TokenPairs
    val: TokenPairs
    counts: tuple[int, ...]
    skipped_long: int
    store: str | None = None

    @cached_property
    def fingerprint(self) -> dict[str, dict[str, int]]:
        """Tells the pairs of each split, in this order, from others.

        Of the training pairs their tokens count, of the others their text.
        """
        train = {"count": len(self.train), "checksum": self.train.checksum()}
        return {
            "training": train,
            "validation": fingerprint_of(self.corpus.val),
            "test": fingerprint_of(self.corpus.test),
        }


def fingerprint_of(pairs: Pairs) -> dict[str, int]:
    """Return what tells the text of validation or test pairs, in this order, from others."""
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
        return _stored_or_read(config)
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
        train=TrainingText.of(splits["train"]),
        val=splits["val"],
        test=splits["test"],
    )


def _stored_or_read(config: TrainConfig) -> Corpus:
    filters = Filters(
        src=config.src,
        tgt=config.tgt,
        length=config.length_limits(),
        ratio=config.filter_ratio,
        duplicates=config.filter_duplicates,
        language=config.filter_language,
    )
    filters.check()
    files = find_corpus(
        *config.data_paths(), src=config.src, tgt=config.tgt, columns=config.column_names()
    )
    longest = None if config.tokenizer == "none" else config.max_length * LONGEST_SUBWORD
    recipe = {
        "files": files.fingerprint(),
        "sides": [config.src, config.tgt],
        "columns": config.columns,
        "longest": longest,
        "filters": [config.filter_length, *astuple(filters)[3:]],
    }
    stores = StoreFolder(
        path=default_folder() if config.store is None else Path(config.store),
        most_bytes=config.store_size * 2**30,
    )
    store = stores.find({"version": VERSION, "text": recipe})
    corpus = (
        load_corpus(files, longest=longest, filters=filters, workers=_num_workers(config))
        if store is None
        else stored_corpus(files, store)
    )
    return replace(corpus, recipe=recipe, stores=stores)


def _num_workers(config: TrainConfig) -> int:
    return config.store_workers or min(num_cores(), _MOST_WORKERS)


def read_recorded(config: TrainConfig, *, run_dir: Path) -> Corpus:
    """Return the corpus of a run that was begun before, by the path that it recorded.

    Raises:
        DataError: it is not there any more, or anything about it that cannot be used.
    """
    for path in config.data_paths():
        if path.exists() or files_of_text(path):
            continue
        where = "" if path.is_absolute() else f" in {Path.cwd()}"
        raise DataError(
            f"{path}, the path of its text that {run_dir} recorded, does not exist{where}; name "
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
    vocabs = vocabs or make_vocabs(corpus, config)
    train, counts, where = _encoded(corpus, vocabs, config)
    val = encode(corpus.val, vocabs, max_length=config.max_length)
    for pairs, all_pairs, kind in (
        (train, corpus.train, "training"),
        (val, corpus.val, "validation"),
    ):
        if len(all_pairs) and not len(pairs):
            raise DataError(
                f"all {len(all_pairs)} {kind} pairs have more than {config.max_length} tokens; "
                "raise `max_length`"
            )
    skipped = len(corpus.train) - len(train)
    # What was read for the vocabularies need not stay in memory.
    damaged = () if corpus.stores is None else tuple(corpus.stores.notes)
    corpus = replace(
        corpus,
        train=replace(corpus.train),
        notes=(*damaged, *corpus.notes),
        stores=None,
        store=None,
    )
    return Task(
        corpus=corpus,
        vocabs=vocabs,
        train=train,
        val=val,
        counts=tuple(counts),
        skipped_long=skipped,
        store=where,
    )


def _encoded(
    corpus: Corpus, vocabs: Vocabs, config: TrainConfig
) -> tuple[TokenPairs, Sequence[int], str | None]:
    """Return the training pairs that are short enough, how many are of each text, and where they are."""
    parts = _parts(corpus.train, vocabs, config)
    if corpus.stores is None:
        pairs = TokenPairs.joined([part for _, part in parts])
        return pairs, [len(pairs)], None
    files = vocabs.files()
    header = {
        "version": VERSION,
        "text": corpus.recipe,
        "max_length": config.max_length,
        "vocabulary": {name: _hash(data) for name, data in files.items()},
    }
    store, did = _store_of(corpus, header), "found"
    if store is None:
        did = "made"
        store = corpus.stores.save(
            {**header, "name": config.data_name(), "asked": vocabs.asked},
            parts,
            most_ids=max(len(vocabs.src), len(vocabs.tgt)),
            files={**corpus_files(corpus), **files},
        )
    return store.pairs, store.header["counts"], f"{store.path}, {did}"


def _parts(
    train: TrainingText, vocabs: Vocabs, config: TrainConfig
) -> Iterator[tuple[int, TokenPairs]]:
    encode_some = partial(encode, vocabs=vocabs, max_length=config.max_length)
    for text, chunks in enumerate(train.of_each_text()):
        for _, part in in_order(encode_some, chunks, workers=_num_workers(config)):
            yield text, part


def _store_of(corpus: Corpus, wanted: dict[str, Any]) -> Store | None:
    """Return the store that the corpus was read from, if it was made with this, or else another."""
    store = corpus.store
    if store is not None and all(store.header.get(key) == wanted[key] for key in wanted):
        return store
    return None if corpus.stores is None else corpus.stores.find(wanted)


def _hash(data: bytes) -> str:
    return blake2b(data, digest_size=16).hexdigest()


def make_vocabs(corpus: Corpus, config: TrainConfig, *, nearest: bool = False) -> Vocabs:
    """Return the vocabularies of a run.

    Args:
        corpus: of it.
        config: of the run.
        nearest: take the nearest size that the text can give, where it cannot give the one asked for; two
            vocabularies do in any case.

    Raises:
        DataError: the text cannot give one vocabulary of that size.
    """
    # One size need not suit both sides: each takes the nearest that it can have.
    nearest = nearest or not config.shared_vocab
    asked = {
        "tokenizer": config.tokenizer,
        "size": config.vocab_size,
        "model": config.vocab_model,
        "is_shared": config.shared_vocab,
        "nearest": nearest,
        "tags": config.tags,
    }
    store = _store_of(corpus, {"version": VERSION, "text": corpus.recipe, "asked": asked})
    if store is not None:
        vocabs = Vocabs.of_files(store.files, is_shared=config.shared_vocab, where=store.path)
        return replace(vocabs, asked=asked)
    train = corpus.train
    sides = [SIDES] if config.shared_vocab else [(side,) for side in SIDES]
    make = partial(_make_vocab, train=train, config=config, nearest=nearest)
    workers = _num_workers(config) if len(train) > CHUNK else 1
    made = [vocab for _, vocab in in_order(make, sides, workers=workers)]
    return Vocabs(src=made[0], tgt=made[-1], asked=asked)


def _make_vocab(
    sides: Sequence[str], *, train: TrainingText, config: TrainConfig, nearest: bool
) -> Vocab:
    if config.tokenizer == "none":
        sentences = (
            sentence
            for chunk in train.chunks()
            for side in sides
            for sentence in getattr(chunk, side)
        )
        return WordVocab.of(sentences, size=config.vocab_size, nearest=nearest)
    return train_subwords(
        [sentence for side in sides for sentence in getattr(train.sample, side)],
        size=config.vocab_size,
        model=config.vocab_model,
        nearest=nearest,
        tags=config.tag_names(),
    )
