"""The page of `gapless doctor`: what was found in a script."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.report.html.bars import Bar, Part, bars
from gapless.report.html.figures import MISSING, count, milliseconds, percent, with_unit
from gapless.report.html.markup import Html, element, joined
from gapless.report.html.packed_timeline import packed
from gapless.report.html.page import bullet_list, facts, header, page, section, tiles
from gapless.report.html.table import Cell, Column, Row, table, text_cell
from gapless.report.html.timeline_widget import cut_to_fit, longest_gaps, timelines_widget


if TYPE_CHECKING:
    from collections.abc import Sequence

    from gapless.records.comparison import Spread
    from gapless.records.finding import Finding, Session, StepTimes, Trial
    from gapless.records.timeline import Timeline


_COLUMNS = (
    Column(title="code", about="The kind of finding; `gapless explain CODE` says more."),
    Column(title="line"),
    Column(title="call"),
    Column(title="thread"),
    Column(title="count", unit="a step", is_number=True),
    Column(
        title="waited", unit="ms a step", is_number=True, about="How long the host stood still."
    ),
    Column(
        title="exposed",
        unit="ms a step",
        is_number=True,
        about="Idle time of the device that goes back to it: at most this much can be won.",
    ),
    Column(title="share", unit="of the step", is_number=True),
    Column(title="certainty"),
)


def session_page(session: Session) -> str:
    """Return the report of a session as a page for a browser: one file that loads nothing.

    Args:
        session: what was seen of one run of a script.
    """
    name = " ".join(session.command)
    drawn, cut = cut_to_fit([] if session.timeline is None else [session.timeline])
    labels = [label_of(finding) for finding in session.findings]
    return page(
        f"gapless doctor: {name}",
        header(
            "gapless doctor",
            element("code", name),
            element("p", session.verdict, class_="verdict") if session.verdict else None,
            session_facts(session),
        ),
        None if session.steps is None else tiles(_tiles(session.steps)),
        None if session.steps is None else _breakdown(session.steps),
        _timeline(drawn, labels),
        _findings(session),
        trials_section(session.trials),
        notes_section([*session.notes, *cut]),
        data={
            "timelines": [packed(one, rows=range(len(labels))) for one in drawn],
            "rows": labels,
        },
    )


def session_facts(session: Session) -> Html:
    """Return where and with what a session ran."""
    versions = ", ".join(f"{name} {version}" for name, version in session.versions.items())
    return facts(
        [
            ("device", session.device),
            ("processes", count(session.num_ranks) if session.num_ranks > 1 else ""),
            ("a step is", session.step),
            ("steps watched", "" if session.steps is None else count(session.steps.num_steps)),
            ("versions", versions),
        ]
    )


def place_of(finding: Finding) -> str:
    """Return the line of a finding as people write it."""
    return "no line known" if finding.site is None else str(finding.site)


def label_of(finding: Finding) -> str:
    """Return the code and the line of a finding."""
    return f"{finding.code} {place_of(finding)}"


# --- figures of a step ---


def _tiles(steps: StepTimes) -> list[tuple[str, str, str]]:
    wall = steps.wall_ms
    spread = "" if len(wall.rounds) < 2 else f"half of them {_range(wall)}"
    if steps.is_skewed:
        spread = f"{with_unit(milliseconds(steps.mean_ms), 'ms')} on average; {spread}"
    found = [("a step", with_unit(milliseconds(wall.median), "ms"), spread)]
    if steps.busy_share is not None:
        found.append(("device busy", percent(steps.busy_share), "some stream has work"))
    if steps.idle_ms is not None:
        found.append(("device idle", with_unit(milliseconds(steps.idle_ms), "ms"), "a step"))
    if steps.wait_ms is not None:
        found.append(("host waits", with_unit(milliseconds(steps.wait_ms), "ms"), "a step"))
    if steps.num_launches is not None:
        found.append(("launches", count(steps.num_launches), "a step"))
    return found


def _range(spread: Spread) -> str:
    return f"{milliseconds(spread.q1)} to {with_unit(milliseconds(spread.q3), 'ms')}"


def step_bars(steps: StepTimes, *, title: str = "") -> list[Bar]:
    """Return where the time of a step went: a bar of the host, and one of the device if it is known.

    Args:
        steps: of a session.
        title: what stands before the bars' own; empty: nothing.
    """
    before = f"{title}, " if title else ""
    known = [
        Part(name="waits for data", kind="data", ms=steps.data_ms or 0.0),
        Part(name="waits for the device", kind="wait", ms=steps.wait_ms or 0.0),
        Part(name="queues work", kind="launch", ms=steps.launch_ms or 0.0),
    ]
    rest = max(0.0, steps.mean_ms - sum(part.ms for part in known))
    host = [*known, Part(name="other host code", kind="host-code", ms=rest)]
    found = [Bar(title=f"{before}host", parts=[part for part in host if part.ms > 0.0])]
    if steps.busy_ms is not None and steps.idle_ms is not None:
        compute = steps.busy_ms if steps.compute_ms is None else steps.compute_ms
        device = [
            Part(name="computes", kind="kernel", ms=compute),
            Part(name="only copies", kind="copy", ms=max(0.0, steps.busy_ms - compute)),
            Part(name="idle", kind="idle", ms=steps.idle_ms),
        ]
        found.append(
            Bar(title=f"{before}device", parts=[part for part in device if part.ms > 0.0])
        )
    return found


def _breakdown(steps: StepTimes) -> Html:
    found = step_bars(steps)
    about = "Host and device work side by side: each of the bars is one step."
    return section(
        "Where a step's time goes",
        bars(found),
        about=about if len(found) > 1 else None,
        name="step",
    )


# --- the timeline ---


def _timeline(drawn: Sequence[Timeline], labels: Sequence[str]) -> Html:
    if not drawn:
        note = "There is no timeline: it needs a device and torch's profiler."
        return section("Timeline", element("p", note))
    return section(
        "Timeline",
        timelines_widget(drawn),
        longest_gaps(drawn[0], place=0, labels=labels),
        about="Threads of the host above, streams of the device below. A line joins each wait with "
        "the gap that it exposed.",
    )


# --- findings ---


def _findings(session: Session) -> Html:
    if not session.findings:
        return section("Findings", element("p", "Nothing was found that makes the host wait."))
    rows = [_row(found, number) for number, found in enumerate(session.findings)]
    return section(
        "Findings",
        table("Findings", _COLUMNS, rows),
        about="Exposed is idle time of the device that goes back to the line, and an upper bound of "
        "what mending it can gain. Choose a code to see its spans in the timeline.",
    )


def _row(finding: Finding, number: int) -> Row:
    rank = "" if finding.rank is None else f", rank {finding.rank}"
    cells = [
        text_cell(finding.code),
        Cell(text=element("code", place_of(finding)), value=place_of(finding)),
        Cell(text=element("code", finding.call), value=finding.call),
        text_cell(f"{finding.thread}{rank}"),
        Cell(text=count(finding.per_step), value=finding.per_step),
        Cell(text=milliseconds(finding.waited_ms), value=finding.waited_ms),
        Cell(text=milliseconds(finding.exposed_ms), value=finding.exposed_ms),
        Cell(text=percent(finding.share), value=finding.share),
        text_cell(finding.certainty),
    ]
    return Row(
        cells=cells,
        details=_details(finding, is_open=not number),
        number=number,
        name=label_of(finding),
    )


def _details(finding: Finding, *, is_open: bool) -> Html:
    source = finding.site.source if finding.site else ""
    forward = finding.forward
    return joined(
        [
            element("p", element("code", source, class_="source")) if source else None,
            element("p", finding.cause),
            None if forward is None else _forward(str(forward), forward.source),
            element(
                "details",
                element("summary", "how to mend it"),
                mend_text(finding.mend),
                open=is_open,
            ),
        ]
    )


def _forward(place: str, source: str) -> Html:
    return element(
        "p",
        "It is the backward pass of ",
        element("code", place),
        joined([": ", element("code", source)]) if source else "",
    )


def mend_text(mend: str) -> Html:
    """Return what to write instead: its first line as a sentence, the lines under it as code."""
    sentence, _, code = mend.partition("\n")
    return joined(
        [
            element("p", sentence),
            element("pre", element("code", code.strip("\n"))) if code.strip() else None,
        ]
    )


# --- trials and notes ---


def trials_section(trials: Sequence[Trial]) -> Html | None:
    """Return a table of the variants that were measured; None where there are none."""
    if not trials:
        return None
    columns = [
        Column(title="variant"),
        Column(title="gain", unit="times as fast", is_number=True),
        Column(title="steps/s", unit="median", is_number=True),
        Column(title="middle half", unit="steps/s"),
        Column(title="as written", unit="steps/s", is_number=True),
        Column(title="middle half", unit="steps/s"),
        Column(title="windows", is_number=True),
    ]
    return section(
        "Trials",
        table("Trials", columns, [_trial(trial) for trial in trials]),
        about="Each variant was measured against the script as it is written, in turns.",
    )


def _trial(trial: Trial) -> Row:
    gain, after, before = trial.gain, trial.steps_per_second, trial.baseline
    windows = None if after is None else len(after.rounds)
    details = [
        element("p", trial.change),
        element("p", f"Not measured: {trial.refusal}") if trial.refusal else None,
    ]
    return Row(
        cells=[
            text_cell(trial.name),
            Cell(text=MISSING if gain is None else f"{gain:.2f}", value=gain),
            *_speed(after),
            *_speed(before),
            Cell(text=count(windows), value=windows),
        ],
        details=joined(details),
        is_marked=bool(after and before and gain and gain > 1.0 and not after.overlaps(before)),
    )


def _speed(spread: Spread | None) -> list[Cell]:
    if spread is None:
        return [Cell(text=MISSING), Cell(text=MISSING)]
    half = f"{milliseconds(spread.q1)} to {milliseconds(spread.q3)}"
    return [
        Cell(text=milliseconds(spread.median), value=spread.median),
        Cell(text=half, value=spread.q1),
    ]


def notes_section(notes: Sequence[str]) -> Html | None:
    """Return what a reader has to know; None where there is nothing."""
    return section("Notes", bullet_list(notes)) if notes else None
