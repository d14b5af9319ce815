"""Read sentence pairs from one file: TSV, CSV, JSON or JSON lines, each also packed by gzip; parquet or arrow.

Or from records in memory, as JSON lines would hold them.

A header, the keys of objects or `columns` say which column is which side. What they do not say is refused,
with the first rows and what to give.
"""

from __future__ import annotations

import csv
import json
import re
from importlib import import_module
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, TypeAlias

from gapless.errors import DataError
from gapless.nmt.data.languages import matching_names
from gapless.nmt.data.text_files import check_text, is_blank, lines_of, read_text


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path


# Where a row stands in its file, and its cells: by number, or of JSON objects by key.
_Row: TypeAlias = tuple[str, list[Any] | dict[str, Any]]

_LINE_ENDS = re.compile(r"\r\n|\r|\n")

# A column without a name of its own, in `columns`.
UNNAMED = "_"

_LONGEST_CELL = 2**31 - 1

# Of parquet, and how a file of arrow begins that is no stream.
_ROWS_AT_ONCE = 1 << 12
_ARROW_FILE = b"ARROW1"

# A quote that nobody closes goes on to the next one, and takes all rows between as one cell.
_MOST_LINES_OF_A_ROW = 100

# Of the error about columns: so many rows, so many characters of a cell, so many cells.
_ROWS_SHOWN, _LONGEST_SHOWN, _CELLS_SHOWN = 3, 60, 6


def ending_of(name: str) -> str:
    """Return the ending of a file's name in lower case, that of gzip aside."""
    return f".{name.casefold().removesuffix('.gz').rpartition('.')[2]}"


def table_pairs(
    path: Path, *, src: str, tgt: str, columns: tuple[str, ...] | None
) -> Iterator[tuple[str, str]]:
    """Yield the source and target of each row of a file, which is not kept.

    Args:
        path: of the file; its ending says what it is.
        src: name of the source side.
        tgt: name of the target side.
        columns: names of the first columns, in order, of a file that does not name them.

    Raises:
        DataError: anything about the file or its content that cannot be used.
    """
    ending = ending_of(path.name)
    if ending not in ENDINGS:
        raise DataError(
            f"{path} ends in {path.suffix or 'nothing known'}, expected {', '.join(ENDINGS)} (text also with "
            ".gz), or a folder with train.* files; rename or convert it"
        )
    return _pairs_of(path, _ROWS[ending](path), src=src, tgt=tgt, columns=columns)


def record_pairs(records: Iterable[Any], *, src: str, tgt: str) -> Iterator[tuple[str, str]]:
    """Yield the source and target of each record; the first ones are read at once.

    Args:
        records: dicts as `table_pairs` finds them in JSON lines, or pairs of source and target.
        src: name of the source side.
        tgt: name of the target side.

    Raises:
        DataError: anything about the records that cannot be used.
    """
    return _pairs_of("`records`", _record_rows(records, sides=(src, tgt)), src=src, tgt=tgt)


def check_sides(src: str, tgt: str) -> None:
    """Check that the sides have two names.

    Raises:
        DataError: they have one.
    """
    if src == tgt:
        raise DataError(
            f"source and target are both {src!r}; give both `src` and `tgt`, with two names"
        )


def _pairs_of(
    name: Path | str,
    rows: Iterator[_Row],
    *,
    src: str,
    tgt: str,
    columns: tuple[str, ...] | None = None,
) -> Iterator[tuple[str, str]]:
    begin = list(islice(rows, _ROWS_SHOWN))
    if not begin:
        raise DataError(f"{name} holds no pair")
    sides = _Sides(name, begin, src=src, tgt=tgt, columns=columns)
    first = begin[0][1]
    if isinstance(first, dict):
        keys = list(first)
        one, other = sides.named(keys, "keys")
        return _of_objects(name, chain(begin, rows), keys[one], keys[other])
    at, has_header = sides.in_columns([str(cell).strip() for cell in first])
    return _of_lists(name, chain(begin[has_header:], rows), at)


def _of_lists(
    name: Path | str, rows: Iterator[_Row], at: tuple[int, int]
) -> Iterator[tuple[str, str]]:
    one, other = at
    num_columns = max(at) + 1
    is_empty = True
    for place, cells in rows:
        if not isinstance(cells, list):
            raise _other_kind(name, place, cells)
        if len(cells) < num_columns:
            found = f"{len(cells)} column{'s' if len(cells) > 1 else ''}"
            raise DataError(
                f"{name} {place} has {found}, expected {num_columns} or more: {_shown_row(cells)}"
            )
        yield _text(name, place, cells[one]), _text(name, place, cells[other])
        is_empty = False
    if is_empty:
        raise DataError(f"{name} holds no pair under its header")


def _of_objects(
    name: Path | str, rows: Iterator[_Row], one: str, other: str
) -> Iterator[tuple[str, str]]:
    for place, cells in rows:
        if not isinstance(cells, dict):
            raise _other_kind(name, place, cells)
        for key in (one, other):
            if key not in cells:
                raise DataError(
                    f"{name} {place} has no {key!r}, as the first one has, but {', '.join(map(repr, cells))}"
                )
        yield _text(name, place, cells[one]), _text(name, place, cells[other])


def _other_kind(name: Path | str, place: str, cells: object) -> DataError:
    return DataError(f"{name} {place} is not a pair as the first one is: {_shown(cells)}")


def _text(name: Path | str, place: str, cell: Any) -> str:
    """Return the text of a cell; what is null in JSON is empty."""
    if cell is None:
        return ""
    if not isinstance(cell, str):
        raise DataError(f"{name} {place} holds {_shown(cell)}, expected text")
    # Nearly all text ends here; half a surrogate pair, as JSON can write it, is not printable.
    return cell if cell.isprintable() else check_text(cell, where=f"{name} {place}")


class _Sides:
    """Finds both sides of rows, or says what is to be given.

    Args:
        name: of what holds the rows, such as the path of a file.
        begin: the first rows.
        src: name of the source side.
        tgt: name of the target side.
        columns: names of the first columns, in order; None: not given.
    """

    def __init__(
        self,
        name: Path | str,
        begin: Sequence[_Row],
        *,
        src: str,
        tgt: str,
        columns: tuple[str, ...] | None,
    ) -> None:
        self._name, self._begin = name, begin
        self._sides, self._columns = (src, tgt), columns

    def in_columns(self, header: Sequence[str]) -> tuple[tuple[int, int], bool]:
        """Return the columns of the sides, and whether the first row is a header.

        Args:
            header: the cells of the first row.

        Raises:
            DataError: neither a header nor `columns` says it, or both do and differ.
        """
        found = [matching_names(side, header) for side in self._sides]
        is_header = all(found) and found[0] != found[1]
        if self._columns is None:
            return self.named(header, "columns"), True
        at = self._in_order(self._columns)
        if is_header and not all(column in names for column, names in zip(at, found, strict=True)):
            raise self._unclear(
                f"its header names other columns than `columns={','.join(self._columns)}`",
                advice="Give `columns` in the order of the header",
            )
        return at, is_header

    def named(self, names: Sequence[str], kind: str) -> tuple[int, int]:
        """Return which of some names are those of the sides.

        Args:
            names: of columns or keys.
            kind: what they are.

        Raises:
            DataError: a side has none, or several.
        """
        found = [matching_names(side, names) for side in self._sides]
        for side, numbers in zip(self._sides, found, strict=True):
            if len(numbers) != 1:
                how_many = "several are" if numbers else "none is"
                advice = self._advice_of_header(names) if any(found) else None
                raise self._unclear(
                    f"of its {kind} {how_many} {side!r}", names=names, advice=advice
                )
        (first,), (second,) = found
        if first == second:
            raise self._unclear(
                f"both {' and '.join(map(repr, self._sides))} would be {names[first]!r}",
                names=names,
            )
        return first, second

    def _in_order(self, columns: tuple[str, ...]) -> tuple[int, int]:
        found = [matching_names(side, columns) for side in self._sides]
        named = [name for name in columns if name != UNNAMED]
        for side, numbers in zip(self._sides, found, strict=True):
            if len(numbers) != 1:
                raise self._unclear(
                    f"`columns={','.join(columns)}` names {'several' if numbers else 'none'} that can be "
                    f"{side!r}",
                    advice=f"Name two of {', '.join(map(repr, named))} with `src` and `tgt`",
                )
        return found[0][0], found[1][0]

    def _unclear(
        self, why: str, *, names: Sequence[str] = (), advice: str | None = None
    ) -> DataError:
        """Return the one error of all files that do not say where the sides are."""
        src, tgt = self._sides
        rows = "; ".join(f"{place}: {_shown_row(cells)}" for place, cells in self._begin)
        return DataError(
            f"{self._name} does not say which column is {src!r} and which is {tgt!r}: {why}. It begins with "
            f"{rows}. {advice or self._advice(names)}"
        )

    def _advice_of_header(self, names: Sequence[str]) -> str | None:
        """Return what to do where the first row names one of the sides, so that it is a header."""
        if isinstance(self._begin[0][1], dict):
            return None
        return f"Name two of its columns {_shown_row(list(names))} with `src` and `tgt`"

    def _advice(self, names: Sequence[str]) -> str:
        if isinstance(self._begin[0][1], dict):
            return f"Name two of the keys {', '.join(map(repr, names))} with `src` and `tgt`"
        if len(self._begin[0][1]) == 1:
            between = "comma" if ending_of(str(self._name)) == ".csv" else "tab"
            return f"Its first row is one column; write a {between} between two"
        return (
            f"Name its columns in their order with `columns={','.join(self._sides)}` ({UNNAMED} for one that is "
            "not read), or, if its first row is a header, two of its names with `src` and `tgt`"
        )


def _shown_row(cells: list[Any] | dict[str, Any]) -> str:
    """Return the beginnings of a row's cells."""
    shown = (
        [f"{key}: {_shown(value)}" for key, value in cells.items()]
        if isinstance(cells, dict)
        else [_shown(cell) for cell in cells]
    )
    return " | ".join([*shown[:_CELLS_SHOWN], *(["..."] if len(shown) > _CELLS_SHOWN else [])])


def _shown(cell: object) -> str:
    text = repr(cell).replace("\n", " ")
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 3]}..."


def _tsv_rows(path: Path) -> Iterator[_Row]:
    """Give the cells of each line that is not empty. Quotes are characters like others."""
    for number, line in enumerate(lines_of(path), start=1):
        if "\t" in line or not is_blank(line):
            yield f"line {number}", line.split("\t")


def _csv_rows(path: Path) -> Iterator[_Row]:
    """Give the cells of each row; line ends within a cell become spaces."""
    # A document in one cell exceeds the default limit. It is the whole process's, so it is set back.
    limit = csv.field_size_limit(_LONGEST_CELL)
    try:
        reader = csv.reader(_csv_lines(path), strict=True, skipinitialspace=True)
        yield from _numbered_rows(reader, path)
    finally:
        csv.field_size_limit(limit)


def _csv_lines(path: Path) -> Iterator[str]:
    """Give lines with their ends, as CSV wants them, which may also be those of old Macintoshes."""
    for line in lines_of(path):
        *parts, last = line.split("\r")
        for part in parts:
            yield f"{part}\r"
        yield f"{last}\n"


def _numbered_rows(reader: Any, path: Path) -> Iterator[_Row]:
    number = 1
    try:
        for cells in reader:
            if reader.line_num - number >= _MOST_LINES_OF_A_ROW:
                raise DataError(
                    f"{path} line {number}: a row goes on for {reader.line_num - number + 1:,} lines, expected "
                    f'{_MOST_LINES_OF_A_ROW} at most; close its quote, and write one within quotes twice, ""'
                )
            if cells:
                yield f"line {number}", [_LINE_ENDS.sub(" ", cell) for cell in cells]
            number = reader.line_num + 1
    except csv.Error as error:
        raise DataError(
            f'{path} line {number} is not CSV: {error}; a quote within quotes is written twice, ""'
        ) from error


def _json_rows(path: Path) -> Iterator[_Row]:
    """Give the items of a JSON list."""
    items = _parsed(path, read_text(path), place=None)
    if not isinstance(items, list):
        raise DataError(
            f"{path} holds no JSON list of pairs, such as [{{...}}, {{...}}]; give it the ending .jsonl if it has one "
            "pair a line"
        )
    for number, item in enumerate(items, start=1):
        yield f"item {number}", _cells(path, f"item {number}", item)


def _json_line_rows(path: Path) -> Iterator[_Row]:
    """Give the items of a file that has one a line."""
    for number, line in enumerate(lines_of(path), start=1):
        if not is_blank(line):
            place = f"line {number}"
            yield place, _cells(path, place, _parsed(path, line, place=place))


def _record_rows(records: Iterable[Any], *, sides: tuple[str, str]) -> Iterator[_Row]:
    """Give the records; a pair becomes a dict of its sides."""
    for number, record in enumerate(records, start=1):
        place = f"number {number}"
        if isinstance(record, (list, tuple)):
            if len(record) != len(sides):
                raise DataError(
                    f"`records` {place} holds {len(record)} items, expected source and target: {_shown(record)}"
                )
            record = dict(zip(sides, record, strict=True))
        yield place, _cells("`records`", place, record)


def _arrow_rows(path: Path) -> Iterator[_Row]:
    """Give the rows of a table of parquet or arrow, some of which are read at a time."""
    try:
        arrow = import_module("pyarrow")
        module = import_module(
            "pyarrow.parquet" if ending_of(path.name) == ".parquet" else "pyarrow.ipc"
        )
    except ImportError:
        raise DataError(
            f'{path} is read by pyarrow, which cannot be found; run pip install "gapless[arrow]"'
        ) from None
    number = 0
    try:
        with path.open("rb") as file:
            for batch in _arrow_batches(
                file, module, is_parquet=ending_of(path.name) == ".parquet"
            ):
                for row in batch.to_pylist():
                    number += 1
                    yield f"row {number}", _cells(path, f"row {number}", row)
    except (arrow.ArrowException, OSError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def _arrow_batches(file: Any, module: Any, *, is_parquet: bool) -> Iterator[Any]:
    if is_parquet:
        yield from module.ParquetFile(file).iter_batches(_ROWS_AT_ONCE)
    elif file.peek(len(_ARROW_FILE)).startswith(_ARROW_FILE):
        reader = module.open_file(file)
        yield from map(reader.get_batch, range(reader.num_record_batches))
    else:
        yield from module.open_stream(file)


_ROWS: dict[str, Callable[[Path], Iterator[_Row]]] = {
    ".tsv": _tsv_rows,
    ".csv": _csv_rows,
    ".json": _json_rows,
    ".jsonl": _json_line_rows,
    ".parquet": _arrow_rows,
    ".arrow": _arrow_rows,
}

ENDINGS = tuple(_ROWS)


def _parsed(path: Path, text: str, *, place: str | None) -> Any:
    """Return what JSON says.

    Args:
        path: of its file.
        text: the JSON.
        place: where it stands; None: it is the whole file.

    Raises:
        DataError: it is none.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        where = place or f"line {error.lineno}"
        other = ".json if it is one list" if place else ".jsonl if it has one pair a line"
        raise DataError(
            f"{path} {where} is not JSON: {error.msg.removesuffix(' at')} at column {error.colno}; give it the ending {other}"
        ) from error
    except (RecursionError, ValueError) as error:  # the latter of a number of thousands of digits
        raise DataError(f"{path} {place or ''} is no JSON of pairs: {error}") from error


def _cells(name: Path | str, place: str, item: Any) -> list[Any] | dict[str, Any]:
    """Return the sides and what stands beside them; data sets may keep them under `translation`."""
    if isinstance(item, dict):
        inner = item.get("translation")
        return inner if isinstance(inner, dict) else item
    if isinstance(item, list):
        return item
    raise DataError(
        f'{name} {place} is {_shown(item)}, expected a pair such as {{"en": "...", "zh": "..."}}'
    )
