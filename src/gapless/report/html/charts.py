"""Curves over batches or epochs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gapless.report.html.page import Html, element, legend, swatch


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


# More points than a chart has pixels say nothing more.
_MOST_POINTS = 400

# More dots would hide the line that they lie on.
_MOST_DOTS = 30

# Colour and dashes of the first curves.
_STYLES = ("first", "second", "third")


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Points of a chart.

    Attributes:
        name: of it.
        points: x and y, by rising x.
    """

    name: str
    points: Sequence[tuple[float, float]]


def chart(
    title: str,
    curves: Sequence[Curve],
    *,
    x_name: str,
    text: Callable[[float], str],
    band: Sequence[tuple[float, float, float]] = (),
    x_range: tuple[float, float] | None = None,
    y_least: float | None = None,
) -> Html | None:
    """Return a chart of up to three curves; None where no curve has two points.

    Args:
        title: of the chart, with its unit.
        curves: those without points are left out.
        x_name: what x counts, such as "epoch".
        text: writes a value of y.
        band: x, least and largest value, drawn behind the curves.
        x_range: of the axis; None: that of the points.
        y_least: value that the axis reaches down to at least; None: that of the points.
    """
    drawn = [curve for curve in curves if curve.points]
    if max((len(curve.points) for curve in drawn), default=0) < 2:
        return None
    xs = [x for curve in drawn for x, _ in curve.points] if x_range is None else x_range
    ys = [y for curve in drawn for _, y in curve.points]
    ys += [y for _, least, most in band for y in (least, most)]
    ticks = _ticks(min(ys if y_least is None else (*ys, y_least)), max(ys))
    place = _Place(min(xs), max(xs), ticks[0], ticks[-1])
    lines = [
        element("line", class_="grid", x1=0, x2=100, y1=place.y(tick), y2=place.y(tick))
        for tick in ticks
    ]
    shape = [element("path", class_="band", d=place.band(band))] if len(band) > 1 else []
    paths = []
    for curve, style in zip(drawn, _STYLES, strict=False):
        paths.append(element("path", class_=f"curve {style}", d=place.curve(curve.points)))
        if len(curve.points) <= _MOST_DOTS:
            dots = place.dots(curve.points)
            paths.append(element("path", class_=f"curve {style} dots", d=dots))
    picture = element(
        "svg",
        element("title", _summary(title, drawn, x_name, text)),
        *(*lines, *shape, *paths),
        viewBox="0 0 100 100",
        preserveAspectRatio="none",
        role="img",
    )
    plot = element(
        "div",
        element("div", *(element("span", text(tick)) for tick in reversed(ticks)), class_="ticks"),
        picture,
        _below(min(xs), max(xs), x_name),
        class_="plot",
    )
    names = _names(drawn) if len(drawn) > 1 else None
    return element("figure", element("figcaption", title), plot, names, class_="chart")


def thinned(
    values: Sequence[float | None],
) -> tuple[list[tuple[float, float]], list[tuple[float, float, float]]]:
    """Return the means of neighbouring values and their range, of as many points as can be seen.

    Args:
        values: one a batch, counted from 1; None is left out.

    Returns:
        Points of the mean, and of least and largest value.
    """
    size = max(1, math.ceil(len(values) / _MOST_POINTS))
    means, ranges = [], []
    for first in range(0, len(values), size):
        part = [value for value in values[first : first + size] if value is not None]
        if part:
            x = first + (min(size, len(values) - first) + 1) / 2.0
            means.append((x, sum(part) / len(part)))
            ranges.append((x, min(part), max(part)))
    return means, ranges


@dataclass(frozen=True)
class _Place:
    """Where values stand in a square of 100 by 100."""

    x_least: float
    x_most: float
    y_least: float
    y_most: float

    def x(self, value: float) -> float:
        return round(100.0 * (value - self.x_least) / (self.x_most - self.x_least), 2)

    def y(self, value: float) -> float:
        return round(100.0 * (1.0 - (value - self.y_least) / (self.y_most - self.y_least)), 2)

    def curve(self, points: Sequence[tuple[float, float]]) -> str:
        return "M" + "L".join(f"{self.x(x)} {self.y(y)}" for x, y in points)

    def dots(self, points: Sequence[tuple[float, float]]) -> str:
        # A line of no length has round ends.
        return "".join(f"M{self.x(x)} {self.y(y)}h0" for x, y in points)

    def band(self, points: Sequence[tuple[float, float, float]]) -> str:
        above = [f"{self.x(x)} {self.y(most)}" for x, _, most in points]
        below = [f"{self.x(x)} {self.y(least)}" for x, least, _ in reversed(points)]
        return f"M{'L'.join(above + below)}Z"


def _ticks(least: float, most: float) -> list[float]:
    """Return round values, evenly apart, the first below and the last above all values."""
    size = max(abs(least), abs(most), 1e-6)
    # Values that are all but equal still need an axis with ticks that differ.
    raw = max(most - least, size * 1e-3) / 4.0
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(times * power for times in (1.0, 2.0, 2.5, 5.0, 10.0) if times * power >= raw)
    first, last = math.floor(least / step), math.ceil(most / step)
    return [round(step * n, 10) for n in range(first, max(last, first + 1) + 1)]


def _below(first: float, last: float, x_name: str) -> Html:
    return element(
        "div",
        element("span", f"{first:,.0f}"),
        element("span", x_name),
        element("span", f"{last:,.0f}"),
        class_="below",
    )


def _names(curves: Sequence[Curve]) -> Html:
    entries = [
        element("li", swatch(style), curve.name)
        for curve, style in zip(curves, _STYLES, strict=False)
    ]
    return legend(entries)


def _summary(
    title: str, curves: Sequence[Curve], x_name: str, text: Callable[[float], str]
) -> str:
    parts = [
        f"{curve.name} from {text(curve.points[0][1])} at {x_name} {curve.points[0][0]:,.0f} "
        f"to {text(curve.points[-1][1])} at {x_name} {curve.points[-1][0]:,.0f}"
        for curve in curves
    ]
    return f"{title}: {'; '.join(parts)}"
