"""Decide from what a column holds whether it is text that can be translated."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from collections.abc import Sequence


# Fewer rows say nothing.
_FEWEST_ROWS = 5
# Rows that are looked at, evenly over the column.
_MOST_ROWS = 20_000

# Sentences may hold numbers and addresses, repeat, or stay as they are; columns of these hold little
# else.
_ODD_SHARE = 0.8
_SAME_SHARE = 0.9
_EMPTY_SHARE = 0.5

# Values that come so often in so many rows are names, of classes or of speakers, if they are few or
# all are short.
_FEWEST_LABELLED, _ROWS_OF_A_LABEL = 40, 20
_MOST_LABELS = 10
_WORDS_OF_A_LABEL, _LONGEST_LABEL = 3, 30

_MONTH = r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?"
_CLOCK = r"\d\d?:\d\d(?::\d\d(?:[.,]\d+)?)?(?: ?[ap]m)?"
_ZONE = r"(?: ?(?:z|utc|gmt|[+-]\d\d:?\d\d))?"
_DAY = (
    r"(?:\d{4}[-/.]\d\d?[-/.]\d\d?|\d\d?[-/.]\d\d?[-/.]\d{2,4}|\d{4}年\d\d?月\d\d?日|"
    rf"\d\d?[. -]+{_MONTH}[ -]+\d{{2,4}}|{_MONTH} \d\d?,? \d{{4}})"
)
_WEEKDAY = r"(?:(?:mon|tue|wed|thu|fri|sat|sun)[a-z]*,? )?"

_KINDS = {
    "addresses": re.compile(r"(?:[a-z][a-z0-9+.-]*://|www\.)\S+|[^\s@]+@[^\s@]+\.[a-z]+", re.I),
    "times or dates": re.compile(
        rf"{_WEEKDAY}{_DAY}(?:[t ]{_CLOCK}{_ZONE})?|{_CLOCK}{_ZONE}", re.I
    ),
    "numbers": re.compile(r"[^\w\s]*\d(?:[\d\s]|[^\w\s])*"),
    "names of files": re.compile(
        r"[\w./\\-]+\.(?:wav|mp3|flac|ogg|jpe?g|png|txt|json|xml|html?|pdf)"
    ),
    "keys": re.compile(r"(?=\S*\d)[a-z0-9]+(?:[_\-:./#|]+[a-z0-9]+)*", re.I | re.A),
    "no letters": re.compile(r"[\W_]+"),
}


def why_no_text(cells: Sequence[str]) -> str | None:
    """Return what a column holds instead of sentences, None if it may be sentences.

    Args:
        cells: of the column, one a row.
    """
    cells = _looked_at(cells)
    full = [cell.strip() for cell in cells if cell.strip()]
    if len(cells) < _FEWEST_ROWS:
        return None
    if len(full) < _EMPTY_SHARE * len(cells):
        return f"is empty in {len(cells) - len(full)} of {len(cells)} rows"
    if len(full) < _FEWEST_ROWS:
        return None
    counts = Counter(full)
    value, count = counts.most_common(1)[0]
    if count > _SAME_SHARE * len(full):
        return f"holds the same in {count} of {len(full)} rows, {quoted([value])}"
    odd = [(kind, cell) for cell in full if (kind := _kind(cell)) is not None]
    if len(odd) >= _ODD_SHARE * len(full):
        kind = Counter(kind for kind, _ in odd).most_common(1)[0][0]
        examples = [cell for found, cell in odd if found == kind]
        return f"holds {kind}, such as {quoted(examples[:3])}"
    if len(full) >= max(_FEWEST_LABELLED, _ROWS_OF_A_LABEL * len(counts)) and (
        len(counts) <= _MOST_LABELS or all(map(_is_short, counts))
    ):
        return f"holds only {len(counts)} values in {len(full)} rows, {quoted(list(counts)[:3])}"
    return None


def why_no_pair(src: Sequence[str], tgt: Sequence[str]) -> str | None:
    """Return why the sides are no translations of each other, None if they may be.

    Args:
        src: source side, one sentence a row.
        tgt: target side, as many.
    """
    rows = [
        (a.strip(), b.strip())
        for a, b in zip(_looked_at(src), _looked_at(tgt), strict=True)
        if a.strip() and b.strip()
    ]
    alike = [a for a, b in rows if a == b]
    if len(rows) < _FEWEST_ROWS or len(alike) <= _SAME_SHARE * len(rows):
        return None
    return f"are the same text in {len(alike)} of {len(rows)} rows, such as {quoted(alike[:1])}"


def _looked_at(cells: Sequence[str]) -> Sequence[str]:
    return cells[:: -(-len(cells) // _MOST_ROWS) or 1]


def _is_short(value: str) -> bool:
    return len(value) <= _LONGEST_LABEL and len(value.split()) <= _WORDS_OF_A_LABEL


def _kind(cell: str) -> str | None:
    return next((kind for kind, form in _KINDS.items() if form.fullmatch(cell)), None)


def quoted(cells: Sequence[str]) -> str:
    """Return the beginnings of some cells in quotes."""
    return ", ".join(repr(cell if len(cell) <= 40 else f"{cell[:37]}...") for cell in cells)
