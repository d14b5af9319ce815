"""The page of `gapless doctor --diff`: two sessions, such as before and after a mend."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gapless.report.difference_text import PARTS, verdict_of
from gapless.report.figures import MISSING, count, known, milliseconds, ranged, share
from gapless.report.html.bars import bars
from gapless.report.html.page import Html, element, joined, notes, page, section
from gapless.report.html.session_page import finding_lines, line_of, mend, step_bars
from gapless.report.html.table import Column, table
from gapless.report.session_text import versions_of


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gapless.records.finding import Finding, Session, StepTimes
    from gapless.records.session_difference import SessionDifference


def difference_page(difference: SessionDifference) -> str:
    """Return what changed between two sessions as a page for a browser: one file that loads nothing."""
    before, after = difference.before, difference.after
    said = [
        f"{name}: {note}"
        for name, one in (("before", before), ("after", after))
        for note in one.notes
    ]
    return page(
        "gapless doctor, before and after",
        " ".join(after.command),
        *_steps(before.steps, after.steps),
        _findings(_fates(difference)),
        notes("Notes", said),
        verdict=verdict_of(difference),
        facts=_facts(before, after),
    )


def _facts(before: Session, after: Session) -> list[tuple[str, str]]:
    """Return what the runs have in common, and both values of what differs."""

    def value(of: Callable[[Session], str]) -> str:
        was, now = of(before), of(after)
        return now if was == now else f"{was or MISSING} before, {now or MISSING} after"

    return [
        ("script", value(lambda session: " ".join(session.command))),
        ("device", value(lambda session: session.device)),
        ("a step is", value(lambda session: session.step)),
        ("versions", value(versions_of)),
    ]


# --- the time of a step ---


@dataclass(frozen=True)
class _Figure:
    """A figure of a run, before and after."""

    name: str
    before: str
    after: str
    change: str = MISSING


def _steps(before: StepTimes | None, after: StepTimes | None) -> list[Html]:
    if before is None or after is None:
        return []
    columns: list[Column[_Figure]] = [
        Column(title="a step", cell=lambda one: one.name, is_number=False),
        Column(title="before", cell=lambda one: one.before),
        Column(title="after", cell=lambda one: one.after),
        Column(title="change", cell=lambda one: one.change),
    ]
    drawn = [*step_bars(before, title="before"), *step_bars(after, title="after")]
    return [
        section("The step", table("The step", columns, _figures(before, after))),
        section("Where a step's time goes", bars(drawn, has_figures=False)),
    ]


def _figures(before: StepTimes, after: StepTimes) -> list[_Figure]:
    def figure(
        name: str, was: float | None, now: float | None, write: Callable[..., str]
    ) -> _Figure:
        change = MISSING if write is share else _change(was, now)
        return _Figure(name, known(was, write), known(now, write), change)

    def part(name: str, meaning: str) -> _Figure:
        is_time = name.endswith("_ms")
        return figure(
            f"{meaning}, ms" if is_time else meaning,
            getattr(before, name),
            getattr(after, name),
            milliseconds if is_time else count,
        )

    was, now = before.wall_ms, after.wall_ms
    found = [
        _Figure("steps watched", count(before.num_steps), count(after.num_steps)),
        _Figure("time, ms", ranged(was), ranged(now), _change(was.median, now.median)),
        figure("device busy", before.busy_share, after.busy_share, share),
        *(part(name, meaning) for name, meaning in PARTS),
    ]
    return [one for one in found if (one.before, one.after) != (MISSING, MISSING)]


def _change(before: float | None, after: float | None) -> str:
    """Return by how much a figure changed, as a percentage with a sign."""
    if before is None or after is None or not before:
        return MISSING
    return f"{(after / before - 1.0) * 100.0:+.1f} %"


# --- findings ---


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


def _findings(fates: Sequence[_Fate]) -> Html:
    if not fates:
        return section("Findings", element("p", "Neither run has any."))
    columns: list[Column[_Fate]] = [
        Column(title="code", cell=lambda fate: fate.shown.code, is_number=False),
        Column(title="what became of it", cell=lambda fate: fate.word, is_number=False),
        Column(title="line", cell=_line, is_number=False),
        Column(title="call", cell=lambda fate: element("code", fate.shown.call), is_number=False),
        *_both("idle", "ms", lambda one: milliseconds(one.exposed_ms)),
        *_both("waited", "ms", lambda one: milliseconds(one.waited_ms)),
        *_both("a step", "count", lambda one: count(one.per_step)),
    ]
    return section(
        "Findings",
        table("Findings", columns, fates, details=_details),
        about="Times are those of a step.",
    )


def _line(fate: _Fate) -> Html:
    return element("code", line_of(fate.shown))


def _both(title: str, unit: str, write: Callable[[Finding], str]) -> list[Column[_Fate]]:
    def of(one: Finding | None) -> str:
        return MISSING if one is None else write(one)

    return [
        Column(title=title, unit=f"{unit} before", cell=lambda fate: of(fate.before)),
        Column(title=title, unit=f"{unit} after", cell=lambda fate: of(fate.after)),
    ]


def _details(fate: _Fate) -> Html:
    lines = finding_lines(fate.shown)
    return joined(lines if fate.after is None else [*lines, mend(fate.shown)])
