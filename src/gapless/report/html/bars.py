"""Bars of parts on one axis: where the time of a step went."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gapless.report.html.figures import milliseconds, percent, with_unit
from gapless.report.html.markup import Html, element, joined


if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of a bar.

    Attributes:
        name: of it.
        kind: decides its colour: a kind of spans, "idle" or "other".
        ms: its length.
    """

    name: str
    kind: str
    ms: float


@dataclass(frozen=True, kw_only=True)
class Bar:
    """Parts one after the other.

    Attributes:
        title: such as "host".
        parts: from left to right.
    """

    title: str
    parts: Sequence[Part]

    @property
    def ms(self) -> float:
        """Length of all parts."""
        return sum(part.ms for part in self.parts)


def bars(found: Sequence[Bar]) -> Html:
    """Return bars under each other on one axis, each with its figures under it."""
    longest = max((bar.ms for bar in found), default=0.0) or 1.0
    return element("div", *(_bar(bar, longest) for bar in found), class_="bars")


def _bar(bar: Bar, longest: float) -> Html:
    drawn, left = [], 0.0
    for part in bar.parts:
        width = 100.0 * part.ms / longest
        drawn.append(_piece(part.kind, left, width))
        if part.kind == "idle":
            drawn.append(_piece("hatch", left, width, fill="url(#hatch)"))
        left += width
    label = f"{bar.title}: " + ", ".join(
        f"{part.name} {with_unit(milliseconds(part.ms), 'ms')}" for part in bar.parts
    )
    picture = element("svg", _HATCH, *drawn, role="img", aria_label=label, class_="bar")
    legend = element("ul", *(_entry(part, bar.ms) for part in bar.parts), class_="legend")
    total = element("span", with_unit(milliseconds(bar.ms), "ms"), class_="total")
    title = element("h3", bar.title, " ", total)
    return element("div", title, picture, legend)


def _piece(kind: str, left: float, width: float, *, fill: str | None = None) -> Html:
    place = {"x": f"{left:.3f}%", "y": "0", "width": f"{width:.3f}%", "height": "100%"}
    return element("rect", class_=f"part {kind}", fill=fill, **place)


def _entry(part: Part, total: float) -> Html:
    share = percent(part.ms / total if total else 0.0)
    return element(
        "li",
        element("span", class_=f"swatch {part.kind}", aria_hidden="true"),
        element("span", part.name),
        " ",
        element("b", with_unit(milliseconds(part.ms), "ms")),
        " ",
        element("span", share, class_="remark"),
    )


# Diagonal stripes: what is idle is told apart by more than its colour.
_HATCH = Html(
    '<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" '
    'patternTransform="rotate(45)"><rect class="stripe" width="2" height="6"></rect></pattern></defs>'
)


def swatches(kinds: Sequence[tuple[str, str]]) -> Html:
    """Return a legend of colours: kind and name."""
    entries = joined(
        element("li", element("span", class_=f"swatch {kind}", aria_hidden="true"), name)
        for kind, name in kinds
    )
    return element("ul", entries, class_="legend")
