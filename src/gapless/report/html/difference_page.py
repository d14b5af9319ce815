"""The page of `gapless doctor --diff`: two sessions, such as before and after a mend."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gapless.report.difference_text import verdict_of
from gapless.report.html.bars import bars
from gapless.report.html.figures import MISSING, change, count, milliseconds, percent, with_unit
from gapless.report.html.markup import Html, element, joined
from gapless.report.html.packed_timeline import packed
from gapless.report.html.page import header, page, section, tiles
from gapless.report.html.session_page import (
    label_of,
    notes_section,
    place_of,
    session_facts,
    step_bars,
)
from gapless.report.html.table import Cell, Column, Row, table, text_cell
from gapless.report.html.timeline_widget import cut_to_fit, timelines_widget


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gapless.records.finding import Finding, Session, StepTimes
    from gapless.records.session_difference import SessionDifference
    from gapless.records.timeline import Timeline


_COLUMNS = (
    Column(title="code"),
    Column(title="what became of it"),
    Column(title="line"),
    Column(title="call"),
    Column(title="exposed", unit="ms before", is_number=True),
    Column(title="exposed", unit="ms after", is_number=True),
    Column(title="waited", unit="ms before", is_number=True),
    Column(title="waited", unit="ms after", is_number=True),
    Column(title="a step", unit="before", is_number=True),
    Column(title="a step", unit="after", is_number=True),
)


@dataclass(frozen=True, kw_only=True)
class _Fate:
    """A finding of one session or of both."""

    word: str
    before: Finding | None
    after: Finding | None

    @property
    def shown(self) -> Finding:
        found = self.after or self.before
        assert found is not None
        return found


def difference_page(difference: SessionDifference) -> str:
    """Return what changed between two sessions as a page for a browser: one file that loads nothing.

    Args:
        difference: of the two; their timelines are drawn under each other on one axis.
    """
    sessions = {"before": difference.before, "after": difference.after}
    fates = _fates(difference)
    whole = [
        replace(session.timeline, title=name)
        for name, session in sessions.items()
        if session.timeline is not None
    ]
    drawn, cut = cut_to_fit(whole)
    name = " ".join(difference.after.command)
    return page(
        f"gapless doctor, before and after: {name}",
        header(
            "gapless doctor, before and after",
            element("code", name),
            element("p", verdict_of(difference), class_="verdict"),
            *(_run(name, session) for name, session in sessions.items()),
        ),
        _times(difference.before.steps, difference.after.steps),
        _timelines(drawn),
        _findings(fates),
        notes_section([*_notes(sessions), *cut]),
        data={
            "timelines": [
                packed(timeline, rows=_rows(sessions[timeline.title].findings, fates))
                for timeline in drawn
            ],
            "rows": [label_of(fate.shown) for fate in fates],
        },
    )


def _run(name: str, session: Session) -> Html:
    return joined([element("h3", name), session_facts(session)])


def _notes(sessions: dict[str, Session]) -> list[str]:
    return [f"{name}: {note}" for name, session in sessions.items() for note in session.notes]


# --- figures of a step ---


def _times(before: StepTimes | None, after: StepTimes | None) -> Html | None:
    if before is None or after is None:
        return None
    drawn = [*step_bars(before, title="before"), *step_bars(after, title="after")]
    return joined(
        [
            tiles(_tiles(before, after)),
            section("Where a step's time goes", bars(drawn), name="step"),
        ]
    )


def _tiles(before: StepTimes, after: StepTimes) -> list[tuple[str, str, str]]:
    def tile(
        name: str, value: Callable[[StepTimes], float | None], text: Callable[[float | None], str]
    ) -> tuple[str, str, str]:
        was, now = value(before), value(after)
        by = "" if text is percent else f", {change(was, now)}"
        return name, text(now), f"before {text(was)}{by}"

    def in_ms(value: float | None) -> str:
        return with_unit(milliseconds(value), "ms")

    found = [
        tile("a step", lambda steps: steps.wall_ms.median, in_ms),
        tile("device busy", lambda steps: steps.busy_share, percent),
        tile("device idle", lambda steps: steps.idle_ms, in_ms),
        tile("host waits", lambda steps: steps.wait_ms, in_ms),
        tile("launches", lambda steps: steps.num_launches, count),
    ]
    return [one for one in found if one[1] != MISSING]


def _timelines(drawn: Sequence[Timeline]) -> Html | None:
    if not drawn:
        return None
    return section("Timelines", timelines_widget(drawn), about="Both runs on one axis.")


# --- findings ---


def _fates(difference: SessionDifference) -> list[_Fate]:
    """Return what became of every finding; the same in the order of the first session, last."""
    changed = {id(before) for before, _ in difference.changed}
    kept = [
        _Fate(word="changed" if id(before) in changed else "as before", before=before, after=after)
        for before, after in difference.kept
    ]
    return [
        *(_Fate(word="gone", before=one, after=None) for one in difference.gone),
        *(_Fate(word="new", before=None, after=one) for one in difference.new),
        *sorted(kept, key=lambda fate: fate.word != "changed"),
    ]


def _rows(findings: Sequence[Finding], fates: Sequence[_Fate]) -> list[int | None]:
    """Return for each finding of a session the number of its row."""
    numbers = {
        id(finding): number
        for number, fate in enumerate(fates)
        for finding in (fate.before, fate.after)
        if finding is not None
    }
    return [numbers.get(id(finding)) for finding in findings]


def _findings(fates: Sequence[_Fate]) -> Html:
    if not fates:
        return section("Findings", element("p", "Neither run has any."))
    rows = [_row(fate, number) for number, fate in enumerate(fates)]
    return section(
        "Findings",
        table("Findings", _COLUMNS, rows),
        about="Times are those of a step. Choose a code to see its spans in the timelines.",
    )


def _row(fate: _Fate, number: int) -> Row:
    finding = fate.shown

    def cell(name: str, of: Finding | None, text: Callable[[float | None], str]) -> Cell:
        value = None if of is None else getattr(of, name)
        return Cell(text=text(value), value=value)

    figures = [
        cell(name, of, text)
        for name, text in (("exposed_ms", milliseconds), ("waited_ms", milliseconds), ("per_step", count))
        for of in (fate.before, fate.after)
    ]  # fmt: skip
    source = "" if finding.site is None else finding.site.source
    details = [
        element("p", element("code", source, class_="source")) if source else None,
        element("p", finding.cause),
    ]
    return Row(
        cells=[
            text_cell(finding.code),
            text_cell(fate.word),
            Cell(text=element("code", place_of(finding)), value=place_of(finding)),
            Cell(text=element("code", finding.call), value=finding.call),
            *figures,
        ],
        details=joined(details),
        number=number,
        name=label_of(finding),
    )
