"""A parallel corpus in three splits: read from text, or from a store of it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from gapless.nmt.data.filters import Filters
from gapless.nmt.data.pair_store import as_json
from gapless.nmt.data.selection import TrainingText, notes_of_seen, select
from gapless.nmt.data.sentences import Pairs
from gapless.nmt.data.text_files import is_blank


if TYPE_CHECKING:
    from gapless.nmt.data.pair_store import Store
    from gapless.nmt.data.stores import StoreFolder
    from gapless.nmt.data.text_sources import CorpusFiles


# Files of a store: the text of splits that are scored with what is to be said of all, and which pairs are trained on.
TEXT, KEPT = "text.json", "kept.bits"

# The same pairs are held out in every run, so that those with several seeds can be compared.
HOLD_OUT_SEED = 1

NO_FILTERS = Filters()


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """A parallel corpus in three splits.

    Attributes:
        train: pairs to learn from, none with an empty side.
        val: pairs to validate on during training.
        test: pairs to score the final model on.
        held_out: splits that are taken from the training text, as it has none of its own.
        dropped_empty: training pairs left out because nobody sees anything on a side.
        num_repeated: training pairs that are the same as an earlier one.
        filtered: what each filter left out, for people.
        notes: what a user should know of the text, a line each.
        recipe: what else decides about the text, so that a store of it can be found; None: it is in no file.
        stores: where that may be; None: as well.
        store: that it was read from, if any.
    """

    train: TrainingText
    val: Pairs
    test: Pairs
    held_out: tuple[str, ...] = ()
    dropped_empty: int = 0
    num_repeated: int = 0
    filtered: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    recipe: dict[str, Any] | None = None
    stores: StoreFolder | None = None
    store: Store | None = None


def load_corpus(
    files: CorpusFiles,
    *,
    seed: int = HOLD_OUT_SEED,
    longest: int | None = None,
    filters: Filters = NO_FILTERS,
    workers: int = 1,
) -> Corpus:
    """Read a corpus; hold out validation and test pairs from train where they are missing.

    A split that is held out gets 5 % of the pairs left in train, at least 1 and at most 1000. It
    gets fewer where sources repeat, because all pairs of a source go to the same split.

    Args:
        files: of the corpus.
        seed: of the choice of pairs to hold out.
        longest: characters of a sentence that may have few enough tokens; None: any.
        filters: of the training text.
        workers: processes that look at the training text.

    Raises:
        DataError: anything about the files or their content that cannot be used.
    """
    given = {split: text.read() for split, text in files.scored.items()}
    found = select(
        files.train,
        scored=given,
        missing=files.missing,
        name=files.name,
        seed=seed,
        longest=longest,
        filters=filters,
        workers=workers,
    )
    splits = {**given, **found.held_out}
    notes = tuple(
        note
        for split, pairs in splits.items()
        for note in (
            *pairs.notes,
            *notes_of_seen(pairs, split=split, seen=found.seen.get(split, 0)),
            *notes_of_empty(pairs, split=split),
        )
    )
    return Corpus(
        train=found.train,
        val=splits["val"],
        test=splits["test"],
        held_out=tuple(files.missing),
        dropped_empty=found.dropped_empty,
        num_repeated=found.num_repeated,
        filtered=found.filtered,
        notes=notes,
    )


def corpus_files(corpus: Corpus) -> dict[str, bytes]:
    """Return the files of a store from which `stored_corpus` makes the corpus again."""
    train = corpus.train
    state = {
        "val": [corpus.val.src, corpus.val.tgt],
        "test": [corpus.test.src, corpus.test.tgt],
        "held_out": corpus.held_out,
        "dropped_empty": corpus.dropped_empty,
        "num_repeated": corpus.num_repeated,
        "filtered": corpus.filtered,
        "notes": corpus.notes,
        "pairs": len(train.kept),
        "longest": train.longest,
        "characters": train.characters,
        "num_learnable": train.num_learnable,
        "alphabet": train.alphabet,
    }
    return {TEXT: as_json(state), KEPT: np.packbits(train.kept).tobytes()}


def stored_corpus(files: CorpusFiles, store: Store) -> Corpus:
    """Return the corpus in a store.

    Args:
        files: of the corpus.
        store: that was made of them.
    """
    state = json.loads(store.files[TEXT])
    kept = np.unpackbits(np.frombuffer(store.files[KEPT], np.uint8), count=state["pairs"])
    val, test = (Pairs(src=state[split][0], tgt=state[split][1]) for split in ("val", "test"))
    return Corpus(
        train=TrainingText(
            texts=files.train,
            kept=kept.view(np.bool_),
            longest=state["longest"],
            characters=state["characters"],
            num_learnable=state["num_learnable"],
            known_alphabet=state["alphabet"],
        ),
        val=val,
        test=test,
        held_out=tuple(state["held_out"]),
        dropped_empty=state["dropped_empty"],
        num_repeated=state["num_repeated"],
        filtered=state["filtered"],
        notes=tuple(state["notes"]),
        store=store,
    )


def notes_of_empty(pairs: Pairs, *, split: str) -> tuple[str, ...]:
    """Return a line if pairs that are scored have no text on one side."""
    empty = sum(
        is_blank(src) or is_blank(tgt) for src, tgt in zip(pairs.src, pairs.tgt, strict=True)
    )
    if not empty:
        return ()
    return (
        f"{empty:,} of {len(pairs):,} {split} pairs have no text on one side, and count in scores",
    )
