"""The page of `gapless doctor`: what was found in a script."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.report.figures import MISSING, count, known, milliseconds, ranged, share
from gapless.report.html.bars import Bar, Part, bars
from gapless.report.html.page import Html, element, joined, notes, page, section, timeline_note
from gapless.report.html.table import Column, table
from gapless.report.session_text import by_file, circumstances, versions_of


if TYPE_CHECKING:
    from collections.abc import Sequence

    from gapless.records.comparison import Spread
    from gapless.records.finding import Finding, Session, StepTimes, Trial
    from gapless.records.timeline import Gap, Timeline
    from gapless.report.html.page import Child


# Gaps in the table of the longest.
_MOST_GAPS = 8


def session_page(session: Session, *, timeline_file: str = "") -> str:
    """Return the report of a session as a page for a browser: one file that loads nothing.

    Args:
        session: what was seen of one run of a script.
        timeline_file: name of the file that its timeline was written to; empty for none.
    """
    return page(
        "gapless doctor",
        " ".join(session.command),
        None if session.steps is None else _breakdown(session.steps),
        _findings(session.findings),
        _timeline(session, timeline_file),
        _trials(session.trials),
        notes("Notes", session.notes),
        verdict=session.verdict,
        facts=_facts(session),
    )


def _facts(session: Session) -> list[tuple[str, str]]:
    steps = session.steps
    found = [
        ("device", session.device),
        ("processes", count(session.num_ranks) if session.num_ranks > 1 else ""),
        ("a step is", session.step),
    ]
    if steps is not None:
        mean = f", {milliseconds(steps.mean_ms)} on average" if steps.is_skewed else ""
        busy, launches = steps.busy_share, steps.num_launches
        found += [
            ("steps watched", count(steps.num_steps)),
            ("a step takes", f"{ranged(steps.wall_ms)} ms{mean}"),
            ("device busy", "" if busy is None else share(busy)),
            ("launches a step", "" if launches is None else count(launches)),
        ]
    return [*found, ("versions", versions_of(session))]


# --- the time of a step ---


def step_bars(steps: StepTimes) -> list[Bar]:
    """Return where the time of a step went: a bar of the host, and one of the device if it is known."""
    host = [
        Part(name="waits for data", colour="data", ms=steps.data_ms or 0.0),
        Part(name="waits for the device", colour="wait", ms=steps.wait_ms or 0.0),
        Part(name="queues work", colour="launch", ms=steps.launch_ms or 0.0),
    ]
    rest = max(0.0, steps.mean_ms - sum(part.ms for part in host))
    host.append(Part(name="other host code", colour="other", ms=rest))
    found = [Bar(title="host", parts=host)]
    if steps.busy_ms is not None and steps.idle_ms is not None:
        compute = steps.busy_ms if steps.compute_ms is None else steps.compute_ms
        device = [
            Part(name="computes", colour="busy", ms=compute),
            Part(name="only copies", colour="copy", ms=max(0.0, steps.busy_ms - compute)),
            Part(name="idle", colour="idle", ms=steps.idle_ms),
        ]
        found.append(Bar(title="device", parts=device))
    return found


def _breakdown(steps: StepTimes) -> Html:
    found = step_bars(steps)
    about = "Host and device work side by side: each of the bars is one step."
    return section(
        "Where a step's time goes", bars(found), about=about if len(found) > 1 else None
    )


# --- findings ---


def _line_of(finding: Finding) -> str:
    """Return the line of a finding as people write it."""
    return "no line known" if finding.site is None else str(finding.site)


_FINDING_COLUMNS: tuple[Column[Finding], ...] = (
    Column(title="code", cell=lambda one: one.code, is_number=False),
    Column(title="line", cell=lambda one: element("code", _line_of(one)), is_number=False),
    Column(title="waited", unit="ms a step", cell=lambda one: milliseconds(one.waited_ms)),
    Column(title="idle", unit="ms a step", cell=lambda one: milliseconds(one.exposed_ms)),
    Column(title="gain", unit="ms a step", cell=lambda one: milliseconds(one.gain_ms)),
    Column(title="idle", unit="of the step", cell=lambda one: known(one.share, share)),
    Column(title="count", unit="a step", cell=lambda one: known(one.per_step, count)),
    Column(title="call", cell=lambda one: element("code", one.call), is_number=False),
    Column(title="certainty", cell=lambda one: one.certainty, is_number=False),
    Column(title="part", cell=lambda one: one.part, is_number=False),
)


_FILE_COLUMNS: tuple[Column[tuple[str, int, int]], ...] = (
    Column(title="file", cell=lambda one: element("code", one[0]), is_number=False),
    Column(title="in training", cell=lambda one: str(one[1])),
    Column(title="in all", cell=lambda one: str(one[2])),
)


def _findings(findings: Sequence[Finding]) -> Html:
    if not findings:
        return section("Findings", element("p", "Nothing was found that makes the host wait."))
    first_with: dict[str, Finding] = {}
    for one in findings:
        first_with.setdefault(one.mend, one)
    names = {id(one): f"finding-{n}" for n, one in enumerate(findings, start=1)}

    def details(one: Finding) -> Html:
        first = first_with[one.mend]
        said = _mend(one) if one is first else _as_for(first, name=names[id(first)])
        return element("div", *_finding_lines(one), said, id=names[id(one)])

    meanings = ["The training step first."]
    if any(one.waited_ms is not None or one.exposed_ms is not None for one in findings):
        meanings = [
            "The training step first, costliest first. Waited: the host stood still. Idle: the device had no work because of "
            "it; no mend can gain more."
        ]
    if any(one.gain_ms is not None for one in findings):
        meanings.append("Gain: predicted if this alone is mended.")
    files = by_file(findings)
    drawn = table("Findings", _FINDING_COLUMNS, findings, details=details)
    return section(
        "Findings",
        table("Findings by file", _FILE_COLUMNS, files) if files else None,
        drawn,
        about=" ".join(meanings),
    )


def _finding_lines(finding: Finding) -> list[Html]:
    """Return the source of a finding, where else it belongs to, and what happens there."""
    source = finding.site.source if finding.site else ""
    where = ", ".join(circumstances(finding))
    lines: list[Child] = [element("code", source) if source else None, where or None]
    return [element("p", line) for line in (*lines, finding.cause) if line is not None]


def _mend(finding: Finding) -> Html:
    """Return what to write instead: a sentence, and the lines under it as code."""
    sentence, _, code = finding.mend.partition("\n")
    return joined(
        [
            element("p", element("b", "Instead: "), sentence),
            element("pre", element("code", code.strip("\n"))) if code.strip() else None,
        ]
    )


def _as_for(first: Finding, *, name: str) -> Html:
    link = element("a", f"{first.code} {_line_of(first)}", href=f"#{name}")
    return element("p", element("b", "Instead: "), "as for ", link)


# --- the timeline ---


def _timeline(session: Session, file: str) -> Html:
    timeline = session.timeline
    if timeline is None:
        note = "There is none: it needs a device and torch's profiler."
        return section("Timeline", element("p", note))
    return joined([_longest_gaps(timeline, session.findings), timeline_note(file)])


def _longest_gaps(timeline: Timeline, findings: Sequence[Finding]) -> Html | None:
    """Return a table of the longest gaps; None where there is none."""

    def step(gap: Gap) -> str:
        # Counted from 0, as in the file for Perfetto; before the first there is none.
        number = sum(start <= gap.start_us for start in timeline.step_starts_us) - 1
        return count(number) if number >= 0 else MISSING

    def finding(gap: Gap) -> str:
        if gap.finding is None or gap.finding >= len(findings):
            return MISSING
        return f"{findings[gap.finding].code} {_line_of(findings[gap.finding])}"

    columns: list[Column[Gap]] = [
        Column(
            title="length",
            unit="ms",
            cell=lambda gap: milliseconds((gap.end_us - gap.start_us) / 1000.0),
        ),
        Column(title="begins", unit="ms", cell=lambda gap: f"{gap.start_us / 1000.0:,.3f}"),
        Column(title="step", cell=step),
        Column(title="cause", cell=lambda gap: gap.cause, is_number=False),
        Column(title="finding", cell=finding, is_number=False),
    ]
    longest = sorted(timeline.gaps, key=lambda gap: gap.start_us - gap.end_us)[:_MOST_GAPS]
    if not longest:
        return None
    return section(
        "Longest gaps",
        table("Longest gaps", columns, longest),
        about="No stream of the device had work. Begins: from the beginning of the timeline.",
    )


# --- trials ---


def _trials(trials: Sequence[Trial]) -> Html | None:
    if not trials:
        return None
    columns: list[Column[Trial]] = [
        Column(title="variant", cell=lambda one: one.name, is_number=False),
        Column(title="gain", unit="times as fast", cell=lambda one: known(one.gain, _times)),
        Column(title="steps/s", unit="variant", cell=lambda one: _speed(one.steps_per_second)),
        Column(title="steps/s", unit="as written", cell=lambda one: _speed(one.baseline)),
        Column(title="windows", cell=lambda one: _num_windows(one.steps_per_second)),
        Column(title="clear", cell=_clear, is_number=False),
    ]
    return section(
        "Trials",
        table("Trials", columns, trials, details=_trial_lines),
        about="Each variant was measured in turns with the script as written. Clear: the middle halves of the "
        "two lie apart.",
    )


def _times(gain: float) -> str:
    return f"{gain:.2f}"


def _speed(spread: Spread | None) -> str:
    return MISSING if spread is None else ranged(spread)


def _num_windows(spread: Spread | None) -> str:
    return MISSING if spread is None else count(len(spread.rounds))


def _clear(trial: Trial) -> str:
    if trial.steps_per_second is None or trial.baseline is None:
        return MISSING
    return "no" if trial.steps_per_second.overlaps(trial.baseline) else "yes"


def _trial_lines(trial: Trial) -> Html:
    refusal = [f"Not measured: {trial.refusal}"] if trial.refusal else []
    return joined(element("p", line) for line in (trial.change, *trial.details, *refusal))
