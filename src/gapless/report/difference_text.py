"""What changed between two sessions of the doctor, as text for a terminal."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from gapless.report.figures import count, counted, known, milliseconds, ranged
from gapless.report.session_text import place_of
from gapless.report.terminal_text import Page, shown, table_lines


if TYPE_CHECKING:
    from collections.abc import Sequence

    from gapless.records.finding import Finding, Session, StepTimes
    from gapless.records.session_difference import SessionDifference


_BOLD, _DIM = "1", "2"

# Costs of a step, with what they are.
PARTS = (
    ("data_ms", "the host waits for the loader"),
    ("wait_ms", "the host waits for the device"),
    ("launch_ms", "the host queues work"),
    ("busy_ms", "the device has work"),
    ("idle_ms", "the device is idle"),
    ("num_launches", "launches"),
)


def difference_text(
    difference: SessionDifference, *, columns: int = 80, is_coloured: bool = False
) -> str:
    """Return how two sessions differ as lines of text.

    Args:
        difference: of the two.
        columns: that the lines may take; only paths are longer.
        is_coloured: whether the text is for a terminal that shows bold and dim letters.
    """
    page = Page(columns, is_coloured=is_coloured)
    page.say(verdict_of(difference), style=_BOLD)
    page.say("")
    page.say(f"before: {_run(difference.before)}", rest=2)
    page.say(f"after: {_run(difference.after)}", rest=2)
    if difference.before.device != difference.after.device:
        page.say("The devices differ, so the times say nothing of the script.")
    _say_steps(page, difference)
    _say_alone(page, "Gone", difference.gone)
    _say_alone(page, "New", difference.new)
    _say_changed(page, difference.changed)
    same = len(difference.kept) - len(difference.changed)
    if same:
        page.say("")
        page.say(f"{counted(same, 'finding')} as before.")
    return page.text()


def verdict_of(difference: SessionDifference) -> str:
    """Return in one sentence how the times of a step differ."""
    before, after, speedup = difference.before.steps, difference.after.steps, difference.speedup
    if before is None or after is None or speedup is None:
        return "Times of steps are not known of both runs."
    times = f"{milliseconds(before.wall_ms.median)} ms before, {milliseconds(after.wall_ms.median)} ms after"
    if not difference.is_clear:
        return f"A step takes about as long as before: {times}."
    if speedup < 1.0:
        return f"A step takes {(1.0 / speedup - 1.0) * 100.0:.0f} % longer than before: {times}."
    return f"A step takes {(1.0 - 1.0 / speedup) * 100.0:.0f} % less time than before: {times}."


def _run(session: Session) -> str:
    command = " ".join(map(shlex.quote, session.command))
    return f"{command} on {session.device}" if command else session.device


def _say_steps(page: Page, difference: SessionDifference) -> None:
    before, after = difference.before.steps, difference.after.steps
    if before is None or after is None:
        return
    rows = [
        ("ms a step", "before", "after"),
        ("a step", ranged(before.wall_ms), ranged(after.wall_ms)),
        *_known_parts(before, after),
    ]
    page.say("")
    for line in table_lines(rows):
        page.say_as_it_is(line, indent=2)


def _known_parts(before: StepTimes, after: StepTimes) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for name, meaning in PARTS:
        figures = [getattr(before, name), getattr(after, name)]
        write = milliseconds if name.endswith("_ms") else count
        if figures != [None, None]:
            rows.append((meaning, *(known(figure, write) for figure in figures)))
    return rows


def _say_alone(page: Page, title: str, findings: Sequence[Finding]) -> None:
    if not findings:
        return
    page.say("")
    page.say(f"{title}: {counted(len(findings), 'finding')}", style=_BOLD)
    for finding in findings:
        _say_line(page, finding)
        page.say(_cost(finding), indent=6)


def _say_changed(page: Page, pairs: Sequence[tuple[Finding, Finding]]) -> None:
    if not pairs:
        return
    page.say("")
    page.say(f"Changed: {counted(len(pairs), 'finding')}", style=_BOLD)
    for before, after in pairs:
        _say_line(page, after)
        page.say(f"before: {_cost(before)}", indent=6)
        page.say(f"after:  {_cost(after)}", indent=6)


def _say_line(page: Page, finding: Finding) -> None:
    page.say_as_it_is(f"{finding.code}  {place_of(finding)}", indent=2)
    if finding.site is not None and finding.site.source:
        page.say_cut(finding.site.source, indent=6, style=_DIM)
    elif finding.site is None:
        page.say_as_it_is(shown(finding.call), indent=6, style=_DIM)


def _cost(finding: Finding) -> str:
    if finding.certainty != "seen":
        return "from the syntax, not timed"
    parts = [f"{known(finding.per_step, count)} a step"]
    if finding.waited_ms is not None:
        parts.append(f"waited {milliseconds(finding.waited_ms)} ms")
    if finding.exposed_ms is not None:
        parts.append(f"idle {milliseconds(finding.exposed_ms)} ms")
    return ", ".join(parts)
