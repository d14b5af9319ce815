"""Cuts of parallel corpora, drawn by one seed: pairs to train on, and pairs that training never sees.

The corpora are read from a folder that is given. All splits of a corpus are one pool, so that a cut
is what somebody has who collected as many pairs. Text stays as the corpus holds it.
"""

from __future__ import annotations

import gzip
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gapless.errors import UserError


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path


SEED = 4_177_902
SIZES = (500, 5_000, 20_000)
# Scores of weak models differ by luck, which many pairs lessen.
NUM_TEST = 1_500

# Pairs that a user would choose the best configuration by, and never report.
NUM_CHOOSING = 500

FIRST_LESSON = "first-lesson"
FIRST_LESSON_PAIRS = 300

# sacrebleu's tokenisers of the languages of these corpora.
TOKENISERS = {"zh": "zh", "en": "13a", "de": "13a"}

_FILES: dict[str, tuple[str, str, list[tuple[str, ...]]]] = {
    "tatoeba-zh-en": ("en", "zh", [("train.tsv.gz",), ("val.tsv.gz",), ("test.tsv.gz",)]),
    "pydocs-zh-en": ("en", "zh", [("train.tsv.gz",), ("val.tsv.gz",), ("test.tsv.gz",)]),
    "multi30k": (
        "en",
        "de",
        [
            ("train.en.gz", "train.de.gz"),
            ("val.en.gz", "val.de.gz"),
            ("test_2016_flickr.en.gz", "test_2016_flickr.de.gz"),
        ],
    ),
}

Pair = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class Cut:
    """Pairs of one direction, source side first.

    Attributes:
        corpus: it was drawn from.
        size: as it was asked for, which names its grid.
        source: code of the source language.
        target: code of the target language.
        train: pairs to train on.
        test: pairs to score on; no side of one is a side of a training pair.
        choosing: as many more, to choose a configuration by.
    """

    corpus: str
    size: int
    source: str
    target: str
    train: list[Pair]
    test: list[Pair]
    choosing: list[Pair]

    @property
    def name(self) -> str:
        """Corpus, size and direction."""
        return f"{self.corpus}-{self.size}-{self.source}-{self.target}"

    @property
    def tokeniser(self) -> str:
        """Name of sacrebleu's tokeniser for the target side."""
        return TOKENISERS[self.target]

    def reversed(self) -> Cut:
        """Return the same pairs in the other direction."""
        return Cut(
            corpus=self.corpus,
            size=self.size,
            source=self.target,
            target=self.source,
            train=_swapped(self.train),
            test=_swapped(self.test),
            choosing=_swapped(self.choosing),
        )

    def write(self, path: Path) -> None:
        """Write the training pairs as a TSV without header."""
        lines = "".join(f"{source}\t{target}\n" for source, target in self.train)
        path.write_text(lines, encoding="utf-8", newline="")


def names() -> list[str]:
    """Return the names of all cuts: small ones first, and of each size every corpus."""
    return [
        f"{corpus}-{size}-{source}-{target}"
        for size in SIZES
        for corpus, (one, other, _) in _FILES.items()
        for source, target in ((one, other), (other, one))
    ]


def load(folder: Path, wanted: Iterable[str]) -> list[Cut]:
    """Return the cuts of these names, in the order of `names`.

    Raises:
        UserError: a corpus is not there, or too small for a cut.
    """
    wanted = set(wanted)
    found = []
    for size in SIZES:
        for corpus, (source, target, _) in _FILES.items():
            both = {f"{corpus}-{size}-{source}-{target}", f"{corpus}-{size}-{target}-{source}"}
            if both & wanted:
                pool = read(folder, corpus)
                cut = draw(corpus, pool, size=size, languages=(source, target))
                found += [one for one in (cut, cut.reversed()) if one.name in wanted]
    return found


def draw(
    corpus: str,
    pool: list[Pair],
    *,
    size: int,
    languages: tuple[str, str],
    num_test: int = NUM_TEST,
    num_choosing: int = NUM_CHOOSING,
) -> Cut:
    """Draw a cut; the same pool gives the same one.

    Raises:
        UserError: the pool has too few pairs.
    """
    shuffled = list(pool)
    random.Random(f"{SEED} {corpus} {size}").shuffle(shuffled)
    num_unseen = num_test + num_choosing
    unseen, rest = shuffled[:num_unseen], shuffled[num_unseen:]
    sources = {plain(source) for source, _ in unseen}
    targets = {plain(target) for _, target in unseen}
    train = [
        pair for pair in rest if plain(pair[0]) not in sources and plain(pair[1]) not in targets
    ][:size]
    if len(train) < size:
        raise UserError(
            f"{corpus} gives {len(train):,} training pairs, and the cut needs {size:,}"
        )
    return Cut(
        corpus=corpus,
        size=size,
        source=languages[0],
        target=languages[1],
        train=train,
        test=unseen[:num_test],
        choosing=unseen[num_test:],
    )


def first_lesson(folder: Path) -> tuple[list[Pair], list[Pair]]:
    """Return 300 pairs of Tatoeba, English first, and 40 of them.

    Raises:
        UserError: the corpus is not there.
    """
    chance = random.Random(f"{SEED} {FIRST_LESSON}")
    pairs = chance.sample(read(folder, "tatoeba-zh-en"), FIRST_LESSON_PAIRS)
    return pairs, chance.sample(pairs, 40)


def read(folder: Path, corpus: str) -> list[Pair]:
    """Return all pairs of a corpus that one line of a TSV can hold, each once.

    Raises:
        UserError: a file is not there, or two files differ in length.
    """
    _, _, files = _FILES[corpus]
    pairs = (
        pair for split in files for pair in _pairs([folder / corpus / name for name in split])
    )
    return list(dict.fromkeys(pair for pair in pairs if all(map(_fits_a_line, pair))))


def plain(text: str) -> str:
    """Return letters and digits alone, in lower case: what makes two sides alike."""
    return "".join(filter(str.isalnum, text.casefold()))


def _pairs(paths: list[Path]) -> Iterator[Pair]:
    columns = [_lines(path) for path in paths]
    if len(columns) == 1:
        for line in columns[0]:
            source, target = line.split("\t")[:2]
            yield source, target
        return
    sources, targets = columns
    if len(sources) != len(targets):
        raise UserError(
            f"{paths[0]} has {len(sources):,} lines and {paths[1].name} has {len(targets):,}"
        )
    yield from zip(sources, targets, strict=True)


def _lines(path: Path) -> list[str]:
    try:
        with gzip.open(path, "rt", encoding="utf-8", newline="\n") as file:
            return file.read().removesuffix("\n").split("\n")
    except FileNotFoundError:
        raise UserError(f"no file {path}; name the folder of the corpora with --corpora") from None


def _fits_a_line(side: str) -> bool:
    return bool(plain(side)) and not any(mark in side for mark in "\t\r\n")


def _swapped(pairs: list[Pair]) -> list[Pair]:
    return [(target, source) for source, target in pairs]
