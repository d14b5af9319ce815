"""Find the files of parallel text, and read pairs from them.

Accepted: a folder, or the begin of the names of files in one, with text in two files (`train.en`, `train.zh`)
or in a table (`train.tsv`, .csv, .json, .jsonl, .parquet, .arrow); or one such table. Text may be packed by gzip.
So is a folder that `save_to_disk` of the library `datasets` has written.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from hashlib import blake2b, file_digest
from itertools import chain, islice, zip_longest
from typing import TYPE_CHECKING, Any

from gapless.errors import DataError
from gapless.nmt.data.languages import matching_names
from gapless.nmt.data.sentences import CHUNK, Pairs
from gapless.nmt.data.tables import ENDINGS, check_sides, ending_of, table_pairs
from gapless.nmt.data.text_files import lines_of, why_no_file


if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path


# How names of their files begin; others often carry a year or a source after it, as test_2016_flickr.en does.
_BEGINS = re.compile(r"(train|valid(?:ation)?|val|dev|test)(?![^\W\d_])", re.IGNORECASE)
_SPLIT_OF = {"valid": "val", "validation": "val", "dev": "val"}

# Behind the begin of names that was given.
_SEPARATORS = (".", "-", "_")

_NAMES_SHOWN = 12

# Tables that come in parts, and what tells their names apart.
PARTED = (".parquet", ".arrow")
_PART = re.compile(r"-\d+-of-\d+$")


@dataclass(frozen=True, kw_only=True)
class Text:
    """Sentence pairs in files, which are read anew each time and never kept whole.

    Attributes:
        files: a table, or its parts, or the files of both sides.
        src: name of the source side.
        tgt: name of the target side.
        columns: names of the first columns of a table without a header, in order.
        notes: what its reader should know of the files, a line each.
    """

    files: tuple[Path, ...]
    src: str
    tgt: str
    columns: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Yield each pair.

        Raises:
            DataError: anything about the files or their content that cannot be used.
        """
        if len(self.files) == 1 or ending_of(self.files[0].name) in PARTED:
            return chain.from_iterable(
                table_pairs(file, src=self.src, tgt=self.tgt, columns=self.columns)
                for file in self.files
            )
        return _side_by_side(*self.files)

    def chunks(self) -> Iterator[Pairs]:
        """Yield the pairs, so many at a time.

        Raises:
            DataError: as of `pairs`.
        """
        pairs = self.pairs()
        while chunk := list(islice(pairs, CHUNK)):
            yield Pairs.of(chunk)

    def read(self) -> Pairs:
        """Return all pairs.

        Raises:
            DataError: as of `pairs`.
        """
        return Pairs.of(list(self.pairs()), notes=self.notes)


@dataclass(frozen=True, kw_only=True)
class CorpusFiles:
    """The files of a corpus, before any of them is read.

    Attributes:
        name: of the corpus, for messages.
        train: training text.
        scored: text of the splits that have files of their own.
    """

    name: str
    train: tuple[Text, ...]
    scored: dict[str, Text]

    @property
    def missing(self) -> list[str]:
        """Splits that are to be held out of the training text."""
        return [split for split in ("val", "test") if split not in self.scored]

    def fingerprint(self) -> list[list[Any]]:
        """Return name, size and hash of each file, in an order that says what it is for."""
        return [
            [split, path.name, path.stat().st_size, _hash_of(path)]
            for split, text in [*(("train", text) for text in self.train), *self.scored.items()]
            for path in text.files
        ]


def find_corpus(
    *paths: Path, src: str, tgt: str, columns: tuple[str, ...] | None = None
) -> CorpusFiles:
    """Find the files of a corpus; of several, the first that has a split that is scored has it for all.

    Args:
        paths: each a folder, file, or begin of the names of files.
        src: name of the source side: a language or its code, a file ending, a column or a JSON key.
        tgt: name of the target side.
        columns: names of the first columns of a table without a header, in order.

    Raises:
        DataError: the files do not say what is what.
    """
    train: list[Text] = []
    scored: dict[str, Text] = {}
    for path in paths:
        for split in ("train",) if _is_one_text(path) else ("train", "val", "test"):
            text = find_split(path, split=split, src=src, tgt=tgt, columns=columns)
            if text is None:
                continue
            if split == "train":
                train.append(text)
            elif split not in scored:
                scored[split] = text
            else:
                first = scored[split]
                read, left = (", ".join(map(str, one.files)) for one in (first, text))
                notes = (*first.notes, _note_of_left(split, read=read, left=left))
                scored[split] = replace(first, notes=notes)
    name = ", ".join(map(str, paths))
    return CorpusFiles(name=name, train=tuple(train), scored=scored)


def _is_one_text(path: Path) -> bool:
    """Return whether a path is that of pairs which are not divided into splits."""
    return path.is_file() or bool(_saved_parts(path))


def _hash_of(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, lambda: blake2b(digest_size=16)).hexdigest()


def load_split(
    path: Path, *, split: str, src: str, tgt: str, columns: tuple[str, ...] | None = None
) -> Pairs | None:
    """Read one split of a folder, or a whole file; as `find_split`."""
    found = find_split(path, split=split, src=src, tgt=tgt, columns=columns)
    return None if found is None else found.read()


def find_split(
    path: Path, *, split: str, src: str, tgt: str, columns: tuple[str, ...] | None = None
) -> Text | None:
    """Return one split of a folder, or a whole file.

    Args:
        path: folder, file, or begin of the names of files.
        split: `train`, `val` or `test`.
        src: name of the source side.
        tgt: name of the target side.
        columns: names of the first columns of a table without a header, in order.

    Returns:
        Its text; None if the folder has no such split, unless it is `train`.

    Raises:
        DataError: the files do not say what is what.
    """
    check_sides(src, tgt)
    if _is_one_text(path):
        return Text(files=_saved_parts(path) or (path,), src=src, tgt=tgt, columns=columns)
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
        notes = (_note_of_left(split, read=_names_of(first), left=named),)
    return Text(files=first, src=src, tgt=tgt, columns=columns, notes=notes)


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
        if table := _table_of(file, ending=ending):
            base = unpacked[: -len(ending)] if ending in ENDINGS else name
            if ending in PARTED:
                base = _PART.sub("", base)
                table = (*texts.get((base, ending), ()), *table)
                texts[base, ending] = table
            texts.setdefault((base, ending), table)
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


def _table_of(file: Path, *, ending: str) -> tuple[Path, ...]:
    """Return the files of the table that a file is, or that a saved data set is; none if it is something else."""
    return (file,) if ending in ENDINGS else _saved_parts(file)


def _saved_parts(folder: Path) -> tuple[Path, ...]:
    """Return the files of a data set that the library `datasets` has saved; none if it is something else."""
    is_saved = (folder / "state.json").is_file()
    return tuple(sorted(folder.glob("data-*-of-*.arrow"))) if is_saved else ()


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


def _note_of_left(split: str, *, read: str, left: str) -> str:
    return f"{read} is read as the {split} text, and {left} is not"


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


def _side_by_side(src_path: Path, tgt_path: Path) -> Iterator[tuple[str, str]]:
    for src, tgt in zip_longest(lines_of(src_path), lines_of(tgt_path)):
        if src is None or tgt is None:
            raise _other_counts(src_path, tgt_path)
        yield src, tgt


def _other_counts(src_path: Path, tgt_path: Path) -> DataError:
    num_lines, returns = [], []
    for path in (src_path, tgt_path):
        counts = [line.count("\r") for line in lines_of(path)]
        num_lines.append(len(counts))
        if any(counts):
            returns.append(
                f"; {path.name} has {sum(counts):,} carriage returns within lines, which end none"
            )
    return DataError(
        f"{src_path} has {num_lines[0]} lines, but {tgt_path} has {num_lines[1]}; "
        f"parallel files must have the same number of lines{''.join(returns)}"
    )
