"""Timelines in few bytes, for the script of a page to unpack and draw.

A span is three whole numbers: its start after the start of the span before, its length, both in
tenths of a microsecond, and the place of its label in a list. Numbers are written in groups of seven
bits, as many as they need, deflated, and turned into text.
"""

from __future__ import annotations

import base64
import zlib
from bisect import bisect_left
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias


if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gapless.records.timeline import Gap, Span, Timeline


# More would be slow to draw; what is left out is said on the page.
MOST_SPANS = 900_000

# Names of kernels hold the types that they are made for, in pages of text.
_LONGEST_NAME = 160

_PER_US = 10

# Name, kind, and the row of a table that the span belongs to; None if to none.
_Label: TypeAlias = tuple[str, str, int | None]


def packed(timeline: Timeline, *, rows: Sequence[int | None] | None = None) -> dict[str, Any]:
    """Return a timeline as plain values for JSON.

    Args:
        timeline: what to draw.
        rows: for each finding of its session the row of the page's table, None if it has none; None:
            the same numbers.
    """
    labels: dict[_Label, int] = {}

    def row_of(finding: int | None) -> int | None:
        if finding is None or rows is None:
            return finding
        return rows[finding] if finding < len(rows) else None

    def of_span(span: Span) -> _Label:
        return span.name[:_LONGEST_NAME], span.kind, row_of(span.finding)

    def of_gap(gap: Gap) -> _Label:
        return gap.cause, "gap", row_of(gap.finding)

    lanes = [
        {
            "name": lane.name,
            "device": lane.is_device,
            "spans": _pack(
                ((span.start_us, span.end_us, of_span(span)) for span in lane.spans), labels
            ),
        }
        for lane in timeline.lanes
    ]
    gaps = _pack(((gap.start_us, gap.end_us, of_gap(gap)) for gap in timeline.gaps), labels)
    return {
        "title": timeline.title,
        "end": round(timeline.end_us, 1),
        "steps": [round(start, 1) for start in timeline.step_starts_us],
        "lanes": lanes,
        "gaps": gaps,
        "labels": [list(label) for label in labels],
    }


def first_steps(timeline: Timeline, *, most_spans: int = MOST_SPANS) -> Timeline:
    """Return as many whole steps from the beginning as have at most so many spans and gaps.

    At least one step is kept; a timeline without steps is kept whole.
    """
    starts = sorted(
        [span.start_us for lane in timeline.lanes for span in lane.spans]
        + [gap.start_us for gap in timeline.gaps]
    )
    if len(starts) <= most_spans or len(timeline.step_starts_us) < 2:
        return timeline
    limit = starts[most_spans]
    steps = timeline.step_starts_us
    end_us = steps[max(1, bisect_left(steps, limit) - 1)]
    return replace(
        timeline,
        lanes=tuple(
            replace(lane, spans=tuple(span for span in lane.spans if span.start_us < end_us))
            for lane in timeline.lanes
        ),
        gaps=tuple(gap for gap in timeline.gaps if gap.start_us < end_us),
        step_starts_us=tuple(start for start in steps if start < end_us),
        end_us=end_us,
    )


def _pack(spans: Iterable[tuple[float, float, _Label]], labels: dict[_Label, int]) -> str:
    numbers, former = bytearray(), 0
    for start_us, end_us, label in sorted(spans, key=lambda span: span[:2]):
        start = max(0, round(start_us * _PER_US))
        length = max(0, round(end_us * _PER_US) - start)
        for number in (start - former, length, labels.setdefault(label, len(labels))):
            rest = number
            while rest > 127:
                numbers.append(rest & 127 | 128)
                rest >>= 7
            numbers.append(rest)
        former = start
    return base64.b64encode(zlib.compress(bytes(numbers), 9)).decode()
