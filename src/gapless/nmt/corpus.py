"""Read parallel text into sentence pairs.

Accepted: a folder of parallel text files (`train.en`, `train.zh`), a folder of TSV, JSON or
JSON-lines files (`train.tsv`), or one such file. Everything may be compressed with gzip.
"""

from __future__ import annotations

import gzip
import json
import random
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gapless.errors import DataError


if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


SPLIT_NAMES = {
    "train": ("train",),
    "val": ("val", "valid", "validation", "dev"),
    "test": ("test",),
}

TABLE_ENDINGS = (".tsv", ".json", ".jsonl")

_MAX_HELD_OUT = 1000
_HELD_OUT_SHARE = 0.05


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """Sentence pairs, side by side.

    Attributes:
        src: source sentences.
        tgt: target sentences, as many.
    """

    src: list[str]
    tgt: list[str]

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
        val: pairs to watch training with.
        test: pairs to score with at the end.
        dropped_empty: training pairs left out because a side was empty.
    """

    src_lang: str
    tgt_lang: str
    train: Pairs
    val: Pairs
    test: Pairs
    dropped_empty: int = 0


def load_corpus(
    path: Path,
    *,
    src: str,
    tgt: str,
    columns: tuple[str, str] | None = None,
    seed: int = 0,
) -> Corpus:
    """Read a corpus; hold out validation and test pairs from train where they are missing.

    Args:
        path: folder or file.
        src: name of the source side: a file ending, a column or a JSON key.
        tgt: name of the target side.
        columns: names of the first two columns of TSV and JSON pairs; `(src, tgt)` by default.
        seed: of the choice of pairs to hold out.

    Raises:
        DataError: anything about the files or their content that cannot be used.
    """
    train = load_split(path, split="train", src=src, tgt=tgt, columns=columns)
    assert train is not None
    kept = [n for n in range(len(train)) if train.src[n].strip() and train.tgt[n].strip()]
    dropped = len(train) - len(kept)
    train = train.take(kept)
    if not len(train):
        raise DataError(f"{path} holds no training pair with text on both sides")
    found = {
        split: load_split(path, split=split, src=src, tgt=tgt, columns=columns)
        for split in ("val", "test")
        if path.is_dir()
    }
    splits = {split: pairs for split, pairs in found.items() if pairs is not None}
    for split in ("val", "test"):
        if split not in splits:
            train, splits[split] = _hold_out(train, path=path, split=split, seed=seed)
    return Corpus(
        src_lang=src,
        tgt_lang=tgt,
        train=train,
        val=splits["val"],
        test=splits["test"],
        dropped_empty=dropped,
    )


def load_split(
    path: Path, *, split: str, src: str, tgt: str, columns: tuple[str, str] | None = None
) -> Pairs | None:
    """Read one split of a folder, or a whole file.

    Args:
        path: folder or file.
        split: `train`, `val` or `test`.
        src: name of the source side.
        tgt: name of the target side.
        columns: names of the first two columns.

    Returns:
        The pairs; None if the folder has no such split, unless it is `train`.

    Raises:
        DataError: anything about the files or their content that cannot be used.
    """
    if src == tgt:
        raise DataError(f"source and target are both {src!r}; give --src and --tgt two names")
    if not path.exists():
        raise DataError(f"{path} does not exist; --data takes a folder or a file")
    if path.is_file():
        return _read_table(path, src=src, tgt=tgt, columns=columns)
    table = _find_table(path, split)
    if table is not None:
        return _read_table(table, src=src, tgt=tgt, columns=columns)
    sides = [_find_side(path, split, side) for side in (src, tgt)]
    if sides[0] is not None and sides[1] is not None:
        return _read_sides(sides[0], sides[1])
    if split == "train" or any(sides):
        raise _missing_split(path, split, src=src, tgt=tgt)
    return None


def read_lines(path: Path) -> list[str]:
    r"""Read a UTF-8 text file, plain or gzip, one sentence a line, empty lines kept.

    Only `\n` and `\r\n` end a line: other separators that Unicode knows may stand in a sentence.

    Raises:
        DataError: the file is missing, a folder, empty, not UTF-8, or a broken archive.
    """
    lines = split_lines(_read_text(path))
    if not lines:
        raise DataError(f"{path} is empty, expected one sentence a line")
    return lines


def split_lines(text: str) -> list[str]:
    r"""Return the lines of a text, which end in `\n` or `\r\n`."""
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    return [line.removesuffix("\r") for line in lines]


def decode_text(raw: bytes, *, name: str) -> str:
    """Return UTF-8 text, without a byte order mark.

    Args:
        raw: the bytes.
        name: where they come from.

    Raises:
        DataError: the bytes are not UTF-8; the message names the first bad one.
    """
    try:
        return raw.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{name} is not UTF-8: byte 0x{raw[error.start]:02x} at offset {error.start}, "
            f"line {line}; convert it with iconv -t UTF-8"
        ) from error


def _read_text(path: Path) -> str:
    if path.is_dir():
        raise DataError(f"{path} is a folder, expected a text file")
    if not path.is_file():
        raise DataError(f"{path} does not exist, expected a text file")
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path} is not a whole gzip file ({error}); fetch it again") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    return decode_text(raw, name=str(path))


def _find_table(folder: Path, split: str) -> Path | None:
    endings = [ending + packed for ending in TABLE_ENDINGS for packed in ("", ".gz")]
    return _find(folder, split, endings)


def _find_side(folder: Path, split: str, side: str) -> Path | None:
    return _find(folder, split, [f".{side}", f".{side}.gz"])


def _find(folder: Path, split: str, endings: list[str]) -> Path | None:
    for name in SPLIT_NAMES[split]:
        for ending in endings:
            if (folder / (name + ending)).is_file():
                return folder / (name + ending)
    if split != "test":
        return None
    # Test sets often carry a year or a source in their name: test_2016_flickr.en.
    named = [
        path
        for path in sorted(folder.glob("test*"))
        for ending in endings
        if path.name.endswith(ending) and "." not in path.name.removesuffix(ending)
    ]
    return named[0] if named else None


def _missing_split(folder: Path, split: str, *, src: str, tgt: str) -> DataError:
    present = ", ".join(sorted(path.name for path in folder.iterdir())[:12]) or "nothing"
    return DataError(
        f"{folder} has no {split}.{src} and {split}.{tgt}, nor {split}.tsv, .json or .jsonl "
        f"(each also with .gz); it holds {present}; name the sides with --src and --tgt"
    )


def _read_sides(src_path: Path, tgt_path: Path) -> Pairs:
    src, tgt = read_lines(src_path), read_lines(tgt_path)
    if len(src) != len(tgt):
        raise DataError(
            f"{src_path} has {len(src)} lines, but {tgt_path} has {len(tgt)}; "
            "parallel files must have the same number of lines"
        )
    return Pairs(src=src, tgt=tgt)


def _read_table(path: Path, *, src: str, tgt: str, columns: tuple[str, str] | None) -> Pairs:
    columns = columns or (src, tgt)
    for side in (src, tgt):
        if side not in columns:
            raise DataError(
                f"side {side!r} is not among the columns {columns[0]!r} and {columns[1]!r}; "
                "--columns names the first two columns of the file, in order"
            )
    ending = path.name.removesuffix(".gz").rpartition(".")[2]
    if f".{ending}" not in TABLE_ENDINGS:
        raise DataError(
            f"{path} ends in .{ending}, expected {', '.join(TABLE_ENDINGS)} "
            "(each also with .gz) or a folder"
        )
    rows = _tsv_rows(path) if ending == "tsv" else _json_rows(path, ending, columns)
    if not rows:
        raise DataError(f"{path} holds no pair")
    at = columns.index(src)
    return Pairs(src=[row[at] for row in rows], tgt=[row[1 - at] for row in rows])


def _tsv_rows(path: Path) -> list[tuple[str, str]]:
    rows = []
    for number, line in enumerate(read_lines(path), start=1):
        cells = line.split("\t")
        if len(cells) < 2:
            raise DataError(
                f"{path} line {number} has one column, expected two separated by a tab"
            )
        rows.append((cells[0], cells[1]))
    return rows


def _json_rows(path: Path, ending: str, columns: tuple[str, str]) -> list[tuple[str, str]]:
    if ending == "jsonl":
        lines = enumerate(read_lines(path), start=1)
        return [
            _json_pair(_parse(line, path, number), columns, where=f"{path} line {number}")
            for number, line in lines
            if line.strip()
        ]
    items = _parse(_read_text(path), path, 1)
    if not isinstance(items, list):
        raise DataError(f"{path} holds a JSON {type(items).__name__}, expected a list of pairs")
    return [
        _json_pair(item, columns, where=f"{path} item {number}")
        for number, item in enumerate(items)
    ]


def _parse(text: str, path: Path, first_line: int) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        line = first_line + error.lineno - 1
        raise DataError(
            f"{path} is not JSON at line {line}, column {error.colno}: {error.msg}"
        ) from error


def _json_pair(item: Any, columns: tuple[str, str], *, where: str) -> tuple[str, str]:
    if isinstance(item, dict):
        item = item.get("translation", item)
        item = [item.get(column) for column in columns]
    if isinstance(item, list) and len(item) >= 2 and all(isinstance(s, str) for s in item[:2]):
        return item[0], item[1]
    raise DataError(
        f'{where} is not a pair; expected ["...", "..."] or an object with the keys '
        f"{columns[0]!r} and {columns[1]!r}"
    )


def _hold_out(pairs: Pairs, *, path: Path, split: str, seed: int) -> tuple[Pairs, Pairs]:
    """Take pairs out, all those of a source sentence together."""
    sources = sorted({sentence.strip() for sentence in pairs.src})
    if len(sources) < 3:
        raise DataError(
            f"{path} has no {split} split and only {len(sources)} different source sentences to "
            f"hold one out from, expected 3 or more; add a {split} file"
        )
    random.Random(f"{seed} {split}").shuffle(sources)
    wanted = max(1, min(_MAX_HELD_OUT, int(len(sources) * _HELD_OUT_SHARE)))
    chosen = set(sources[:wanted])
    held = [n for n, sentence in enumerate(pairs.src) if sentence.strip() in chosen]
    rest = [n for n, sentence in enumerate(pairs.src) if sentence.strip() not in chosen]
    return pairs.take(rest), pairs.take(held)
