"""Tables of a page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from gapless.report.figures import MISSING
from gapless.report.html.page import Child, Html, element


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


_Row = TypeVar("_Row")


@dataclass(frozen=True, kw_only=True)
class Column(Generic[_Row]):
    """A column of a table.

    Attributes:
        title: of it.
        cell: returns what stands in it in a row.
        unit: of its figures, under the title; empty where they have none or carry their own.
        is_number: whether it holds figures, which stand to the right.
    """

    title: str
    cell: Callable[[_Row], Child]
    unit: str = ""
    is_number: bool = True


def table(
    caption: str,
    columns: Sequence[Column[_Row]],
    rows: Sequence[_Row],
    *,
    details: Callable[[_Row], Child] | None = None,
    marked: _Row | None = None,
) -> Html:
    """Return a table in a box of its own, which scrolls where the table is wider than the page.

    Rows that have details become blocks on a narrow page, which show all of their cells. A column in which nothing is known is left out.

    Args:
        caption: what it shows, for who cannot see it.
        columns: of the table.
        rows: in their order.
        details: returns what stands under a row over the whole width.
        marked: the row that stands out, such as that of the recommended plan.
    """
    lines = [[column.cell(row) for column in columns] for row in rows]
    kept = [n for n in range(len(columns)) if any(line[n] != MISSING for line in lines)]
    bodies = [
        element(
            "tbody",
            element("tr", *(_cell(columns[n], line[n], is_first=n == kept[0]) for n in kept)),
            None if details is None else _details(details(row), width=len(kept)),
            class_="marked" if row is marked else None,
        )
        for row, line in zip(rows, lines, strict=True)
    ]
    drawn = element(
        "table",
        element("caption", caption, class_="unseen"),
        element("thead", element("tr", *(_heading(columns[n]) for n in kept))),
        *bodies,
        class_=None if details is None else "blocks",
    )
    return element("div", drawn, class_="scroll", tabindex="0", role="region", aria_label=caption)


def _heading(column: Column[_Row]) -> Html:
    unit = element("span", column.unit, class_="unit") if column.unit else None
    return element("th", column.title, unit, scope="col", class_=_class(column))


def _cell(column: Column[_Row], text: Child, *, is_first: bool) -> Html:
    of = " ".join(filter(None, (column.title, column.unit))) if column.is_number else None
    if is_first:
        return element("th", text, scope="row", class_=_class(column), data_of=of)
    return element("td", text, class_=_class(column), data_of=of)


def _class(column: Column[_Row]) -> str | None:
    return "number" if column.is_number else None


def _details(inside: Child, *, width: int) -> Html:
    return element(
        "tr", element("td", element("div", inside, class_="details"), colspan=width), class_="more"
    )
