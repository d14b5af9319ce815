"""Tables that a reader can sort by every column."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gapless.report.html.markup import Child, Html, element


if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of a table.

    Attributes:
        title: of it.
        unit: of its figures, under the title; empty where they have none or carry their own.
        is_number: whether it holds figures, which stand to the right and sort by size.
        about: what it means, shown to who asks.
    """

    title: str
    unit: str = ""
    is_number: bool = False
    about: str = ""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A cell of a table.

    Attributes:
        text: that is shown.
        value: by which it is sorted; None comes last. A text without one is sorted by itself.
    """

    text: Child
    value: float | str | None = None


def text_cell(text: str) -> Cell:
    """Return a cell that is sorted by its text."""
    return Cell(text=text, value=text)


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of a table.

    Attributes:
        cells: one for each column.
        details: shown under it over the whole width; None: nothing.
        number: by which drawings know it; None where nothing is drawn of it.
        name: of the row where it can be chosen, for who cannot see it.
        is_marked: whether it stands out, such as the plan that is recommended.
    """

    cells: Sequence[Cell]
    details: Html | None = None
    number: int | None = None
    name: str = ""
    is_marked: bool = False


def table(caption: str, columns: Sequence[Column], rows: Sequence[Row]) -> Html:
    """Return a table in a box of its own, which scrolls where the table is wider than the page.

    Args:
        caption: what it shows, for who cannot see it.
        columns: of the table.
        rows: in the order in which they first stand.
    """
    head = element("thead", element("tr", *(_heading(column) for column in columns)))
    drawn = element(
        "table",
        element("caption", caption, class_="unseen"),
        head,
        *(_body(row, columns) for row in rows),
        class_="sortable",
    )
    return element("div", drawn, class_="scroll", tabindex="0", role="region", aria_label=caption)


def _heading(column: Column) -> Html:
    unit = element("span", column.unit, class_="unit") if column.unit else None
    button = element("button", element("span", column.title), unit, type="button")
    return element(
        "th",
        button,
        scope="col",
        class_="number" if column.is_number else None,
        title=column.about or None,
        data_sort="number" if column.is_number else "text",
    )


def _body(row: Row, columns: Sequence[Column]) -> Html:
    cells = []
    for place, (cell, column) in enumerate(zip(row.cells, columns, strict=True)):
        text: Child = cell.text
        if row.number is not None and place == 0:
            text = element(
                "button", text, type="button", class_="pick", aria_pressed="false",
                aria_label=row.name or None,
            )  # fmt: skip
        cells.append(
            element(
                "th" if place == 0 else "td",
                text,
                scope="row" if place == 0 else None,
                class_="number" if column.is_number else None,
                data_value=cell.value,
            )
        )
    details = None
    if row.details is not None:
        inside = element("div", row.details, class_="details")
        details = element("tr", element("td", inside, colspan=len(columns)), class_="more")
    return element(
        "tbody",
        element("tr", *cells),
        details,
        data_row=row.number,
        class_="marked" if row.is_marked else None,
    )
