"""Read parallel text into sentence pairs.

Accepted: a folder, or the begin of the names of files in one, with text in two files (`train.en`, `train.zh`)
or in a table (`train.tsv`, .csv, .json, .jsonl); or one such table. Everything may be packed by gzip.
"""

from __future__ import annotations

import random
import re
import unicodedata
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gapless.errors import DataError
from gapless.nmt.data.languages import matching_names
from gapless.nmt.data.tables import ENDINGS, ending_of, read_table
from gapless.nmt.data.text_files import is_blank, read_lines, why_no_file


if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path


# How names of their files begin; others often carry a year or a source after it, as test_2016_flickr.en does.
_BEGINS = re.compile(r"(train|valid(?:ation)?|val|dev|test)(?![^\W\d_])", re.IGNORECASE)
_SPLIT_OF = {"valid": "val", "validation": "val", "dev": "val"}

# Behind the begin of names that was given.
_SEPARATORS = (".", "-", "_")

_MAX_HELD_OUT = 1000
_HELD_OUT_SHARE = 0.05

# Short sentences occur in any text; more than this share of a split is no chance.
_SEEN_SHARE = 0.05

_NAMES_SHOWN = 12


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """Sentence pairs, side by side.

    Attributes:
        src: source sentences.
        tgt: target sentences, as many.
        notes: what their reader should know of the files that they are from, a line each.
    """

    src: list[str]
    tgt: list[str]
    notes: tuple[str, ...] = field(default=(), compare=False)

    def __len__(self) -> int:
        return len(self.src)

    def take(self, numbers: Sequence[int]) -> Pairs:
        """Return the pairs of these numbers."""
        return Pairs(src=[self.src[n] for n in numbers], tgt=[self.tgt[n] for n in numbers])


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """A parallel corpus in three splits.

    Attributes:
        src_lang: name of the source side.
        tgt_lang: name of the target side.
        train: pairs to learn from, none with an empty side.
        val: pairs to validate on during training.
        test: pairs to score the final model on.
        held_out: splits that are taken from the training text, as it has none of its own.
        dropped_empty: training pairs left out because nobody sees anything on a side.
        num_repeated: training pairs that are the same as an earlier one.
        notes: what a user should know of the text, a line each.
    """

    src_lang: str
    tgt_lang: str
    train: Pairs
    val: Pairs
    test: Pairs
    held_out: tuple[str, ...] = ()
    dropped_empty: int = 0
    num_repeated: int = 0
    notes: tuple[str, ...] = ()


def load_corpus(
    path: Path,
    *,
    src: str,
    tgt: str,
    columns: tuple[str, ...] | None = None,
    seed: int = 0,
) -> Corpus:
    """Read a corpus; hold out validation and test pairs from train where they are missing.

    A split that is held out gets 5 % of the pairs left in train, at least 1 and at most 1000. It
    gets fewer where sources repeat, because all pairs of a source go to the same split.

    Args:
        path: folder, file, or begin of the names of files.
        src: name of the source side: a language or its code, a file ending, a column or a JSON key.
        tgt: name of the target side.
        columns: names of the first columns of a table without a header, in order.
        seed: of the choice of pairs to hold out.

    Raises:
        DataError: anything about the files or their content that cannot be used.
    """
    train = load_split(path, split="train", src=src, tgt=tgt, columns=columns)
    assert train is not None
    kept = [n for n in range(len(train)) if not (is_blank(train.src[n]) or is_blank(train.tgt[n]))]
    dropped = len(train) - len(kept)
    train = train.take(kept)
    if not len(train):
        raise DataError(f"{path} holds no training pair with text on both sides")
    found = {
        split: load_split(path, split=split, src=src, tgt=tgt, columns=columns)
        for split in ("val", "test")
        if not path.is_file()
    }
    splits = {split: pairs for split, pairs in found.items() if pairs is not None}
    missing = [split for split in ("val", "test") if split not in splits]
    if missing:
        held_out = _hold_out(train, path=path, splits=missing, seed=seed)
        train = held_out.pop("train")
        splits.update(held_out)
    known = set(map(plain, train.src))
    notes = tuple(
        note
        for split, pairs in splits.items()
        for note in (*pairs.notes, *_notes_of_seen(pairs, split=split, known=known))
    )
    return Corpus(
        src_lang=src,
        tgt_lang=tgt,
        train=train,
        val=splits["val"],
        test=splits["test"],
        held_out=tuple(missing),
        dropped_empty=dropped,
        num_repeated=len(train) - len(set(zip(train.src, train.tgt, strict=True))),
        notes=notes,
    )


def _notes_of_seen(pairs: Pairs, *, split: str, known: Collection[str]) -> tuple[str, ...]:
    """Return what makes scores on a split say less than they seem to, a line each.

    Args:
        pairs: of the split.
        split: its name.
        known: the training sources, each as `plain` makes it.
    """
    seen = sum(plain(source) in known for source in pairs.src)
    notes = []
    if seen > _SEEN_SHARE * len(pairs):
        notes.append(
            f"{seen:,} of {len(pairs):,} {split} sources are training sources too, so scores say less "
            "of new text; leave them out of the training text"
        )
    return (*notes, *notes_of_empty(pairs, split=split))


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


def plain(sentence: str) -> str:
    """Return a sentence without what makes no other one: capitals, forms of characters, spaces and joiners.

    Which pairs a run holds out depends on it.
    """
    # Invisible characters are not printable, so that nearly all sentences skip this loop.
    if not sentence.isprintable():
        sentence = "".join(sign for sign in sentence if unicodedata.category(sign) != "Cf")
    return " ".join(unicodedata.normalize("NFKC", sentence).casefold().split())


def load_split(
    path: Path, *, split: str, src: str, tgt: str, columns: tuple[str, ...] | None = None
) -> Pairs | None:
    """Read one split of a folder, or a whole file.

    Args:
        path: folder, file, or begin of the names of files.
        split: `train`, `val` or `test`.
        src: name of the source side.
        tgt: name of the target side.
        columns: names of the first columns of a table without a header, in order.

    Returns:
        The pairs; None if the folder has no such split, unless it is `train`.

    Raises:
        DataError: anything about the files or their content that cannot be used.
    """
    if src == tgt:
        raise DataError(
            f"source and target are both {src!r}; give both `src` and `tgt`, with two names"
        )
    if path.is_file():
        one, other = read_table(path, src=src, tgt=tgt, columns=columns)
        return Pairs(src=one, tgt=other)
    if not path.is_dir() and not _named(path):
        raise DataError(f"{path} {why_no_file(path)}; `data` takes a folder or a file")
    found = _texts_of(path, split, sides=(src, tgt))
    if not found:
        if split == "train":
            raise _no_training_text(path, sides=(src, tgt))
        return None
    first, *others = found
    notes: tuple[str, ...] = ()
    if others:
        named = ", ".join(_names_of(files) for files in others)
        if split == "train":
            raise DataError(
                f"{path} has several training texts: {_names_of(first)}, {named}; join them to one, move the others "
                "out, or name one file, or the begin of its name, with `data`"
            )
        notes = (f"{_names_of(first)} is read as the {split} text, and {named} is not",)
    if len(first) == 1:
        one, other = read_table(first[0], src=src, tgt=tgt, columns=columns)
    else:
        one, other = _read_sides(*first)
    return Pairs(src=one, tgt=other, notes=notes)


def files_of_text(path: Path) -> list[Path]:
    """Return the files that a corpus may be read from: others in its folder may be notes, logs, models."""
    if path.is_file():
        return [path]
    return sorted(
        file for name, file in _named(path) if _split_of(name) is not None and file.is_file()
    )


def _named(path: Path) -> list[tuple[str, Path]]:
    """Return the files of a corpus, each by the name that says what it is.

    Of a folder these are their names, and of the begin of names what stands behind it. Where that names no
    split, as of news.en and news.zh, it is the training text.
    """
    if path.is_dir():
        return [(file.name, file) for file in sorted(path.iterdir())]
    if path.exists() or path.is_symlink() or not path.parent.is_dir():
        return []
    found = []
    for file in sorted(path.parent.iterdir()):
        rest = file.name.removeprefix(path.name)
        if path.name and rest != file.name and rest[:1] in _SEPARATORS:
            name = rest[1:]
            found.append((name if _split_of(name) is not None else f"train.{name}", file))
    return found


def _split_of(name: str) -> str | None:
    """Return the split that a file is of by the begin of its name, None if it is of none."""
    found = _BEGINS.match(name)
    if found is None:
        return None
    begin = found[1].casefold()
    return _SPLIT_OF.get(begin, begin)


def _texts_of(path: Path, split: str, *, sides: tuple[str, str]) -> list[tuple[Path, ...]]:
    """Return the texts that a split may be, each a table or both sides; the one with the plainest name first.

    Raises:
        DataError: one side alone is there.
    """
    files = [(name, file) for name, file in _named(path) if _split_of(name) == split]
    texts: dict[tuple[str, str], tuple[Path, ...]] = {}
    bases: dict[str, dict[str, Path]] = {}
    for name, file in files:
        unpacked = name[: -len(".gz")] if name.casefold().endswith(".gz") else name
        ending = ending_of(name)
        if ending in ENDINGS:
            texts.setdefault((unpacked[: -len(ending)], ending), (file,))
            continue
        for side in sides:
            if unpacked.casefold().endswith(f".{side.casefold()}"):
                bases.setdefault(unpacked[: -len(side) - 1], {}).setdefault(side, file)
                break
        else:
            base, _, last = unpacked.rpartition(".")
            bases.setdefault(base, {}).setdefault(last, file)
    alone: list[Path] = []
    for base, endings in bases.items():
        names = list(endings)
        numbers = [matching_names(side, names) for side in sides]
        if all(len(found) == 1 for found in numbers) and numbers[0] != numbers[1]:
            texts[base, ""] = tuple(endings[names[found[0]]] for found in numbers)
        elif any(numbers):
            alone += [endings[names[n]] for found in numbers for n in found]
    if not texts and alone:
        raise _one_side(path, alone, sides=sides)
    plainest = [key for key in texts if not any(_is_form_of(key[0], base) for base, _ in texts)]
    return [texts[key] for key in sorted(plainest, key=lambda key: (_is_odd(key[0]), key))]


def _one_side(path: Path, alone: Sequence[Path], *, sides: tuple[str, str]) -> DataError:
    """Say which file is missing beside those of one side."""
    there = sorted({file.name for file in alone})
    base = re.sub(r"\.gz$", "", there[0], flags=re.IGNORECASE).rpartition(".")[0]
    wanted = " and ".join(f"{base}.{side}" for side in sides)
    return DataError(
        f"{path} has {', '.join(there)}, expected both {wanted}; add the other side, or name the sides as the files "
        "end with `src` and `tgt`"
    )


def _is_form_of(base: str, plain_base: str) -> bool:
    """Return whether a name is that of the same text in another form, as train.lc.norm.tok is beside train.

    One with a number, such as train.2, is that of another part.
    """
    begin, more = base.casefold(), f"{plain_base.casefold()}."
    return begin.startswith(more) and not any(map(str.isdigit, begin.removeprefix(more)))


def _is_odd(base: str) -> bool:
    """Return whether a name says more than which split it is."""
    return _BEGINS.fullmatch(base) is None


def _names_of(files: tuple[Path, ...]) -> str:
    return " and ".join(file.name for file in files)


def _no_training_text(path: Path, *, sides: tuple[str, str]) -> DataError:
    src, tgt = sides
    there = [file.name for _, file in _named(path)]
    more = ", ..." if len(there) > _NAMES_SHOWN else ""
    return DataError(
        f"{path} has no train.{src} and train.{tgt}, nor train{', '.join(ENDINGS)} (each also with .gz); it holds "
        f"{', '.join(there[:_NAMES_SHOWN]) or 'nothing'}{more}; name the sides as the files end with `src` and `tgt`, or "
        "the file itself with `data`"
    )


def _read_sides(src_path: Path, tgt_path: Path) -> tuple[list[str], list[str]]:
    src, tgt = read_lines(src_path), read_lines(tgt_path)
    if len(src) != len(tgt):
        returns = [
            f"; {path.name} has {count:,} carriage returns within lines, which end none"
            for path, lines in ((src_path, src), (tgt_path, tgt))
            if (count := sum(line.count("\r") for line in lines))
        ]
        raise DataError(
            f"{src_path} has {len(src)} lines, but {tgt_path} has {len(tgt)}; "
            f"parallel files must have the same number of lines{''.join(returns)}"
        )
    return src, tgt


def _hold_out(pairs: Pairs, *, path: Path, splits: Sequence[str], seed: int) -> dict[str, Pairs]:
    """Divide pairs into the missing splits and train; all that `plain` makes one source go to one of them."""
    # Spellings that `plain` makes one count as their first: split apart, one would be in train and one in test.
    firsts: dict[str, str] = {}
    sources = [firsts.setdefault(plain(source), source.strip()) for source in pairs.src]
    counts = Counter(sources)
    if len(counts) < 3:
        raise DataError(
            f"{path} has no {' or '.join(splits)} split and only {len(counts)} different source "
            "sentences to hold out from, expected 3 or more; "
            f"{' and '.join(f'add a {split} file' for split in splits)}, or more text"
        )
    split_of: dict[str, str] = {}
    for split in splits:
        free = sorted(counts.keys() - split_of.keys())
        random.Random(f"{seed} {split}").shuffle(free)
        split_of |= dict.fromkeys(_choose(free, counts), split)
    owners = [split_of.get(source, "train") for source in sources]
    return {
        split: pairs.take([n for n, owner in enumerate(owners) if owner == split])
        for split in ("train", *splits)
    }


def _choose(sources: list[str], counts: Counter[str]) -> list[str]:
    """Return the sources to hold out: the first that fit, or the rarest one if none fits."""
    most = max(1, int(len(sources) * _HELD_OUT_SHARE))
    pairs = sum(counts[source] for source in sources)
    room = max(1, min(_MAX_HELD_OUT, int(pairs * _HELD_OUT_SHARE)))
    chosen: list[str] = []
    for source in sources:
        # Where most pairs share one source, a limit on pairs alone would hold out nearly all other sources.
        if len(chosen) < most and counts[source] <= room:
            chosen.append(source)
            room -= counts[source]
    return chosen or [min(sources, key=counts.__getitem__)]
