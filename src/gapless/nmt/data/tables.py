"""Read sentence pairs from one file: TSV, CSV, JSON or JSON lines.

The sides are columns of a table or keys of JSON objects. They are found by the names in a header or
of the keys, by the names that `columns` gives, or are the first two columns.
"""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
from dataclasses import dataclass
from itertools import islice, zip_longest
from typing import TYPE_CHECKING, Any, TypeAlias

from gapless.errors import DataError
from gapless.nmt.data.languages import (
    COLUMN_WORDS,
    SOURCE_WORDS,
    TARGET_WORDS,
    find_language,
    matching_name,
)
from gapless.nmt.data.text_columns import quoted, why_no_pair, why_no_text
from gapless.nmt.data.text_files import check_text, read_lines, read_text


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path


# Where a row stands in its file, and its cells.
_Row: TypeAlias = tuple[str, list[Any]]

ENDINGS = (".tsv", ".csv", ".json", ".jsonl")

# A column without a name of its own, in `columns`.
UNNAMED = "_"

# A whole cell, as CSV writes it.
_IN_QUOTES = re.compile(r'"(?:[^"]|"")*"')

_DELIMITERS = ",;\t"
_ROWS_TO_LOOK_AT = 50


@dataclass(frozen=True, kw_only=True)
class Sides:
    """Both sides of a table, row by row.

    Attributes:
        src: the source side.
        tgt: the target side.
        notes: what of the table is not in them, a line each.
    """

    src: list[str]
    tgt: list[str]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of a file, and where the sides are in them.

    Attributes:
        path: of the file.
        rows: gives the rows anew: where each stands, and its cells, which in JSON may be anything.
        names: of the columns, from a header or of JSON keys; None: they have none.
        sides: names of the source and the target side, as asked for.
        at: columns of them, counted from 0.
        num_columns: that the table has, as far as its reader was told.
    """

    path: Path
    rows: Callable[[], Iterator[_Row]]
    names: list[str] | None
    sides: tuple[str, str]
    at: tuple[int, int]
    num_columns: int

    def read_sides(self) -> Sides:
        """Return the source and the target side.

        Raises:
            DataError: there is no row, or one of them lacks a side.
        """
        src: list[str] = []
        tgt: list[str] = []
        unread: list[tuple[str, str]] = []
        for place, cells in self.rows():
            more = next((cell for cell in cells[self.num_columns :] if not _is_empty(cell)), None)
            if more is not None:
                unread.append((place, str(more)))
            for number, side in zip(self.at, (src, tgt), strict=True):
                cell = cells[number] if number < len(cells) else None
                if not isinstance(cell, str):
                    raise self._no_pair(place, number, cell)
                side.append(check_text(cell, where=f"{self.path} {place}"))
        if not src:
            raise DataError(f"{self.path} holds no pair")
        notes = [self._note_unread(unread, of=len(src))] if unread else []
        if _ending(self.path) == ".tsv":
            notes += self._note_quotes(src, tgt)
        return Sides(src=src, tgt=tgt, notes=tuple(notes))

    def _note_unread(self, unread: list[tuple[str, str]], *, of: int) -> str:
        place, text = unread[0]
        return (
            f"{self.path} is read up to column {self.num_columns}, and {len(unread):,} of {of:,} rows "
            f"have text after it, such as {place} with {quoted([text])}; take tabs out of sentences, or "
            "name the columns to read with `columns`"
        )

    def _note_quotes(self, src: list[str], tgt: list[str]) -> list[str]:
        """Return a line if cells are quoted as in CSV: all of them, or some with quotes inside."""
        rows = list(zip(src, tgt, strict=True))
        found = [row for row in rows if any(map(_IN_QUOTES.fullmatch, row))]
        if len(found) < len(rows):
            # One cell in quotes may be what somebody says; doubled quotes are marks.
            found = [row for row in found if any('""' in cell[1:-1] for cell in row)]
        if not found:
            return []
        return [
            f"{len(found):,} of {len(rows):,} rows of {self.path} have cells in quotes as in "
            f"CSV, such as {quoted(found[0][:1])}; in a TSV quotes are characters like "
            "others, so rename it to .csv if they are none of the text"
        ]

    def check(self, src: list[str], tgt: list[str]) -> None:
        """Check that the sides look like sentences in two languages.

        Raises:
            DataError: they do not; the message says what was found, and how other columns are read.
        """
        for number, cells in zip(self.at, (src, tgt), strict=True):
            found = why_no_text(cells)
            if found is not None:
                raise DataError(f"{self._label(number)} of {self.path} {found}; {self._advice()}")
        found = why_no_pair(src, tgt)
        if found is not None:
            sides = " and ".join(self._label(number) for number in self.at)
            raise DataError(f"both sides, {sides} of {self.path}, {found}; {self._advice()}")

    def _label(self, number: int) -> str:
        return f"column {number + 1}" if self.names is None else f"column {self.names[number]!r}"

    def _no_pair(self, place: str, number: int, cell: Any) -> DataError:
        if cell is None:
            found = f"it has no {self._label(number)}"
        else:
            found = f"its {self._label(number)} is {_json_kind(cell)}, {str(cell)[:40]}"
        return DataError(f"{self.path} {place} is not a pair: {found}, expected text")

    def _advice(self) -> str:
        """Return how to read the columns that look like text."""
        columns = list(zip_longest(*(cells for _, cells in self.rows()), fillvalue=""))
        good = [
            number
            for number, cells in enumerate(columns)
            if all(isinstance(cell, str) for cell in cells) and why_no_text(cells) is None
        ]
        good = [
            number
            for n, number in enumerate(good)
            if all(why_no_pair(columns[before], columns[number]) is None for before in good[:n])
        ]
        anyway = "or read them all the same with `check_columns=False`"
        if len(good) < 2:
            return f"no two columns look like text in two languages; name other data, {anyway}"
        if self.names is not None:
            first, second = (shlex.quote(self.names[number]) for number in good[:2])
            return f"other columns are read with `src={first}` `tgt={second}`, {anyway}"
        names = [UNNAMED] * (good[1] + 1)
        names[good[0]], names[good[1]] = self.sides
        return (
            f"columns {good[0] + 1} and {good[1] + 1} look like text: "
            f"name the columns in order, as in `columns={','.join(names)}`, {anyway}"
        )


def read_table(path: Path, *, src: str, tgt: str, columns: tuple[str, ...] | None) -> Table:
    """Read a file of pairs.

    Args:
        path: of the file; its ending says what it is.
        src: name of the source side.
        tgt: name of the target side.
        columns: names of the first columns, in order; None: a header or the keys name them, or else
            they are `src` and `tgt`.

    Raises:
        DataError: anything about the file or its content that cannot be used.
    """
    for side in (src, tgt):
        if columns is not None and side not in columns:
            raise DataError(
                f"side {side!r} is not among the columns {' and '.join(map(repr, columns))}; "
                "`columns` names the first columns of the file, in order"
            )
    ending = _ending(path)
    if ending not in ENDINGS:
        raise DataError(
            f"{path} ends in {path.suffix or 'nothing known'}, expected "
            f"{', '.join(ENDINGS)} (each also with .gz) or a folder; rename or convert it"
        )
    if ending in (".tsv", ".csv"):
        rows = _tsv_rows(path) if ending == ".tsv" else _csv_rows(path)
        return _delimited(path, rows, src=src, tgt=tgt, columns=columns)
    items = _json_items(path, ending)
    return _of_json(path, items, src=src, tgt=tgt, columns=columns or (src, tgt))


def _ending(path: Path) -> str:
    return f".{path.name.removesuffix('.gz').rpartition('.')[2]}"


# --- rows of cells ---


def _delimited(
    path: Path,
    rows: Callable[[], Iterator[_Row]],
    *,
    src: str,
    tgt: str,
    columns: tuple[str, ...] | None,
) -> Table:
    begin = [[cell.strip() for cell in cells] for _, cells in islice(rows(), 2)]
    if not begin:
        raise DataError(f"{path} holds no pair")
    first = begin[0]
    has_header = _is_header(first) or _are_names(begin, {src, tgt})
    width = 2
    if columns is not None:
        names, at, width = None, (columns.index(src), columns.index(tgt)), len(columns)
    elif has_header:
        names, at = first, _find_sides(path, first, src=src, tgt=tgt, kind="columns")
        width = len(first)
    else:
        names, at = None, (0, 1)
    return Table(
        path=path,
        rows=lambda: islice(rows(), int(has_header), None),
        names=names,
        sides=(src, tgt),
        at=at,
        num_columns=width,
    )


def _find_sides(
    path: Path, names: Sequence[str], *, src: str, tgt: str, kind: str
) -> tuple[int, int]:
    """Return which of the names are those of the sides.

    Raises:
        DataError: they are not two of them.
    """
    first, second = matching_name(src, names), matching_name(tgt, names)
    if first is None or second is None:
        source = [name for name in names if name.casefold() in SOURCE_WORDS]
        target = [name for name in names if name.casefold() in TARGET_WORDS]
        if len(source) == len(target) == 1:
            first, second = source[0], target[0]
    if first is None or second is None or first == second:
        missing = [side for side in (src, tgt) if matching_name(side, names) is None]
        raise DataError(
            f"{path} has the {kind} {', '.join(map(repr, names))}, but no "
            f"{' and '.join(map(repr, missing or [tgt]))}; name two of them with `src` and `tgt`"
        )
    return names.index(first), names.index(second)


def _are_names(rows: list[list[str]], sides: set[str]) -> bool:
    """Return whether the first of two rows names both sides, which the second does not."""
    wanted = {side.casefold() for side in sides}
    found = [wanted & {cell.casefold() for cell in cells} for cells in rows]
    return found[0] == wanted and wanted not in found[1:]


def _is_header(cells: Sequence[str]) -> bool:
    """Return whether the cells of a row are names of columns, such as id, source, zh or Chinese."""
    languages = [found.family for cell in cells if (found := find_language(cell)) is not None]
    is_word_and_translation = len(languages) == 2 and len(set(languages)) == 1
    return (
        len(set(cells)) == len(cells) > 1
        and all(_is_name(cell) for cell in cells)
        and not is_word_and_translation
    )


def _is_name(cell: str) -> bool:
    cell = cell.casefold()
    words = re.findall(r"[^\W\d_]+", cell)
    is_of_words = bool(words) and re.fullmatch(r"[\w -]+", cell) is not None
    is_of_words &= all(word == "id" or (word in COLUMN_WORDS and len(word) > 1) for word in words)
    return is_of_words or cell in COLUMN_WORDS or find_language(cell) is not None


def _tsv_rows(path: Path) -> Callable[[], Iterator[_Row]]:
    """Return what gives the cells of each line. Quotes are characters like others."""
    lines = read_lines(path)

    def rows() -> Iterator[_Row]:
        for number, line in enumerate(lines, start=1):
            if not line.strip(" "):
                continue
            cells = line.split("\t")
            if len(cells) < 2:
                raise DataError(
                    f"{path} line {number} has one column, expected two separated by a tab"
                )
            yield f"line {number}", cells

    return rows


def _csv_rows(path: Path) -> Callable[[], Iterator[_Row]]:
    """Return what gives the cells of each row; line ends within a cell become spaces."""
    text = read_text(path)
    if not text.strip():
        raise DataError(f"{path} is empty, expected one pair a line")
    delimiter = _delimiter(text)

    def rows() -> Iterator[_Row]:
        width, first = 0, 0
        for number, cells in _parsed_rows(path, text, delimiter):
            if not any(cell.strip() for cell in cells):
                continue
            if len(cells) < 2:
                raise DataError(f"{path} line {number} has one column, expected two, as in a,b")
            width, first = width or len(cells), first or number
            if len(cells) != width:
                raise DataError(
                    f"{path} line {number} has {len(cells)} columns, but line {first} has {width}; "
                    f'text with a {delimiter!r} must stand in quotes, "..."'
                )
            yield f"line {number}", [cell.replace("\n", " ") for cell in cells]

    return rows


def _parsed_rows(path: Path, text: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(_lines_of(text), delimiter=delimiter, strict=True)
    while True:
        number = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            is_open = "end of data" in str(error) or "field larger" in str(error)
            found = "a quote opens and never closes" if is_open else f"not CSV: {error}"
            raise DataError(
                f'{path} line {number}: {found}; a quote within quotes is written twice, ""'
            ) from error
        yield number, cells


def _lines_of(text: str) -> io.StringIO:
    return io.StringIO(text.replace("\r\n", "\n"), newline="")


def _delimiter(text: str) -> str:
    """Return what separates the columns: what gives the first rows equally many, or a comma."""
    for delimiter in _DELIMITERS:
        reader = csv.reader(_lines_of(text), delimiter=delimiter)
        try:
            widths = {len(row) for row in islice(reader, _ROWS_TO_LOOK_AT) if row}
        except csv.Error:
            continue
        if len(widths) == 1 and min(widths) > 1:
            return delimiter
    return ","


# --- JSON ---


def _json_items(path: Path, ending: str) -> list[tuple[str, Any]]:
    """Return the items of a file with their places."""
    if ending == ".jsonl":
        return [
            (f"line {number}", _parse(line, path, number))
            for number, line in enumerate(read_lines(path), start=1)
            if line.strip()
        ]
    text = read_text(path)
    if not text.strip():
        raise DataError(f"{path} is empty, expected a JSON list of pairs")
    items = _parse(text, path, 1)
    if not isinstance(items, list):
        raise DataError(
            f"{path} holds a JSON {type(items).__name__}, expected a list of pairs; "
            "give it the ending .jsonl if it has one pair a line"
        )
    return [(f"item {number}", item) for number, item in enumerate(items)]


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


def _of_json(
    path: Path, items: list[tuple[str, Any]], *, src: str, tgt: str, columns: tuple[str, ...]
) -> Table:
    names = next((list(_keyed(item)) for _, item in items[:1] if isinstance(item, dict)), None)
    if names is None:
        at = columns.index(src), columns.index(tgt)
    else:
        at = _find_sides(path, names, src=src, tgt=tgt, kind="keys")

    def rows() -> Iterator[_Row]:
        for place, item in items:
            if isinstance(item, dict) and names is not None:
                keyed = _keyed(item)
                yield place, [keyed.get(name) for name in names]
            elif isinstance(item, list) and names is None:
                yield place, item
            else:
                raise DataError(
                    f'{path} {place} is not a pair; expected ["...", "..."] or an object with the '
                    f"keys {src!r} and {tgt!r}"
                )

    return Table(
        path=path,
        rows=rows,
        names=names,
        sides=(src, tgt),
        at=at,
        num_columns=len(columns if names is None else names),
    )


def _keyed(item: dict[str, Any]) -> dict[str, Any]:
    """Return the object that holds the sides; data sets keep it under "translation"."""
    nested = item.get("translation")
    return nested if isinstance(nested, dict) else item


def _is_empty(cell: Any) -> bool:
    return cell is None or (isinstance(cell, str) and not cell.strip())


def _json_kind(value: Any) -> str:
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, int | float):
        return "a number"
    return "a list" if isinstance(value, list) else "an object"
