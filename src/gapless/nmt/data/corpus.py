"""Read parallel text into sentence pairs.

Accepted: a folder of parallel text files (`train.en`, `train.zh`), a folder of TSV, CSV, JSON or
JSON-lines files (`train.tsv`), or one such file. Everything may be compressed with gzip.
"""

from __future__ import annotations

import random
import re
import unicodedata
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from gapless.errors import DataError
from gapless.nmt.data.directions import KnownText, are_tagged, exchanged_rows
from gapless.nmt.data.languages import (
    is_invisible,
    looks,
    matching_name,
    words_of_name,
    written_in,
)
from gapless.nmt.data.tables import ENDINGS, Table, read_table
from gapless.nmt.data.text_columns import quoted, why_no_pair, why_no_text
from gapless.nmt.data.text_files import how_to_unpack, read_lines


if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from pathlib import Path


SPLIT_NAMES = {
    "train": ("train",),
    "val": ("val", "valid", "validation", "dev", "eval"),
    "test": ("test", "tst"),
}

# Words that begin like the name of a test set, such as testimony.
_OTHER_WORD = re.compile(r"test(?:at|ament|er|icle|if|imon|os|ud|y)")

# Many words begin with val and dev, such as value and device, so more than this ends the name of a split.
_SAYS_NO_MORE = ("set", "data")

# Parts of one text, such as train2, train.part2 and train-00001-of-00002.
_PART = re.compile(r"train[\W_]*(?:part|shard|split|chunk)?[\W_]*\d+(?:[\W_]*of[\W_]*\d+)?")

_MAX_HELD_OUT = 1000
_HELD_OUT_SHARE = 0.05

# Short sentences occur in any text; more than this share of a split is no chance.
SEEN_SHARE = 0.05

# One text for so many others, as nan for what is missing, is no translation.
_FEWEST_ALIKE, _ALIKE_SHARE = 10, 0.1

# Sentences of which the script is looked at.
_MOST_LOOKED_AT = 2000

# Words of fewer pairs are chance.
_FEWEST_COMPARED = 5

# A larger share of rows the other way round is another file, joined to this one.
_EXCHANGED_SHARE = 0.05


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """Sentence pairs, side by side.

    Attributes:
        src: source sentences.
        tgt: target sentences, as many.
        notes: what their reader should know of the file that they are from, a line each.
        are_named: whether their file or files name both sides, by a header, keys or endings.
    """

    src: list[str]
    tgt: list[str]
    notes: tuple[str, ...] = field(default=(), compare=False)
    are_named: bool = field(default=False, compare=False)

    def __len__(self) -> int:
        return len(self.src)

    def take(self, numbers: Sequence[int]) -> Pairs:
        """Return the pairs of these numbers."""
        return Pairs(
            src=[self.src[n] for n in numbers],
            tgt=[self.tgt[n] for n in numbers],
            are_named=self.are_named,
        )


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """A parallel corpus in three splits.

    Attributes:
        src_lang: name of the source side.
        tgt_lang: name of the target side.
        train: pairs to learn from, none with an empty side.
        val: pairs to validate on during training.
        test: pairs to score the final model on.
        dropped_empty: training pairs left out because a side was empty.
        num_repeated: training pairs that are the same as an earlier one.
        notes: what a user should know of the text, a line each.
    """

    src_lang: str
    tgt_lang: str
    train: Pairs
    val: Pairs
    test: Pairs
    dropped_empty: int = 0
    num_repeated: int = 0
    notes: tuple[str, ...] = ()


def load_corpus(
    path: Path,
    *,
    src: str,
    tgt: str,
    columns: tuple[str, ...] | None = None,
    checks: bool = False,
    seed: int = 0,
) -> Corpus:
    """Read a corpus; hold out validation and test pairs from train where they are missing.

    A split that is held out gets 5 % of the pairs left in train, at least 1 and at most 1000. It
    gets fewer where sources repeat, because all pairs of a source, and of its near copies, go to the same split.

    Args:
        path: folder or file.
        src: name of the source side: a file ending, a column or a JSON key.
        tgt: name of the target side.
        columns: names of the first columns of TSV, CSV and JSON pairs, in order; None: a header or
            the keys name them, or else they are `src` and `tgt`.
        checks: whether to refuse sides that do not look like sentences in two languages.
        seed: of the choice of pairs to hold out.

    Raises:
        DataError: anything about the files or their content that cannot be used.
    """
    train = load_split(path, split="train", src=src, tgt=tgt, columns=columns, checks=checks)
    assert train is not None
    kept = [n for n in range(len(train)) if train.src[n].strip() and train.tgt[n].strip()]
    dropped, notes = len(train) - len(kept), train.notes
    train = train.take(kept)
    if not len(train):
        raise DataError(f"{path} holds no training pair with text on both sides")
    found = {
        split: load_split(path, split=split, src=src, tgt=tgt, columns=columns, checks=checks)
        for split in ("val", "test")
        if path.is_dir()
    }
    splits = {split: pairs for split, pairs in found.items() if pairs is not None}
    missing = [split for split in ("val", "test") if split not in splits]
    if missing:
        held_out = _hold_out(train, path=path, splits=missing, seed=seed)
        train = held_out.pop("train")
        splits.update(held_out)
    for split in found.keys() - missing:
        pairs = splits[split]
        notes += _notes_of_writing(pairs, split=split, train=train, path=path, checks=checks)
    notes += notes_of_placeholders(train, split="training")
    for split in missing:
        notes += _note_packed(path, split) if path.is_dir() else ()
    if path.is_dir():
        notes += _note_others(path, sides=(src, tgt), columns=columns)
    known = set(map(plain, train.src))
    for split, pairs in splits.items():
        notes += pairs.notes
        notes += _notes_of(pairs, split=split, known=known)
    return Corpus(
        src_lang=src,
        tgt_lang=tgt,
        train=train,
        val=splits["val"],
        test=splits["test"],
        dropped_empty=dropped,
        num_repeated=len(train) - len(set(zip(train.src, train.tgt, strict=True))),
        notes=notes,
    )


def _notes_of(pairs: Pairs, *, split: str, known: Collection[str]) -> tuple[str, ...]:
    """Return what makes scores on a split say less than they seem to, a line each.

    Args:
        pairs: of the split.
        split: its name.
        known: what near copies of the training sources share.
    """
    seen = sum(plain(source) in known for source in pairs.src)
    notes = []
    if seen > SEEN_SHARE * len(pairs):
        notes.append(
            f"{seen:,} of {len(pairs):,} {split} sources are training sources too, so scores say less "
            "of new text; leave them out of the training text"
        )
    return (*notes, *notes_of_empty(pairs, split=split))


def notes_of_empty(pairs: Pairs, *, split: str) -> tuple[str, ...]:
    """Return a line if pairs that are scored have no text on one side."""
    empty = sum(
        not (src.strip() and tgt.strip()) for src, tgt in zip(pairs.src, pairs.tgt, strict=True)
    )
    if not empty:
        return ()
    return (
        f"{empty:,} of {len(pairs):,} {split} pairs have no text on one side, and count in scores",
    )


def plain(sentence: str) -> str:
    """Return what near copies of a sentence share: all but capitals, forms of characters and spaces.

    Neither full-width letters, composed accents nor invisible characters make another sentence.
    """
    # Characters that nobody sees cannot be printed, and are rare.
    if not sentence.isprintable():
        sentence = "".join(sign for sign in sentence if not is_invisible(sign))
    return " ".join(unicodedata.normalize("NFKC", sentence).casefold().split())


def _notes_of_writing(
    pairs: Pairs, *, split: str, train: Pairs, path: Path, checks: bool
) -> tuple[str, ...]:
    """Return what a split is written in, if it is not what the training pairs are.

    Raises:
        DataError: its sides are exchanged, and `checks` says to refuse that.
    """
    learned, seen = _writings(train), _writings(pairs)
    exchanged = None
    if None not in seen and seen[0] != seen[1] and seen == learned[::-1]:
        exchanged = (
            f"the source side {looks(str(seen[0]))}, as the target side of the training pairs"
        )
    elif not are_tagged(train.src) and have_exchanged_words(
        pairs, known=KnownText.of(train.src, train.tgt, where="the training pairs")
    ):
        exchanged = "their source side has the words of the target side of the training pairs"
    if checks and exchanged is not None:
        raise DataError(
            f"the sides of the {split} pairs of {path} are exchanged: {exchanged}; write them in the order of "
            "the training pairs, or name both columns in a header"
        )
    if exchanged is not None and seen == learned:
        return (
            f"the sides of the {split} pairs seem to be exchanged: {exchanged}, so scores say little",
        )
    return tuple(
        f"the {side} of the {split} pairs {looks(now)}, and that of the training pairs {looks(then)}, so "
        "scores say little; look whether it is the right text"
        for side, then, now in zip(("source side", "target side"), learned, seen, strict=True)
        if now is not None and then is not None and now != then
    )


def have_exchanged_words(pairs: Pairs, *, known: KnownText) -> bool:
    """Return whether each side of some pairs has clearly the words that the other side of known text has.

    Args:
        pairs: of which few, or those of several directions, say nothing.
        known: text with sides that are right.
    """
    if len(pairs) < _FEWEST_COMPARED or are_tagged(pairs.src):
        return False
    sides = {"as they are": (pairs.src, pairs.tgt), "exchanged": (pairs.tgt, pairs.src)}
    return known.most_alike(sides) == "exchanged"


def _writings(pairs: Pairs) -> tuple[str | None, str | None]:
    src, tgt = (written_in(side[:_MOST_LOOKED_AT]) for side in (pairs.src, pairs.tgt))
    return src, tgt


def notes_of_placeholders(pairs: Pairs, *, split: str) -> tuple[str, ...]:
    """Return a line for a side if one text on it stands for many others."""
    notes = []
    for name, side, others in (
        ("source", pairs.src, pairs.tgt),
        ("target", pairs.tgt, pairs.src),
    ):
        # What is empty is told as such.
        for text, _ in Counter(filter(str.strip, side)).most_common(1):
            beside = [other for own, other in zip(side, others, strict=True) if own == text]
            if len(set(beside)) >= _FEWEST_ALIKE and len(beside) > _ALIKE_SHARE * len(pairs):
                notes.append(
                    f"{len(beside):,} of {len(pairs):,} {split} pairs have the same {name}, "
                    f"{quoted([text])}, beside different texts; leave them out if it stands for nothing"
                )
    return tuple(notes)


def load_split(
    path: Path,
    *,
    split: str,
    src: str,
    tgt: str,
    columns: tuple[str, ...] | None = None,
    checks: bool = False,
) -> Pairs | None:
    """Read one split of a folder, or a whole file.

    Args:
        path: folder or file.
        split: `train`, `val` or `test`.
        src: name of the source side.
        tgt: name of the target side.
        columns: names of the first columns, in order.
        checks: whether to refuse sides that do not look like sentences in two languages.

    Returns:
        The pairs; None if the folder has no such split, unless it is `train`.

    Raises:
        DataError: anything about the files or their content that cannot be used.
    """
    if src == tgt:
        raise DataError(
            f"source and target are both {src!r}; give both `src` and `tgt`, with two names"
        )
    if not path.exists():
        what = "is a link that leads nowhere" if path.is_symlink() else "does not exist"
        raise DataError(f"{path} {what}; `data` takes a folder or a file")
    if path.is_file():
        return _read_table(path, src=src, tgt=tgt, columns=columns, checks=checks, split=split)
    if not path.is_dir():
        raise DataError(
            f"{path} is a pipe or a device, expected a folder or a file; data is read more than once, "
            f"so write it to a file first"
        )
    found = list(_files_of(path, split, src=src, tgt=tgt))
    if found:
        files = found[0]
        if len(files) == 1:
            pairs = _read_table(
                files[0],
                src=src,
                tgt=tgt,
                columns=columns,
                checks=checks,
                split=split,
                folder=path,
            )
        else:
            pairs = _read_sides(*files, split=split, sides=(src, tgt), checks=checks)
        notes = (*_note_not_read(path, found), *_note_parts(path, split, files, sides=(src, tgt)))
        return replace(pairs, notes=(*pairs.notes, *notes))
    _refuse_packed(path, split, sides=(src, tgt))
    sides = [[_find_side(path, name, side) for side in (src, tgt)] for name in _names(path, split)]
    there = next((pair for pair in sides if any(pair)), [None, None])
    if split == "train" or any(there):
        raise _missing_split(path, split, there, src=src, tgt=tgt)
    return None


def _files_of(folder: Path, split: str, *, src: str, tgt: str) -> Iterator[tuple[Path, ...]]:
    """Give the files of a split, a table or both sides; of several the first are read."""
    for name in _names(folder, split):
        for ending in ENDINGS:
            table = _find(folder, name, (ending,))
            if table is not None:
                yield (table,)
        # Both sides must have the same name: sides of two test sets are no translations.
        src_path, tgt_path = (_find_side(folder, name, side) for side in (src, tgt))
        if src_path is not None and tgt_path is not None and src_path != tgt_path:
            yield src_path, tgt_path


def _refuse_packed(folder: Path, split: str, *, sides: tuple[str, str]) -> None:
    """Refuse files of a split that have to be unpacked first: without them others would be held out.

    Raises:
        DataError: there is one.
    """
    for path in _packed(folder, split):
        endings = path.name.casefold().split(".")[1:-1]
        inside = endings[-1] if endings else ""
        is_side = bool(inside) and matching_name(inside, sides) is not None
        if split == "train" or f".{inside}" in ENDINGS or is_side:
            unpack = how_to_unpack(path)
            raise DataError(f"{path} is packed, expected text or gzip; {unpack}")


def _note_packed(folder: Path, split: str) -> tuple[str, ...]:
    """Return a line if an archive may hold a split that is held out now."""
    return tuple(
        f"{path} is packed and not read; if it holds the {split} pairs, {how_to_unpack(path)}"
        for path in _packed(folder, split)
        if path.name.casefold().partition(".")[0] in SPLIT_NAMES[split]
    )


def _packed(folder: Path, split: str) -> list[Path]:
    """Return the files with the name of a split that are packed otherwise than by gzip."""
    return [
        path
        for path in sorted(folder.iterdir())
        if how_to_unpack(path) is not None
        and path.name.casefold().partition(".")[0] in _names(folder, split)
        and path.is_file()
    ]


def _ordered_as_training(
    table: Table, folder: Path, *, src: str, tgt: str
) -> tuple[Table, tuple[str, ...]]:
    """Return a table without names in the order of the training text of its folder, if there is any.

    Raises:
        DataError: the training text cannot be read.
    """
    files = next(_files_of(folder, "train", src=src, tgt=tgt), ())
    if not files:
        return table, ()
    where = " and ".join(map(str, files))
    if len(files) == 1:
        train = read_table(files[0], src=src, tgt=tgt, columns=None)
        known = KnownText.of(*train.some_text(_MOST_LOOKED_AT), where=where)
        return table.ordered_as(known, like=train)
    source, target = map(read_lines, files)
    return table.ordered_as(KnownText.of(source, target, where=where))


def _note_not_read(folder: Path, found: list[tuple[Path, ...]]) -> tuple[str, ...]:
    """Return a line if a folder has a split several times."""
    if len(found) == 1:
        return ()
    read, *others = (" and ".join(path.name for path in files) for files in found)
    return (
        f"{folder} has {', '.join(others)} beside {read}, and only {read} "
        f"{'are' if len(found[0]) > 1 else 'is'} read; move the others out, or rename what is to be read",
    )


def _note_parts(
    folder: Path, split: str, read: tuple[Path, ...], *, sides: tuple[str, str]
) -> tuple[str, ...]:
    """Return a line if training text beside what is read may be more parts of it."""
    parts = [] if split != "train" else _parts(folder, sides=sides)
    others = [path.name for path in parts if path not in read]
    if not others:
        return ()
    more = f" and {len(others) - 3} more" if len(others) > 3 else ""
    names = " and ".join(path.name for path in read)
    return (
        f"{folder} has {', '.join(others[:3])}{more} beside {names}, and they are not read; join them to it if "
        "they are parts of the training text",
    )


def _parts(folder: Path, *, sides: tuple[str, str]) -> list[Path]:
    """Return the files that are parts of a training text by their names, such as train-00001-of-00002.tsv."""
    found = []
    for path in sorted(folder.iterdir()):
        stem, dot, ending = path.name.casefold().removesuffix(".gz").rpartition(".")
        is_text = dot + ending in ENDINGS or matching_name(ending, sides) is not None
        if is_text and _PART.fullmatch(stem) and path.is_file():
            found.append(path)
    return found


def _note_others(
    folder: Path, *, sides: tuple[str, str], columns: tuple[str, ...] | None
) -> tuple[str, ...]:
    """Return a line if a folder has files of pairs whose names are those of no split."""
    src, tgt = sides
    parts = _parts(folder, sides=sides)
    others = [
        path.name
        for path in sorted(folder.iterdir())
        if split_of(path.name) is None
        and path not in parts
        and _holds_pairs(path, src=src, tgt=tgt, columns=columns)
    ]
    others += [
        f"{one} and {other}"
        for one, other in _sides_of_other_names(folder, src=src, tgt=tgt)
        if split_of(one) is None and folder / one not in parts
    ]
    if not others:
        return ()
    more = f" and {len(others) - 3} more" if len(others) > 3 else ""
    return (
        f"{folder} has {', '.join(others[:3])}{more}, which no split reads; call files of validation pairs val.*, "
        "and those of test pairs test.*",
    )


def _holds_pairs(path: Path, *, src: str, tgt: str, columns: tuple[str, ...] | None) -> bool:
    """Return whether a file is a table whose first rows could be read as pairs."""
    ending = path.name.casefold().removesuffix(".gz").rpartition(".")[2]
    if f".{ending}" not in ENDINGS or not path.is_file():
        return False
    try:
        table = read_table(path, src=src, tgt=tgt, columns=columns)
        sides = table.some_text(_MOST_LOOKED_AT)
        table.check(*sides)
    except DataError:
        return False
    return len(sides[0]) == len(sides[1]) > 0


def split_of(name: str) -> str | None:
    """Return the split that a file is by its name, None if it is none.

    Training text has just that name. Others often carry a year or a source beside it, as test_2016_flickr.en
    and dev2010.en do; testimony.en is no test set.

    Args:
        name: of the file.
    """
    stem = name.partition(".")[0].casefold()
    if stem in SPLIT_NAMES["train"]:
        return "train"
    if stem.startswith("test") and not _OTHER_WORD.match(stem):
        return "test"
    first = next(iter(words_of_name(name)), "").casefold()
    if not stem.startswith(first):
        return None
    for more in _SAYS_NO_MORE:
        first = first.removesuffix(more)
    return next((split for split in ("val", "test") if first in SPLIT_NAMES[split]), None)


def _names(folder: Path, split: str) -> list[str]:
    """Return the names that files of a split have in a folder, in small letters; the usual ones come first."""
    usual = SPLIT_NAMES[split]
    found = {
        path.name.partition(".")[0].casefold()
        for path in folder.iterdir()
        if split_of(path.name) == split
    }
    return [*usual, *sorted(found.difference(usual))]


def _find(folder: Path, name: str, endings: Sequence[str]) -> Path | None:
    """Return a file by its name and one of its endings, in small or capital letters."""
    # What is no file, such as a link that leads nowhere, is named when it is read.
    there = {path.name: path for path in sorted(folder.iterdir())}
    alike = {written.casefold(): path for written, path in there.items()}
    for wanted in (name + ending + packed for ending in endings for packed in ("", ".gz")):
        found = there.get(wanted) or alike.get(wanted.casefold())
        if found is not None:
            return found
    return None


def _find_side(folder: Path, name: str, side: str) -> Path | None:
    """Return the file of a side, whose ending is its name or a name of the same language."""
    found = _find(folder, name, (f".{side}",))
    if found is None:
        files = [path.name.casefold().removesuffix(".gz") for path in folder.iterdir()]
        begin = f"{name}."
        endings = sorted({file.removeprefix(begin) for file in files if file.startswith(begin)})
        ending = matching_name(side, endings)
        found = None if ending is None else _find(folder, name, (f".{ending}",))
    return found


def _missing_split(
    folder: Path, split: str, there: Sequence[Path | None], *, src: str, tgt: str
) -> DataError:
    """Return that a split has no table and lacks a side or both.

    Args:
        folder: with the text.
        split: that is missing.
        there: the files of the source and the target side, as far as they are there.
        src: name of the source side.
        tgt: name of the target side.
    """
    present = ", ".join(sorted(path.name for path in folder.iterdir())[:12]) or "nothing"
    looks_like_it = _sides_of_other_names(folder, src=src, tgt=tgt) if split == "train" else []
    parts = _parts(folder, sides=(src, tgt)) if split == "train" else []
    advice = _how_to_name(folder, split, sides=(src, tgt))
    first, second = there
    if first is not None and second is not None:
        advice = f"both sides would be {first.name}; name the sides with `src` and `tgt`"
    elif (one := first or second) is not None:
        lacks, flag, side = (tgt, "tgt", "target") if second is None else (src, "src", "source")
        advice = (
            f"{one.name.partition('.')[0]}.{lacks}, the file of the {side} side, is missing: add it, or name the {side} side "
            f"that is there with `{flag}`"
        )
    if looks_like_it:
        advice = (
            f"give {' and '.join(looks_like_it[0])} the names {split}.{src} and {split}.{tgt}"
            f"{' if they are the training text' if len(looks_like_it) > 1 else ''}"
        )
    if len(parts) > 1 and first is None and second is None:
        advice = f"join {parts[0].name} and the other parts to one file, train{''.join(parts[0].suffixes[-1:])}"
    return DataError(
        f"{folder} has no {split}.{src} and {split}.{tgt}, nor {split}.tsv, .csv, .json or .jsonl "
        f"(each also with .gz); it holds {present}; {advice}"
    )


def _how_to_name(folder: Path, split: str, *, sides: tuple[str, str]) -> str:
    """Return what would let a folder have a split of which neither side nor a table is found."""
    files = [path for path in sorted(folder.iterdir()) if path.is_file()]
    names = _names(folder, split)
    endings = [
        path.name.removesuffix(".gz").partition(".")[2]
        for path in files
        if path.name.partition(".")[0].casefold() in names
    ]
    if len(endings) > 1:
        return "name the sides with `src` and `tgt`"
    folders = [path for path in sorted(folder.iterdir()) if path.is_dir() and path.name in names]
    if folders:
        return f"name the folder {folders[0]} itself, if that is the text"
    tables = [path for path in files if split_of(path.name) is None and path.suffix in ENDINGS]
    if tables:
        return f"give {tables[0].name} the name {split}{tables[0].suffix}, if that is the training text"
    texts = [path for path in files if path.suffix in ("", ".txt") and split_of(path.name) is None]
    found = [next((one for one in texts if _is_named_by(one, side)), None) for side in sides]
    if None not in found and found[0] != found[1]:
        both = " and ".join(one.name for one in found if one is not None)
        return f"give {both} the names {split}.{sides[0]} and {split}.{sides[1]}"
    return (
        f"write the sides of the training text to {split}.{sides[0]} and {split}.{sides[1]}, or a line "
        f"`source<tab>target` for each pair to {split}.tsv"
    )


def _is_named_by(path: Path, side: str) -> bool:
    """Return whether a word of a file's name, such as train_en.txt or en.txt, is a side."""
    return any(matching_name(word, [side]) is not None for word in re.split(r"[^\w]|_", path.stem))


def _sides_of_other_names(folder: Path, *, src: str, tgt: str) -> list[tuple[str, str]]:
    """Return files that are both sides by their endings, as published corpora name them.

    Such as Tatoeba.de-en.de, train.lc.norm.tok.en or train.en.txt.
    """
    endings: dict[str, dict[str, str]] = {}
    for path in sorted(folder.iterdir()):
        stem, _, ending = path.name.removesuffix(".gz").removesuffix(".txt").rpartition(".")
        if stem and path.is_file() and split_of(stem) not in ("val", "test"):
            endings.setdefault(stem, {})[ending] = path.name
    found = []
    for files in endings.values():
        sides = [matching_name(side, list(files)) for side in (src, tgt)]
        if None not in sides and sides[0] != sides[1]:
            found.append((files[str(sides[0])], files[str(sides[1])]))
    return found


def _read_sides(
    src_path: Path, tgt_path: Path, *, split: str, sides: tuple[str, str], checks: bool
) -> Pairs:
    src, tgt = read_lines(src_path), read_lines(tgt_path)
    if len(src) != len(tgt):
        raise DataError(
            f"{src_path} has {len(src)} lines, but {tgt_path} has {len(tgt)}; "
            "parallel files must have the same number of lines"
        )
    if checks:
        _check_sides(src_path, tgt_path, src, tgt)
    pairs = Pairs(src=src, tgt=tgt, are_named=True)
    where = f"{src_path} and {tgt_path}"
    found = _exchanged(pairs, sides=sides, refuses=checks and split == "train", where=where)
    return replace(pairs, notes=found)


def _check_sides(src_path: Path, tgt_path: Path, src: list[str], tgt: list[str]) -> None:
    advice = (
        "other files are read with `src` and `tgt`, and these all the same with "
        "`check_columns=False`"
    )
    for path, lines in ((src_path, src), (tgt_path, tgt)):
        found = why_no_text(lines)
        if found is not None:
            raise DataError(f"{path} {found}; {advice}")
    found = why_no_pair(src, tgt)
    if found is not None:
        raise DataError(f"both sides, {src_path} and {tgt_path}, {found}; {advice}")


def _read_table(
    path: Path,
    *,
    src: str,
    tgt: str,
    columns: tuple[str, ...] | None,
    checks: bool,
    split: str,
    folder: Path | None = None,
) -> Pairs:
    """Read a table; of a split in a folder, without names of its own, in the order of the training text."""
    table = read_table(path, src=src, tgt=tgt, columns=columns)
    notes: tuple[str, ...] = ()
    if folder is not None and split != "train" and columns is None and table.names is None:
        # Whoever only scores the split may have any other text there.
        with suppress(DataError):
            table, notes = _ordered_as_training(table, folder, src=src, tgt=tgt)
    sides = table.read_sides()
    if checks:
        table.check(sides.src, sides.tgt)
    pairs = Pairs(
        src=sides.src,
        tgt=sides.tgt,
        notes=notes + sides.notes,
        are_named=table.names_sides,
    )
    found = _exchanged(
        pairs,
        sides=(src, tgt),
        refuses=checks and split == "train",
        where=str(path),
        table=table,
    )
    return replace(pairs, notes=pairs.notes + found)


def _exchanged(
    pairs: Pairs,
    *,
    sides: tuple[str, str],
    refuses: bool,
    where: str,
    table: Table | None = None,
) -> tuple[str, ...]:
    """Return a line if some rows are the other way round, as in joined files.

    Args:
        pairs: of all rows.
        sides: their names.
        refuses: whether to refuse that where such rows are many.
        where: name of the file or files.
        table: that the rows are from, which knows its lines; None: a row is a line.

    Raises:
        DataError: they are many, and `refuses`.
    """
    found = exchanged_rows(pairs.src, pairs.tgt, sides=sides)
    if found is None:
        return ()
    some = found.numbers[:3]
    places = [f"line {number + 1}" for number in some]
    if table is not None:
        places = [place for number, (place, _) in enumerate(table.rows()) if number in some]
    told = found.told(where, of=len(pairs), places=places)
    if refuses and found.share > _EXCHANGED_SHARE:
        raise DataError(f"{told}, or read them all the same with `check_columns=False`")
    return (told,)


def _hold_out(pairs: Pairs, *, path: Path, splits: Sequence[str], seed: int) -> dict[str, Pairs]:
    """Divide pairs into the missing splits and train; all near copies of a source go to one of them."""
    # Of near copies the first one stands for all.
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
        # The limit on sources leaves some for train where most pairs share one source.
        if len(chosen) < most and counts[source] <= room:
            chosen.append(source)
            room -= counts[source]
    return chosen or [min(sources, key=counts.__getitem__)]
