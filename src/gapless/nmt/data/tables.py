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
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice, zip_longest
from statistics import median
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict

from gapless.errors import DataError
from gapless.nmt.data.languages import (
    COLUMN_WORDS,
    SOURCE_WORDS,
    TARGET_WORDS,
    find_language,
    has_spaces,
    matching_name,
    names_in_other_scripts,
    near_name,
    without_invisible,
    words_for,
    words_of_name,
    written_in,
)
from gapless.nmt.data.text_columns import quoted, why_no_pair, why_no_text
from gapless.nmt.data.text_files import check_text, how_to_unpack, read_lines, read_text


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from gapless.nmt.data.directions import KnownText


# Where a row stands in its file, and its cells.
_Row: TypeAlias = tuple[str, list[Any]]


class _Form(TypedDict):
    """How a CSV is written, as `csv.reader` takes it."""

    delimiter: str
    skipinitialspace: bool


ENDINGS = (".tsv", ".csv", ".json", ".jsonl")

_WORKBOOKS = (".xlsx", ".xls", ".xlsm", ".ods", ".numbers")

# A column without a name of its own, in `columns`.
UNNAMED = "_"

# A whole cell, as CSV writes it.
# Quotes of fewer rows may be what somebody says.
_FEWEST_ROWS = 5

_IN_QUOTES = re.compile(r'"(?:[^"]|"")*"')

_DELIMITERS = ",;\t|"
_ROWS_TO_LOOK_AT = 50

# Longer cells of several lines are made by a quote that nobody closed. The module `csv` reads longer
# ones only if told to.
_LONGEST_CELL, _LONGEST_READ = 131_072, 2**31 - 1

# What spreadsheets write before a CSV, and the delimiter.
_DECLARED = re.compile(r"sep=(.)\r?\n", re.IGNORECASE)

# Around a name in a header, and no part of it.
_AROUND_A_NAME = " \t\"'#*:"

# Names of a column that counts rows; pandas and spreadsheets leave it without one.
_NAMES_OF_NUMBERS = frozenset(
    {
        *("", "№", "no.", "nr.", "s.no", "s.no.", "sno", "idx", "unnamed: 0"),
        *("编号", "序号", "行号", "編號", "序號"),
    }
)

# A name that differs from another one in its number alone; the groups are what does not.
_NUMBERED = re.compile(r"([^\W\d][^\W\d .-]*[ .-]?[(\[]?)\d{1,2}([)\]]?(?:\.\w+)?)")

_NUMBERED_COLUMNS = COLUMN_WORDS | {"s", "c", "sents", "cols", "utt", "utterance"}

# What names of columns are made of; some stand in brackets, or with a number or an ending.
_OF_NAMES = r"[\w .()\[\]{}<>/:#-]"

# Longer cells are text. Shorter names of languages are words as well, such as no and it.
_LONGEST_NAME, _LONGEST_CODE, _MOST_WORDS_OF_A_NAME = 30, 3, 4

# Where so many rows are sentences, a first row of a few words may name the columns.
_FEWEST_SENTENCES, _SENTENCES_SHARE = 5, 0.95
_ENDS = (".", "!", "?", "…", "。", "！", "？", "।", "؟")
_AFTER_AN_END = " \t\"')”’»」』）"

# So may a row of one word on each side, where others have so many and hardly any is like it. Text
# without spaces is counted in characters, and so few of them are a word.
_FEWEST_WORDS, _WORDS_SHARE, _LONGEST_WORD = 4, 0.02, 4
_WORD_OR_CHARACTER = re.compile(r"[A-Za-z]+|\w")

# Rows that say whether text has spaces between words.
_ROWS_TO_COMPARE = 2_000

# Titles may stand above a header.
_MOST_TITLES = 5


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
        is_ordered: whether its reader was told the names of its columns, in order.
    """

    path: Path
    rows: Callable[[], Iterator[_Row]]
    names: list[str] | None
    sides: tuple[str, str]
    at: tuple[int, int]
    num_columns: int
    is_ordered: bool = False

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
        notes += self._note_header(src, tgt)
        if _ending(self.path) == ".tsv":
            notes += self._note_quotes(src, tgt)
        if _ending(self.path) == ".csv":
            notes += self._note_single_quotes(src, tgt)
        return Sides(src=src, tgt=tgt, notes=tuple(notes))

    def ordered_as(
        self, known: KnownText, *, like: Table | None = None
    ) -> tuple[Table, tuple[str, ...]]:
        """Return this table, which has no names, with its sides where its text is like some that is known.

        They may be its first columns, in either order, or stand where another table names them. And
        what its reader should know of that, a line each.

        Args:
            known: text that is known.
            like: table that it is from; None: it is from none.
        """
        rows = [cells for _, cells in islice(self.rows(), _ROWS_TO_LOOK_AT)]
        width = Counter(map(len, rows)).most_common(1)[0][0]
        places = [self.at, self.at[::-1]]
        # Keys of JSON have no order.
        names = None if like is None or _ending(like.path) not in (".tsv", ".csv") else like.names
        if like is not None and names is not None:
            places.append(like.at)
        best = known.most_alike(
            {
                at: (_column(rows, at[0]), _column(rows, at[1]))
                for at in places
                if at == self.at or max(at) < width
            }
        )
        if best == self.at:
            return self, ()
        num_columns = width if width == len(names or ()) else max(best) + 1
        ordered = replace(self, at=best, num_columns=num_columns)
        columns = " and ".join(
            f"column {number + 1} {side!r}" for number, side in zip(best, self.sides, strict=True)
        )
        advice = "begin it with a header"
        if _ending(self.path) in (".json", ".jsonl"):
            advice = "write its pairs as objects with keys"
        note = (
            f"{self.path} has no names of columns, and is read as its text is like that of {known.where}: "
            f"{columns}; {advice} if that is wrong"
        )
        return ordered, (note,)

    @property
    def names_sides(self) -> bool:
        """Whether its header or its keys name both sides, in whatever way the names are written."""
        names = self.names
        return names is not None and all(
            matching_name(side, names) == names[number]
            for side, number in zip(self.sides, self.at, strict=True)
        )

    def some_text(self, count: int) -> tuple[list[str], list[str]]:
        """Return both sides of the first rows, as far as they are text."""
        rows = [cells for _, cells in islice(self.rows(), count)]
        src, tgt = (_column(rows, number) for number in self.at)
        return src, tgt

    def _note_unread(self, unread: list[tuple[str, str]], *, of: int) -> str:
        place, text = unread[0]
        return (
            f"{self.path} is read up to column {self.num_columns}, and {len(unread):,} of {of:,} rows "
            f"have text after it, such as {place} with {quoted([text])}; take tabs out of sentences, or "
            "name the columns to read with `columns`"
        )

    def _note_header(self, src: list[str], tgt: list[str]) -> list[str]:
        """Return a line if the first row alone is a few words where all others are sentences."""
        first, *others = zip(src, tgt, strict=True)
        if len(others) < _FEWEST_SENTENCES or not all(map(_may_be_name, first)):
            return []
        ended = sum(all(map(_is_ended, row)) for row in others)
        if ended >= _SENTENCES_SHARE * len(others):
            found = "sentences"
        elif self.names is None and _is_shorter(first, others):
            found = "longer"
        else:
            return []
        place = next(place for place, _ in self.rows())
        # Without it, nobody could see any more in which order they are.
        todo = "name them in their order with `columns`"
        if self.is_ordered or self.names is not None:
            todo = "take it out"
        return [
            f"{self.path} {place} is read as a pair, {quoted(first)}, and the rows after it are {found}; "
            f"if it names the columns, {todo}"
        ]

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

    def _note_single_quotes(self, src: list[str], tgt: list[str]) -> list[str]:
        """Return a line if all cells are quoted by signs that mark no cell."""
        rows = list(zip(src, tgt, strict=True))
        if len(rows) < _FEWEST_ROWS or not all(
            _in_single_quotes(cell) for row in rows for cell in row
        ):
            return []
        return [
            f"all cells of {self.path} are in single quotes, such as {quoted(rows[0][:1])}, which are "
            'read as text; if they mark the cells, write them as "..."'
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
            empty = " or it is null" if _ending(self.path) in (".json", ".jsonl") else ""
            found = f"it has no {self._label(number)}{empty}"
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
    if columns is not None:
        src, tgt = _as_in_columns(columns, src=src, tgt=tgt)
    ending = _ending(path)
    unpack = how_to_unpack(path)
    if unpack is not None:
        raise DataError(f"{path} is packed, expected text or gzip; {unpack}")
    if ending not in ENDINGS:
        advice = "export it as CSV in UTF-8" if ending in _WORKBOOKS else "rename or convert it"
        raise DataError(
            f"{path} ends in {path.suffix or 'nothing known'}, expected "
            f"{', '.join(ENDINGS)} (each also with .gz) or a folder; {advice}"
        )
    if ending in (".tsv", ".csv"):
        rows = _tsv_rows(path) if ending == ".tsv" else _csv_rows(path)
        return _delimited(path, rows, src=src, tgt=tgt, columns=columns)
    items = _json_items(path, ending)
    return _of_json(path, items, src=src, tgt=tgt, columns=columns)


def _as_in_columns(columns: tuple[str, ...], *, src: str, tgt: str) -> tuple[str, str]:
    """Return the names that the sides have in `columns`.

    Raises:
        DataError: they are not two of them.
    """
    found = []
    for side in (src, tgt):
        name = matching_name(side, columns)
        if name is None:
            raise DataError(
                f"side {side!r} is not among the columns {' and '.join(map(repr, columns))}"
                f"{_hint(side, columns)}; `columns` names the first columns of the file, in order"
            )
        found.append(name)
    if found[0] == found[1]:
        raise DataError(_one_for_both(found[0], columns, src=src, tgt=tgt, kind="columns"))
    return found[0], found[1]


def _ending(path: Path) -> str:
    return f".{path.name.casefold().removesuffix('.gz').rpartition('.')[2]}"


# --- rows of cells ---


def _delimited(
    path: Path,
    rows: Callable[[], Iterator[_Row]],
    *,
    src: str,
    tgt: str,
    columns: tuple[str, ...] | None,
) -> Table:
    titles, begin = _begin(rows, src=src, tgt=tgt)
    if not begin:
        raise DataError(f"{path} holds no pair")
    first = begin[0]
    has_header = _begins_with_header(begin, src=src, tgt=tgt)
    width = 2
    if columns is not None:
        names, at, width = None, (columns.index(src), columns.index(tgt)), len(columns)
        has_header = has_header or _is_header([first[n] for n in at if n < len(first)])
        if has_header:
            _check_header(path, first, at=at, sides=(src, tgt))
    elif has_header:
        names = first if {src, tgt} <= set(first) else [_bare(cell) for cell in first]
        at = _find_sides(path, names, src=src, tgt=tgt, kind="columns")
        width = len(first)
    else:
        _check_unnamed(path, src=src, tgt=tgt)
        _refuse_doubtful_header(path, begin, src=src, tgt=tgt)
        names, at = None, (0, 1)

    def below_header() -> Iterator[_Row]:
        for place, cells in islice(rows(), titles + 1, None):
            # Files that were joined have the header of each.
            if [without_invisible(cell) for cell in cells] != first:
                yield place, cells

    return Table(
        path=path,
        rows=below_header if has_header else rows,
        names=names,
        sides=(src, tgt),
        at=at,
        num_columns=width,
        is_ordered=columns is not None,
    )


def _begin(
    rows: Callable[[], Iterator[_Row]], *, src: str, tgt: str
) -> tuple[int, list[list[str]]]:
    """Return how many rows of one cell stand above a header, and the two rows that follow them.

    Where no header follows, such rows are like others.
    """
    looked_at = [
        [without_invisible(cell) for cell in cells]
        for _, cells in islice(rows(), _MOST_TITLES + 2)
    ]
    filled = [sum(map(bool, cells)) > 1 for cells in looked_at]
    titles = filled.index(True) if True in filled else 0
    if titles and not _begins_with_header(looked_at[titles : titles + 2], src=src, tgt=tgt):
        titles = 0
    return titles, looked_at[titles : titles + 2]


def _check_header(
    path: Path, header: Sequence[str], *, at: tuple[int, int], sides: tuple[str, str]
) -> None:
    """Check that no side is by the header the language of the other one.

    Raises:
        DataError: one is.
    """
    src, tgt = (find_language(side) for side in sides)
    if src is None or tgt is None or src.family == tgt.family:
        return
    for number, side, other in zip(at, sides, sides[::-1], strict=True):
        name = header[number] if number < len(header) else ""
        if words_for(other, name) and not words_for(side, name):
            raise DataError(
                f"column {number + 1} of {path} is {name!r} by its header, but {side!r} by `columns`; "
                "leave `columns` out, or name the columns as they are"
            )


def _check_unnamed(path: Path, *, src: str, tgt: str) -> None:
    """Refuse names that cannot be those of the first two columns, which are read without a header.

    Raises:
        DataError: a side is named by a number, or both are by one language.
    """
    for side in (src, tgt):
        if side.isdecimal():
            raise DataError(
                f"{path} has no names of columns, so {side!r} names none; name the columns in order, as "
                f"in `columns={UNNAMED},en,zh` with `src=en` `tgt=zh`"
            )
    source, target = find_language(src), find_language(tgt)
    if source is not None and target is not None and source.tag == target.tag:
        raise DataError(
            f"source and target would both be {source.name}, as {src!r} and {tgt!r} are; "
            "give both `src` and `tgt`, the language of the first column and that of the second"
        )


def _find_sides(
    where: object, names: Sequence[str], *, src: str, tgt: str, kind: str
) -> tuple[int, int]:
    """Return which of the names are those of the sides.

    Raises:
        DataError: they are not two of them, or several have the name of a side.
    """
    found = _sides_in(names, src=src, tgt=tgt, by_words=True)
    if found is None:
        named = [
            matching_name(side, names) or _named_by_a_word(names, n, src=src, tgt=tgt)
            for n, side in enumerate((src, tgt))
        ]
        if named[0] is not None and named[0] == named[1]:
            why = _one_for_both(named[0], names, src=src, tgt=tgt, kind=kind)
            raise DataError(f"{where}: {why}")
        missing = [side for side, name in zip((src, tgt), named, strict=True) if name is None]
        hints = [f"{side!r}{_hint(side, names)}" for side in missing or [tgt]]
        advice = "name two of them with `src` and `tgt`"
        if len(set(names)) == 1:
            advice = f"it has one side alone, so add the other one beside {names[0]!r}"
        raise DataError(
            f"{where} has the {kind} {', '.join(map(repr, names))}, but no "
            f"{' and '.join(hints)}; {advice}"
        )
    for name in (names[number] for number in found):
        if names.count(name) > 1:
            raise DataError(
                f"{where} has {names.count(name)} {kind} of the name {name!r}; give them different names, or "
                "name the first columns in order with `columns`"
            )
    return found


def _hint(side: str, names: Sequence[str]) -> str:
    others = names_in_other_scripts(side, names)
    if others:
        return f" ({others[0]} is another script)"
    near = near_name(side, names)
    return "" if near is None else f" (did you mean {near}?)"


def _one_for_both(name: str, names: Sequence[str], *, src: str, tgt: str, kind: str) -> str:
    """Return that both sides are found under one name, and how to name two."""
    others = [shlex.quote(other) for other in names if other not in (name, UNNAMED)]
    one = shlex.quote(name)
    advice = "with two of the " + kind
    if len(others) == 1:
        advice = f"as in `src={one}` `tgt={others[0]}` or `src={others[0]}` `tgt={one}`"
    return (
        f"source {src!r} and target {tgt!r} would both be the {kind.removesuffix('s')} {name!r} of "
        f"{', '.join(map(repr, names))}; give both `src` and `tgt`, {advice}"
    )


def _sides_in(
    names: Sequence[str], *, src: str, tgt: str, by_words: bool = False
) -> tuple[int, int] | None:
    """Return which of the names are those of the sides, None if they are not two of them.

    Args:
        names: of columns or keys.
        src: name of the source side.
        tgt: name of the target side.
        by_words: whether one word of a name, as of caption_de, is enough.
    """
    first, second = matching_name(src, names), matching_name(tgt, names)
    if by_words:
        first = first or _named_by_a_word(names, 0, src=src, tgt=tgt)
        second = second or _named_by_a_word(names, 1, src=src, tgt=tgt)
    if first is None or second is None:
        source = _only(name for name in names if name.casefold() in SOURCE_WORDS)
        target = _only(name for name in names if name.casefold() in TARGET_WORDS)
        if source is not None and target is not None:
            first, second = source, target
        else:
            first, second = first or source, second or target
    if first is None or second is None or first == second:
        return None
    return names.index(first), names.index(second)


def _only(names: Iterable[str]) -> str | None:
    found = list(names)
    return found[0] if len(found) == 1 else None


def _named_by_a_word(names: Sequence[str], side: int, *, src: str, tgt: str) -> str | None:
    return _only(name for name in names if _side_of(name, src=src, tgt=tgt) == side)


def _words_for_sides(name: str, *, src: str, tgt: str) -> tuple[list[str], list[str]]:
    """Return the words of a name that name the source side, and those that name the target side.

    Languages come first: where one is named, words such as source say nothing.
    """
    of_languages = words_for(src, name), words_for(tgt, name)
    if any(of_languages) or _is_ended(name):
        return of_languages
    words = words_of_name(name)
    source, target = (
        [word for word in words if word.casefold() in known]
        for known in (SOURCE_WORDS, TARGET_WORDS)
    )
    return source, target


def _side_of(name: str, *, src: str, tgt: str) -> int | None:
    """Return which side a word of a name names: 0 for the source, 1 for the target; None: neither, or both."""
    named = list(map(bool, _words_for_sides(name, src=src, tgt=tgt)))
    return named.index(True) if named.count(True) == 1 else None


def _begins_with_header(rows: list[list[str]], *, src: str, tgt: str) -> bool:
    """Return whether the first of up to two rows is a header.

    Its cells are all names of columns, or two of them name the sides or languages, which two cells of
    the second row do not: labels stand in every row.
    """
    return _is_header(rows[0]) or (
        _names_two(rows[0], src=src, tgt=tgt)
        and not any(_names_two(cells, src=src, tgt=tgt) for cells in rows[1:])
    )


def _names_two(cells: Sequence[str], *, src: str, tgt: str) -> bool:
    """Return whether two cells name the sides, or two languages that no short word means."""
    names = [name if len(name := _bare(cell)) <= _LONGEST_NAME else "" for cell in cells]
    if {src, tgt} <= {*cells, *names} or _sides_in(names, src=src, tgt=tgt) is not None:
        return True
    if _are_alike_but_for_sides(names, src=src, tgt=tgt) or _are_alike_but_for_languages(names):
        return True
    words = [name for name in names if not name.isascii() or len(name) > _LONGEST_CODE]
    return len({found.family for word in words if (found := find_language(word))}) > 1


def _are_alike_but_for_sides(names: Sequence[str], *, src: str, tgt: str) -> bool:
    """Return whether two names have a word for a side each, and say the same or name columns beside it.

    Such as Satz DE and Satz EN, or translatedText and originalText. No sentence and its translation do.
    """
    beside = [
        {
            _beside_side(name, src=src, tgt=tgt)
            for name in names
            if _side_of(name, src=src, tgt=tgt) == n
        }
        for n in (0, 1)
    ]
    of_columns = [any(COLUMN_WORDS.issuperset(words) for words in found) for found in beside]
    return all(of_columns) or bool(beside[0] & beside[1])


def _beside_side(name: str, *, src: str, tgt: str) -> tuple[str, ...]:
    """Return the words of a name but for those that name languages or sides."""
    named = {word for words in _words_for_sides(name, src=src, tgt=tgt) for word in words}
    rest = [word.casefold() for word in words_of_name(name) if word not in named]
    return tuple(word for word in rest if word not in SOURCE_WORDS | TARGET_WORDS)


def _are_alike_but_for_languages(names: Sequence[str]) -> bool:
    """Return whether two names without spaces are the same but for one word, and that names languages."""
    found: dict[tuple[str, ...], set[str]] = {}
    for name in names:
        words = [] if " " in name else [word.casefold() for word in words_of_name(name)]
        for n, word in enumerate(words):
            language = find_language(word)
            if language is not None and len(words) > 1:
                found.setdefault((*words[:n], "", *words[n + 1 :]), set()).add(language.family)
    return any(len(languages) > 1 for languages in found.values())


def _refuse_doubtful_header(path: Path, rows: list[list[str]], *, src: str, tgt: str) -> None:
    """Refuse a first row that names both languages beside other words: a header, or a pair.

    Raises:
        DataError: it is such a row, and the second is not.
    """
    sides = [_side_by_language(cell, src=src, tgt=tgt) for cell in rows[0]]
    if sides.count(0) != 1 or sides.count(1) != 1:
        return
    if len(rows) > 1 and sides == [_side_by_language(cell, src=src, tgt=tgt) for cell in rows[1]]:
        return
    order = [UNNAMED] * (max(sides.index(0), sides.index(1)) + 1)
    order[sides.index(0)], order[sides.index(1)] = src, tgt
    raise DataError(
        f"{path} begins with {quoted(rows[0])}, which may name the columns or be a pair; name the columns in "
        f"their order, as in `columns={','.join(order)}`, and take the row out if it is no pair"
    )


def _side_by_language(cell: str, *, src: str, tgt: str) -> int | None:
    """Return which side a short cell names by a language; None: none, or by what is a word as well.

    Codes such as en and de are words of other languages, unless they are written in capitals or joined to
    others, as in DE and caption_de.
    """
    side = _side_of(cell, src=src, tgt=tgt)
    words = words_of_name(cell)
    if side is None or len(words) > _MOST_WORDS_OF_A_NAME or not _may_be_name(cell):
        return None
    is_joined = " " not in cell and len(words) > 1
    for word in words_for((src, tgt)[side], cell):
        is_code = word.isascii() and len(word) <= _LONGEST_CODE
        if not is_code or is_joined or (word.isupper() and not cell.isupper()):
            return side
    return None


def _column(rows: Sequence[Sequence[Any]], number: int) -> list[str]:
    cells = (cells[number] for cells in rows if number < len(cells))
    return [cell for cell in cells if isinstance(cell, str)]


def _is_header(cells: Sequence[str]) -> bool:
    """Return whether the cells of a row are names of columns, such as id, source, zh or Chinese."""
    names = [name for cell in cells if (name := _bare(cell)).casefold() not in _NAMES_OF_NUMBERS]
    # The same words in other marks, such as Date/Time and Date / Time, are a word and its translation.
    if len({_plain(name) for name in names}) != len(names) or len(names) < 2:
        return False
    are_names = all(_is_name(name) for name in names) and not _is_word_and_translation(names)
    return are_names or _are_numbered(names)


def _are_numbered(names: Sequence[str]) -> bool:
    """Return whether names are one word for columns and different numbers, such as s1 and s2."""
    found = [one for name in names if (one := _NUMBERED.fullmatch(name)) is not None]
    stems = {one.groups() for one in found}
    # iPhone 11 and iPhone 12 are text.
    is_of_columns = all(_plain(stem) in _NUMBERED_COLUMNS for stem, _ in stems)
    return len(found) == len(names) and len(stems) == 1 and is_of_columns


def _plain(name: str) -> str:
    """Return the letters and digits of a name, in lower case."""
    return "".join(filter(str.isalnum, name.casefold()))


def _is_word_and_translation(names: Sequence[str]) -> bool:
    """Return whether names are one word in two languages, such as Chinese and 中文, or text and 文本."""
    languages = [found.family for name in names if (found := find_language(name)) is not None]
    if len(languages) == 2 and len(set(languages)) == 1:
        return True
    scripts = {name.isascii() for name in names}
    words = {name.casefold() for name in names}
    if len(words) == 2 and (words <= SOURCE_WORDS or words <= {*TARGET_WORDS, "translation"}):
        return True
    are_sides = words & SOURCE_WORDS and words & TARGET_WORDS
    return len(words) == len(scripts) == 2 and words <= COLUMN_WORDS and not are_sides


def _is_shorter(first: Sequence[str], others: Sequence[Sequence[str]]) -> bool:
    """Return whether a row is a word on each side, or has a word for a side, and nearly no other is."""
    sides = list(zip(*others, strict=True))
    spaced = [has_spaces(written_in(side[:_ROWS_TO_COMPARE])) for side in sides]
    if any(
        median(_num_words(cell, is_spaced=is_spaced) for cell in side) < _FEWEST_WORDS
        for side, is_spaced in zip(sides, spaced, strict=True)
    ):
        return False

    def is_of_words(row: Sequence[str]) -> bool:
        return all(
            _num_words(cell, is_spaced=is_spaced) <= (1 if is_spaced else _LONGEST_WORD)
            for cell, is_spaced in zip(row, spaced, strict=True)
        )

    names_side = any(_bare(cell).casefold() in SOURCE_WORDS | TARGET_WORDS for cell in first)
    alike = sum(map(is_of_words, others))
    return (names_side or is_of_words(first)) and alike <= _WORDS_SHARE * len(others)


def _num_words(cell: str, *, is_spaced: bool) -> int:
    """Return how many words, which are no numbers, are in a cell; where they are not set apart, characters."""
    words = cell.split() if is_spaced else _WORD_OR_CHARACTER.findall(cell)
    return sum(any(map(str.isalpha, word)) for word in words)


def _is_ended(cell: str) -> bool:
    """Return whether a cell ends as a sentence does."""
    return cell.rstrip(_AFTER_AN_END).endswith(_ENDS)


def _may_be_name(cell: str) -> bool:
    cell = cell.strip()
    is_like_one = re.fullmatch(rf"(?!\d){_OF_NAMES}+", cell) is not None
    return 0 < len(cell) <= _LONGEST_NAME and is_like_one and not _is_ended(cell)


def _bare(cell: str) -> str:
    """Return the name in a cell of a header, without quotes and marks around it, or the ending of a file."""
    name = cell.strip(_AROUND_A_NAME)
    return name[: -len(".txt")] if name.casefold().endswith(".txt") else name


def _is_name(cell: str) -> bool:
    cell = cell.casefold()
    words = re.findall(r"[^\W\d_]+", cell)
    is_of_words = bool(words) and re.fullmatch(rf"{_OF_NAMES}+", cell) is not None
    is_of_words &= not _is_ended(cell)
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
                advice = "; give it the ending .csv if commas do" if "," in line else ""
                raise DataError(
                    f"{path} line {number} has one column, expected two separated by a tab{advice}"
                )
            yield f"line {number}", cells

    return rows


def _csv_rows(path: Path) -> Callable[[], Iterator[_Row]]:
    """Return what gives the cells of each row; line ends within a cell become spaces."""
    text = read_text(path)
    if not text.strip():
        raise DataError(f"{path} is empty, expected one pair a line")
    form = _form(text)
    delimiter = str(form["delimiter"])
    # Its line stays, so that lines are counted as in the file.
    text = _DECLARED.sub("\n", text, count=1) if _DECLARED.match(text) else text

    def rows() -> Iterator[_Row]:
        width, first = 0, 0
        for number, cells in _parsed_rows(path, text, form):
            if not any(cell.strip() for cell in cells):
                continue
            if len(cells) < 2:
                raise DataError(f"{path} line {number} has one column, expected two, as in a,b")
            width, first = width or len(cells), first or number
            if len(cells) != width:
                raise DataError(
                    f"{path} line {number} has {len(cells)} columns, but line {first} has {width}; "
                    f'text with a {delimiter!r} must stand in double quotes, "..."'
                )
            yield f"line {number}", [cell.replace("\n", " ") for cell in cells]

    return rows


def _parsed_rows(path: Path, text: str, form: _Form) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(_lines_of(text), **form, strict=True)
    while True:
        number = reader.line_num + 1
        try:
            with _reading_long_cells():
                cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            is_open = "end of data" in str(error)
            found = "a quote opens and never closes" if is_open else f"not CSV: {error}"
            raise _wrong_quote(path, number, found) from error
        longest = max(cells, key=len, default="")
        if len(longest) > _LONGEST_CELL and "\n" in longest:
            lines = longest.count("\n") + 1
            found = f"a quote opens a cell of {len(longest):,} characters in {lines:,} lines"
            raise _wrong_quote(path, number, found)
        yield number, cells


def _wrong_quote(path: Path, number: int, found: str) -> DataError:
    return DataError(f'{path} line {number}: {found}; a quote within quotes is written twice, ""')


@contextmanager
def _reading_long_cells() -> Iterator[None]:
    """Let `csv` read cells of any length; its limit is one for the whole process."""
    before = csv.field_size_limit(_LONGEST_READ)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _lines_of(text: str) -> io.StringIO:
    return io.StringIO(text.replace("\r\n", "\n"), newline="")


def _form(text: str) -> _Form:
    """Return what separates the columns, and whether cells begin after spaces.

    It is what gives the first rows equally many columns, or a comma. Of several that do, one after
    which no spaces come is more likely: commas within sentences have them.
    """
    declared = _DECLARED.match(text)
    if declared:
        return _Form(delimiter=declared[1], skipinitialspace=False)
    for skips in (False, True):
        found = {}
        for delimiter in _DELIMITERS:
            form = _Form(delimiter=delimiter, skipinitialspace=skips)
            reader = csv.reader(_lines_of(text), **form)
            try:
                with _reading_long_cells():
                    rows = [row for row in islice(reader, _ROWS_TO_LOOK_AT) if row]
            except csv.Error:
                continue
            if not skips and any(map(_has_quotes_after_spaces, rows)):
                continue
            if len({len(row) for row in rows}) == 1 and len(rows[0]) > 1:
                found[delimiter] = form, sum(_is_prose(row) for row in rows)
        if found:
            return min(found.values(), key=lambda one: one[1])[0]
    return _Form(delimiter=",", skipinitialspace=False)


def _has_quotes_after_spaces(row: list[str]) -> bool:
    """Return whether quotes around a cell were taken for text, since spaces stand before them."""
    return any(cell[:1] == " " and _IN_QUOTES.fullmatch(cell.strip(" ")) for cell in row[1:])


def _is_prose(row: list[str]) -> bool:
    """Return whether a row looks like a sentence that was cut at its commas."""
    return any(cell.startswith(" ") for cell in row[1:])


# --- JSON ---


_JSON_NAMES = {dict: "object", str: "string", int: "number", float: "number"}


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
            f"{path} holds one JSON {_JSON_NAMES.get(type(items), 'value')}, expected a list of pairs, such as "
            '[{"en": "...", "zh": "..."}]; write it so, or one pair a line in a file that ends in .jsonl'
        )
    return [(f"item {number}", item) for number, item in enumerate(items)]


def _parse(text: str, path: Path, first_line: int) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        line = first_line + error.lineno - 1
        raise DataError(
            f"{path} is not JSON at line {line}, column {error.colno}: {error.msg}; {_other(path)}"
        ) from error
    except RecursionError as error:
        raise DataError(f"{path} is nested too deeply, expected pairs of text") from error
    except ValueError as error:  # of a number that Python takes for an attack
        raise DataError(
            f"{path} line {first_line} or a later one holds a number of thousands of digits, expected "
            "pairs of text; leave it out"
        ) from error


def _other(path: Path) -> str:
    """Return when a file would have the other ending of JSON."""
    if _ending(path) == ".json":
        return "give it the ending .jsonl if it has one pair a line"
    return "expected one pair a line; give it the ending .json if it is one list"


def _of_json(
    path: Path,
    items: list[tuple[str, Any]],
    *,
    src: str,
    tgt: str,
    columns: tuple[str, ...] | None,
) -> Table:
    place, first = items[0] if items else ("", None)
    inner, names = None, None
    if isinstance(first, dict):
        inner = _inner_key(first, src=src, tgt=tgt)
        names = list(_keyed(first, inner))
        at = _find_sides(f"{path} {place}", names, src=src, tgt=tgt, kind="keys")
    else:
        if columns is None:
            _check_unnamed(path, src=src, tgt=tgt)
        columns = columns or (src, tgt)
        at = columns.index(src), columns.index(tgt)

    def rows() -> Iterator[_Row]:
        for place, item in items:
            if isinstance(item, dict) and names is not None:
                keyed = _keyed(item, inner)
                yield place, [keyed.get(name) for name in names]
            elif isinstance(item, list) and names is None:
                if item and all(isinstance(part, dict | list) for part in item):
                    raise DataError(
                        f'{path} {place} is a list of pairs, expected one, as in ["...", "..."]; '
                        f"{_other(path)}"
                    )
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
        num_columns=len(names or columns or ()),
    )


def _inner_key(item: dict[str, Any], *, src: str, tgt: str) -> str | None:
    """Return the key under which data sets keep the object with the sides; None: it is the item."""
    inner = {key: value for key, value in item.items() if isinstance(value, dict)}
    if "translation" in inner:
        return "translation"
    if _sides_in(list(item), src=src, tgt=tgt, by_words=True) is not None:
        return None
    found = [
        key
        for key, value in inner.items()
        if _sides_in(list(value), src=src, tgt=tgt, by_words=True) is not None
    ]
    return found[0] if len(found) == 1 else None


def _keyed(item: dict[str, Any], inner: str | None) -> dict[str, Any]:
    """Return the object that holds the sides."""
    nested = None if inner is None else item.get(inner)
    return nested if isinstance(nested, dict) else item


def _in_single_quotes(cell: str) -> bool:
    return len(cell) > 1 and cell.startswith("'") and cell.endswith("'")


def _is_empty(cell: Any) -> bool:
    return cell is None or (isinstance(cell, str) and not cell.strip())


def _json_kind(value: Any) -> str:
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, int | float):
        return "a number"
    return "a list" if isinstance(value, list) else "an object"
