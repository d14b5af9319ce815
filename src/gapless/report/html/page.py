"""A whole page in one file, and what every page is made of: elements of HTML, and parts under headings."""

from __future__ import annotations

from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, TypeAlias


if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


# --- elements ---


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


# Text, HTML, or nothing.
Child: TypeAlias = str | None

# Elements that have no end; those of drawings have one.
_EMPTY = {"link", "meta"}


def element(name: str, /, *children: Child, **attributes: object) -> Html:
    """Return an element with its children.

    Args:
        name: of the element.
        children: text, which is escaped, or HTML; None is left out.
        attributes: by name; `class_` is `class`, and `_` in a name is `-`. True is an attribute
            without a value; None and False leave it out.
    """
    parts = [name]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        attribute = key.rstrip("_").replace("_", "-")
        parts.append(attribute if value is True else f'{attribute}="{escape(str(value))}"')
    start = f"<{' '.join(parts)}>"
    if name in _EMPTY:
        return Html(start)
    return Html(f"{start}{joined(children)}</{name}>")


def joined(children: Iterable[Child]) -> Html:
    """Return children one after the other, text escaped."""
    return Html(
        "".join(
            child if isinstance(child, Html) else escape(child)
            for child in children
            if child is not None
        )
    )


# --- the page ---

# Nothing may be loaded, sent or run, whatever a page holds.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def page(
    kind: str,
    title: str,
    *sections: Child,
    verdict: str = "",
    facts: Sequence[tuple[str, str]] = (),
) -> str:
    """Return a page as the text of an HTML file.

    Args:
        kind: of report, such as "gapless doctor".
        title: what it is of, such as the command of a script.
        sections: what stands under the heading; None is left out.
        verdict: the result in a sentence; empty for none.
        facts: names with their values; those without a value are left out.
    """
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("link", rel="icon", href="data:,"),
        element("title", f"{kind}: {title}"),
        element("style", Html(_style())),
    )
    header = element(
        "header",
        element("p", kind, class_="kind"),
        element("h1", title),
        element("p", verdict, class_="verdict") if verdict else None,
        _facts(facts),
    )
    body = element("body", element("main", header, *sections))
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def section(title: str, *children: Child, about: Child = None) -> Html:
    """Return a part of a page under a heading; its id is the title in small letters.

    Args:
        title: of the part.
        children: what stands in it.
        about: a sentence under the heading.
    """
    name = title.lower().replace(" ", "-")
    return element(
        "section",
        element("h2", title, id=f"{name}-title"),
        None if about is None else element("p", about, class_="about"),
        *children,
        id=name,
        aria_labelledby=f"{name}-title",
    )


def notes(title: str, lines: Sequence[str]) -> Html | None:
    """Return sentences as a list under a heading; None where there are none."""
    if not lines:
        return None
    return section(title, element("ul", *(element("li", line) for line in lines)))


def swatch(colour: str) -> Html:
    """Return the colour of a part or curve, before its name in a legend; `colour` is its class."""
    return element("span", class_=f"swatch {colour}", aria_hidden="true")


def legend(entries: Iterable[Html]) -> Html:
    """Return the names of colours, each an `li`."""
    return element("ul", *entries, class_="legend")


def timeline_note(file: str) -> Html:
    """Return where the timeline lies and how it is opened.

    Args:
        file: name of the file for Perfetto; empty where none was written.
    """
    if not file:
        said = "No timeline was written; --perfetto FILE writes one, for ui.perfetto.dev."
        return section("Timeline", element("p", said))
    return section(
        "Timeline",
        element(
            "p",
            "It lies in ",
            element("code", file),
            ". Open ui.perfetto.dev in a browser, choose “Open trace file” and take that file: it is read "
            "in the browser and sent nowhere.",
        ),
    )


def _facts(pairs: Sequence[tuple[str, str]]) -> Html | None:
    found = [
        element("div", element("dt", name), element("dd", value)) for name, value in pairs if value
    ]
    return element("dl", *found) if found else None


def _style() -> str:
    return files("gapless.report.html").joinpath("page.css").read_text(encoding="utf-8")
