"""Read parallel text into sentence pairs.

Accepted: a folder of parallel text files (`train.en`, `train.zh`), a folder of TSV, JSON or
JSON-lines files (`train.tsv`), or one such file. Everything may be compressed with gzip.
"""

from __future__ import annotations

import gzip
import json
import random
import zlib
from collections import Counter
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
        val: pairs to validate on during training.
        test: pairs to score the final model on.
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

    A split that is held out gets 5 % of the pairs left in train, at least 1 and at most 1000. It
    gets fewer where sources repeat, because all pairs of a source go to the same split.

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
    missing = [split for split in ("val", "test") if split not in splits]
    if missing:
        held_out = _hold_out(train, path=path, splits=missing, seed=seed)
        train = held_out.pop("train")
        splits.update(held_out)
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
        raise DataError(f"source and target are both {src!r}; give `src` and `tgt` two names")
    if not path.exists():
        raise DataError(f"{path} does not exist; `data` takes a folder or a file")
    if path.is_file():
        return _read_table(path, src=src, tgt=tgt, columns=columns)
    alone = False
    for name in _names(path, split):
        table = _find(path, name, TABLE_ENDINGS)
        if table is not None:
            return _read_table(table, src=src, tgt=tgt, columns=columns)
        # Both sides must have the same name: sides of two test sets are no translations.
        src_path, tgt_path = (_find(path, name, (f".{side}",)) for side in (src, tgt))
        if src_path is not None and tgt_path is not None:
            return _read_sides(src_path, tgt_path)
        alone = alone or src_path is not None or tgt_path is not None
    if split == "train" or alone:
        raise _missing_split(path, split, src=src, tgt=tgt)
    return None


def read_lines(path: Path) -> list[str]:
    r"""Read a UTF-8 text file, plain or gzip, one sentence a line, empty lines kept.

    Only `\n` and `\r\n` end a line: other line separators of Unicode may occur in a sentence.

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


def check_text(text: str, *, where: str) -> str:
    """Return the text if it can be written as UTF-8.

    Raises:
        DataError: it holds half a surrogate pair, as JSON escapes and shell arguments can.
    """
    if any("\ud800" <= sign <= "\udfff" for sign in text):
        raise DataError(f"{where} is not Unicode text: {text[:40]!a} holds a lone surrogate")
    return text


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


def _names(folder: Path, split: str) -> list[str]:
    names = list(SPLIT_NAMES[split])
    if split == "test":
        # Test sets often carry a year or a source in their name: test_2016_flickr.en.
        found = {path.name.partition(".")[0] for path in folder.glob("test*")}
        names += sorted(found.difference(names))
    return names


def _find(folder: Path, name: str, endings: Sequence[str]) -> Path | None:
    paths = (folder / (name + ending + packed) for ending in endings for packed in ("", ".gz"))
    return next((path for path in paths if path.is_file()), None)


def _missing_split(folder: Path, split: str, *, src: str, tgt: str) -> DataError:
    present = ", ".join(sorted(path.name for path in folder.iterdir())[:12]) or "nothing"
    return DataError(
        f"{folder} has no {split}.{src} and {split}.{tgt}, nor {split}.tsv, .json or .jsonl "
        f"(each also with .gz); it holds {present}; name the sides with `src` and `tgt`"
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
                "`columns` names the first two columns of the file, in order"
            )
    ending = path.name.removesuffix(".gz").rpartition(".")[2]
    if f".{ending}" not in TABLE_ENDINGS:
        raise DataError(
            f"{path} ends in {path.suffix or 'nothing known'}, expected "
            f"{', '.join(TABLE_ENDINGS)} (each also with .gz) or a folder; rename or convert it"
        )
    rows = _tsv_rows(path) if ending == "tsv" else _json_rows(path, ending, columns)
    if not rows:
        raise DataError(f"{path} holds no pair")
    at = columns.index(src)
    return Pairs(src=[row[at] for row in rows], tgt=[row[1 - at] for row in rows])


def _tsv_rows(path: Path) -> list[tuple[str, str]]:
    rows = []
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip(" "):
            continue
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
    text = _read_text(path)
    if not text.strip():
        raise DataError(f"{path} is empty, expected a JSON list of pairs")
    items = _parse(text, path, 1)
    if not isinstance(items, list):
        raise DataError(
            f"{path} holds a JSON {type(items).__name__}, expected a list of pairs; "
            "give it the ending .jsonl if it has one pair a line"
        )
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
    except RecursionError as error:
        raise DataError(f"{path} is nested too deeply, expected pairs of text") from error


def _json_pair(item: Any, columns: tuple[str, str], *, where: str) -> tuple[str, str]:
    if isinstance(item, dict):
        nested = item.get("translation")
        keyed = nested if isinstance(nested, dict) else item
        item = [keyed.get(column) for column in columns]
    if isinstance(item, list) and len(item) >= 2 and all(isinstance(s, str) for s in item[:2]):
        return check_text(item[0], where=where), check_text(item[1], where=where)
    raise DataError(
        f'{where} is not a pair; expected ["...", "..."] or an object with the keys '
        f"{columns[0]!r} and {columns[1]!r}"
    )


def _hold_out(pairs: Pairs, *, path: Path, splits: Sequence[str], seed: int) -> dict[str, Pairs]:
    """Divide pairs into the missing splits and train; all pairs of a source go to one of them."""
    counts = Counter(sentence.strip() for sentence in pairs.src)
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
    owners = [split_of.get(sentence.strip(), "train") for sentence in pairs.src]
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
