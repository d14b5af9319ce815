"""Bars of parts on one axis: where the time of a step went."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gapless.report.figures import milliseconds, share
from gapless.report.html.page import Html, element, legend, swatch


if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of a bar.

    Attributes:
        name: of it.
        colour: its class in the style sheet, such as "wait" or "idle".
        ms: its length.
    """

    name: str
    colour: str
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


def bars(found: Sequence[Bar], *, has_figures: bool = True) -> Html:
    """Return bars under each other on one axis.

    Args:
        found: the bars; parts of no length are left out.
        has_figures: whether each bar has the figures of its parts under it; else the colours are named
            once under all bars, for where a table has the figures.
    """
    longest = max((bar.ms for bar in found), default=0.0) or 1.0
    drawn = [_bar(bar, longest, has_figures=has_figures) for bar in found]
    names = {part.name: part for bar in found for part in bar.parts if part.ms > 0.0}
    names_of_colours = None if has_figures else legend(_name(part) for part in names.values())
    return element("div", _PATTERN, *drawn, names_of_colours, class_="bars")


def _bar(bar: Bar, longest: float, *, has_figures: bool) -> Html:
    drawn, left = [], 0.0
    parts = [part for part in bar.parts if part.ms > 0.0]
    for part in parts:
        width = 100.0 * part.ms / longest
        drawn.append(_piece(part.colour, left, width))
        if part.colour == "idle":
            drawn.append(_piece("hatch", left, width, fill="url(#hatch)"))
        left += width
    said = ", ".join(f"{part.name} {milliseconds(part.ms)} ms" for part in parts)
    picture = element(
        "svg", element("title", f"{bar.title}: {said}"), *drawn, role="img", class_="bar"
    )
    total = element("span", f"{milliseconds(bar.ms)} ms", class_="remark")
    figures = legend(_figures(part, bar.ms) for part in parts) if has_figures else None
    return element("div", element("h3", bar.title, " ", total), picture, figures)


def _piece(colour: str, left: float, width: float, *, fill: str | None = None) -> Html:
    place = {"x": f"{left:.3f}%", "y": "0", "width": f"{width:.3f}%", "height": "100%"}
    return element("rect", class_=f"part {colour}", fill=fill, **place)


def _figures(part: Part, total: float) -> Html:
    figure = element("b", f"{milliseconds(part.ms)} ms")
    return element("li", swatch(part.colour), part.name, " ", figure, " ", share(part.ms / total))


def _name(part: Part) -> Html:
    return element("li", swatch(part.colour), part.name)


# Diagonal stripes: idle time is recognised without its colour.
_PATTERN = Html(
    '<svg class="unseen" aria-hidden="true"><pattern id="hatch" width="6" height="6" '
    'patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<rect class="stripe" width="2" height="6"></rect></pattern></svg>'
)
