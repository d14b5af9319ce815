"""A whole page: what it says, how it looks, and what its script draws, in one file."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from gapless.report.html.markup import Html, element, joined


if TYPE_CHECKING:
    from collections.abc import Sequence

    from gapless.report.html.markup import Child


# Nothing may be loaded or sent, whatever a page holds.
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
)


def page(title: str, *sections: Child, data: dict[str, Any] | None = None) -> str:
    """Return a page as the text of an HTML file.

    Args:
        title: of the window.
        sections: what stands on it.
        data: what its script draws.
    """
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("link", rel="icon", href="data:,"),
        element("title", title),
        element("style", Html(_asset("page.css"))),
    )
    body = element(
        "body",
        element("main", *sections),
        element("script", _json(data or {}), type="application/json", id="data"),
        element("script", Html(_asset("page.js"))),
    )
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def section(title: str, *children: Child, about: Child = None, name: str = "") -> Html:
    """Return a part of a page under a heading.

    Args:
        title: of the part.
        children: what stands in it.
        about: a sentence under the heading.
        name: of the part, for links and tests; empty: its title in small letters.
    """
    key = name or title.lower().replace(" ", "-")
    return element(
        "section",
        element("h2", title, id=f"{key}-title"),
        None if about is None else element("p", about, class_="about"),
        *children,
        id=key,
        aria_labelledby=f"{key}-title",
    )


def facts(pairs: Sequence[tuple[str, str]]) -> Html:
    """Return a line of small facts, each under its name."""
    return element(
        "dl",
        *(
            element("div", element("dt", name), element("dd", value))
            for name, value in pairs
            if value
        ),
        class_="facts",
    )


def tiles(figures: Sequence[tuple[str, str, str]]) -> Html:
    """Return the figures that matter most, large: name, figure with its unit, and a remark."""
    return element(
        "dl",
        *(
            element(
                "div",
                element("dt", name),
                element("dd", value, class_="figure"),
                element("dd", remark, class_="remark") if remark else None,
            )
            for name, value, remark in figures
        ),
        class_="tiles",
    )


def header(kind: str, title: Child, *children: Child) -> Html:
    """Return the head of a page.

    Args:
        kind: of report, such as "gapless doctor".
        title: what it is of.
        children: what stands under the title.
    """
    return element("header", element("p", kind, class_="kind"), element("h1", title), *children)


def bullet_list(lines: Sequence[str]) -> Html:
    """Return lines as a list."""
    return element("ul", joined(element("li", line) for line in lines))


def _asset(name: str) -> str:
    return files("gapless.report.html").joinpath(name).read_text(encoding="utf-8")


def _json(data: dict[str, Any]) -> Html:
    # A "<" could end the element that holds it.
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return Html(text.replace("<", "\\u003c"))
