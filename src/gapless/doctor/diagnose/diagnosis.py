"""The diagnosis: which lines cost time, how much mending each gains, and what holds the script back.

The waits that were seen have lines, the trace has times. `finding_groups` says which finding each wait
belongs to, `measured_times` what it costs, `findings` which of them are worth one and in which
order, `verdict` sums it up in a sentence. No torch here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gapless.doctor.advice.causes import CODE_OF
from gapless.doctor.diagnose.drawn_timeline import draw
from gapless.doctor.diagnose.finding_groups import KnownWaits
from gapless.doctor.diagnose.findings import findings_of
from gapless.doctor.diagnose.measured_times import MeasuredTimes, step_times_of
from gapless.doctor.diagnose.verdict import Figures, verdict_of


if TYPE_CHECKING:
    from collections.abc import Sequence

    from gapless.doctor.diagnose.finding_groups import Group
    from gapless.doctor.diagnose.watched_run import WatchedRun
    from gapless.records.finding import Finding, StepTimes
    from gapless.records.timeline import Timeline


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """What was found: fields of a session."""

    findings: tuple[Finding, ...]
    steps: StepTimes | None
    verdict: str
    notes: tuple[str, ...]
    timeline: Timeline | None


def diagnose(watched: WatchedRun) -> Diagnosis:
    """Return what holds a script back, from what was noted while it ran."""
    try:
        return _diagnose(watched)
    except Exception as error:
        # The format of a trace is not promised; lines and counts do not need it.
        if watched.trace is None:
            raise
        note = f"Times were not measured: the profiler's trace cannot be read: {error!r}."
        return _diagnose(replace(watched, trace=None, timed=(), notes=(*watched.notes, note)))


def _diagnose(watched: WatchedRun) -> Diagnosis:
    known = KnownWaits(watched)
    groups = known.groups()
    times = MeasuredTimes(known)
    times.measure(groups)
    known.drop_harmless(groups)
    pairs = findings_of(known, groups, times)
    findings = tuple(finding for finding, _ in pairs)
    steps = step_times_of(known, groups, times)
    figures = Figures(
        has_device=watched.has_device,
        step_ms=times.step_ms,
        busy_share=None if steps is None else steps.busy_share,
        idle_ms=dict(times.idle_ms),
        all_waits_ms=times.all_waits_ms,
        num_launches=times.num_launches or 0.0,
        data_ms=_data_ms(steps),
        has_loader=steps is not None and steps.has_loader,
        num_would_wait=watched.num_would_wait,
    )
    return Diagnosis(
        findings=findings,
        steps=steps,
        verdict=verdict_of(figures, findings),
        notes=tuple(dict.fromkeys((*watched.notes, *times.notes))),
        timeline=_timeline(known, times, pairs),
    )


def _data_ms(steps: StepTimes | None) -> float:
    """Return what the table of the report has as well."""
    if steps is None:
        return 0.0
    return steps.data_ms or 0.0 if steps.parts_ms is None else steps.parts_ms.data


def _timeline(
    known: KnownWaits, times: MeasuredTimes, findings: Sequence[tuple[Finding, Group]]
) -> Timeline | None:
    trace, recording = known.trace, times.recording
    if trace is None or recording is None:
        return None
    groups = [group for _, group in findings]
    codes = [finding.code for finding, _ in findings]
    of_launches = CODE_OF["launch"]
    return draw(
        trace,
        known.joined.waits,
        known.intervals,
        begin_us=recording.begin_us,
        end_us=recording.end_us,
        finding_of_wait={
            wait: number for number, group in enumerate(groups) for wait in group.waits
        },
        finding_of_owner={
            owner: number for number, group in enumerate(groups) for owner in group.owners
        },
        finding_of_launches=codes.index(of_launches) if of_launches in codes else None,
    )
