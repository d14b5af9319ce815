"""Timelines on one axis, drawn by the page's script."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.report.html.bars import swatches
from gapless.report.html.figures import milliseconds, with_unit
from gapless.report.html.markup import Html, element
from gapless.report.html.packed_timeline import first_steps


if TYPE_CHECKING:
    from collections.abc import Sequence

    from gapless.records.timeline import Gap, Timeline


# What a kind of span is called, in the order of the legend.
KIND_NAMES = {
    "kernel": "kernel",
    "copy": "copy",
    "fill": "fill",
    "step": "step",
    "data": "waits for data",
    "launch": "queues work",
    "wait": "waits for the device",
    "read": "reads a value",
    "host code": "other host code",
    "capture": "captures",
}

_HELP = (
    "Drag or use the arrow keys to move, + and − to zoom, Ctrl and the wheel to zoom where the pointer "
    "is, 0 for the whole"
)
_GAP_HELP = ", N and P for the next and the previous gap"

# Gaps in the list of the longest.
_MOST_GAPS = 8


def cut_to_fit(timelines: Sequence[Timeline]) -> tuple[list[Timeline], list[str]]:
    """Return timelines that a page can hold, and a sentence about each that was cut."""
    kept = [first_steps(timeline) for timeline in timelines]
    notes = [
        f"{name_of(whole)}: only the first {len(part.step_starts_us):,} of "
        f"{len(whole.step_starts_us):,} steps are drawn, as there are too many events."
        for whole, part in zip(timelines, kept, strict=True)
        if part is not whole
    ]
    return kept, notes


def name_of(timeline: Timeline) -> str:
    """Return what a timeline is called in a sentence."""
    return timeline.title or "Timeline"


def timelines_widget(timelines: Sequence[Timeline]) -> Html:
    """Return the place in which the script draws timelines, with its buttons and legend."""
    has_gaps = any(timeline.gaps for timeline in timelines)
    gap_buttons = [
        _button("previous", "‹ gap", "Previous gap"),
        _button("next", "gap ›", "Next gap"),
    ]
    buttons = element(
        "div",
        _button("zoom-in", "+", "Zoom in"),
        _button("zoom-out", "−", "Zoom out"),
        _button("whole", "whole", "Show the whole"),
        _button("left", "←", "Move to earlier"),
        _button("right", "→", "Move to later"),
        *(gap_buttons if has_gaps else []),
        element("output", class_="view"),
        class_="buttons",
        role="toolbar",
        aria_label="Timeline",
    )
    label = "Timeline of " + "; ".join(
        f"{name_of(timeline).lower()}, {len(timeline.step_starts_us)} steps, "
        f"{milliseconds(timeline.end_us / 1000.0)} ms"
        for timeline in timelines
    )
    stage = element(
        "div",
        element(
            "canvas", class_="lanes", tabindex="0", role="application", aria_label=label,
            aria_roledescription="timeline", aria_describedby="timeline-help",
        ),
        element("div", class_="tip", role="tooltip", hidden=True),
        class_="stage",
    )  # fmt: skip
    return element(
        "div",
        buttons,
        element("canvas", class_="overview", aria_hidden="true"),
        stage,
        element(
            "p", f"{_HELP}{_GAP_HELP if has_gaps else ''}.", class_="help", id="timeline-help"
        ),
        swatches(_legend(timelines)),
        element("p", class_="unseen", aria_live="polite", id="said"),
        class_="timelines",
    )


def _button(action: str, text: str, label: str) -> Html:
    return element(
        "button", text, type="button", data_action=action, aria_label=label, title=label
    )


def _legend(timelines: Sequence[Timeline]) -> list[tuple[str, str]]:
    used = {span.kind for timeline in timelines for lane in timeline.lanes for span in lane.spans}
    found = [(kind.replace(" ", "-"), name) for kind, name in KIND_NAMES.items() if kind in used]
    if any(timeline.gaps for timeline in timelines):
        found.append(("idle", "gap: no stream has work"))
    return found


def longest_gaps(timeline: Timeline, *, place: int, labels: Sequence[str]) -> Html | None:
    """Return a list of the longest gaps, each a button that shows it; None where there is none.

    Args:
        timeline: that has them.
        place: of the timeline on its page.
        labels: of the findings, such as "GAP001 train.py:12".
    """
    if not timeline.gaps:
        return None
    longest = sorted(timeline.gaps, key=lambda gap: gap.start_us - gap.end_us)[:_MOST_GAPS]
    entries = [element("li", _gap(gap, timeline, place=place, labels=labels)) for gap in longest]
    return element(
        "div",
        element("h3", f"Longest gaps{f' of {timeline.title}' if timeline.title else ''}"),
        element("ol", *entries, class_="gaps"),
    )


def _gap(gap: Gap, timeline: Timeline, *, place: int, labels: Sequence[str]) -> Html:
    step = sum(start <= gap.start_us for start in timeline.step_starts_us)
    cause = gap.cause
    if gap.finding is not None and gap.finding < len(labels):
        cause = f"{cause}, {labels[gap.finding]}"
    return element(
        "button",
        element("b", with_unit(milliseconds((gap.end_us - gap.start_us) / 1000.0), "ms")),
        f" in step {step}: {cause}" if step else f": {cause}",
        type="button",
        class_="show-gap",
        data_timeline=place,
        data_start=round(gap.start_us, 1),
        data_end=round(gap.end_us, 1),
    )
