"""Timelines for the Perfetto UI, in the JSON of Chrome's traces.

The format is that of "Trace Event Format" (Google), as Perfetto's importer reads it:
src/trace_processor/importers/json/json_trace_parser_impl.cc of google/perfetto. Three things in there
decide how this file is written. Spans of one track must lie in each other or apart. An arrow belongs to
the span that is open at its time, of those that stand before it. Times are cut to nanoseconds.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from itertools import count, pairwise
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gapless.records.finding import Finding
    from gapless.records.timeline import Gap, Lane, Span, Timeline


_Event = dict[str, Any]


def perfetto_json(*runs: tuple[Timeline, Sequence[Finding]]) -> str:
    """Return timelines as a trace that ui.perfetto.dev opens.

    The host of a timeline is one process and its device another. Each thread and each stream is a track,
    and so are the steps and the idle time of the device. An arrow leads from a wait to the idle time that
    it has exposed.

    Args:
        runs: timelines, each with the findings that its spans and gaps belong to, by their place.
    """
    events: list[_Event] = []
    tracks: list[_Track] = []
    arrows = count(1)
    for number, (timeline, findings) in enumerate(runs):
        host, device = 2 * number + 1, 2 * number + 2
        before = f"{_written(timeline.title)}: " if timeline.title else ""
        events.append(_meta("process_name", host, {"name": f"{before}host"}))
        events.append(_meta("process_name", device, {"name": f"{before}device"}))
        tracks += _tracks_of(timeline, findings, host=host, device=device, arrows=arrows)
    # Perfetto knows threads by their number alone, and takes number 0 and those of processes to be special.
    for tid, track in enumerate(tracks, start=2 * len(runs) + 1):
        events += track.events(tid)
    values = {"displayTimeUnit": "ms", "otherData": {"made by": "gapless"}, "traceEvents": events}
    return json.dumps(values, separators=(",", ":"), allow_nan=False) + "\n"


def _tracks_of(
    timeline: Timeline,
    findings: Sequence[Finding],
    *,
    host: int,
    device: int,
    arrows: Iterator[int],
) -> list[_Track]:
    """Return the tracks of a timeline, those of the host first, joined by arrows."""
    labels = [_about(finding) for finding in findings]
    threads = [
        _Track(host, "steps", _steps(timeline)),
        *_tracks(host, [lane for lane in timeline.lanes if not lane.is_device], labels),
    ]
    idle = _Track(device, "idle", _idle(timeline.gaps, labels))
    streams = _tracks(device, [lane for lane in timeline.lanes if lane.is_device], labels)
    _join([one for track in threads for one in track.slices], idle.slices, arrows)
    return [*threads, idle, *streams]


@dataclass
class _Slice:
    """A span of a track in nanoseconds, with the arrows that begin or end in it."""

    name: str
    kind: str
    start: int
    end: int
    args: dict[str, str]
    finding: int | None = None
    arrows: tuple[tuple[str, int, int], ...] = ()  # "s" or "f", number of the arrow, time


@dataclass
class _Track:
    """What Perfetto shows as one thread."""

    pid: int
    name: str
    slices: list[_Slice]

    def events(self, tid: int) -> Iterator[_Event]:
        """Yield its name, then its spans in the order of time, those that hold others first."""
        place = {"pid": self.pid, "tid": tid}
        yield _meta("thread_name", self.pid, {"name": _written(self.name)}) | place
        yield _meta("thread_sort_index", self.pid, {"sort_index": tid}) | place
        for one in self.slices:
            yield {
                "ph": "X",
                "name": _written(one.name) or one.kind,
                "cat": one.kind,
                "ts": _us(one.start),
                "dur": _us(one.end - one.start),
                **({"args": one.args} if one.args else {}),
                **place,
            }
            for phase, number, time in one.arrows:
                arrow = {"ph": phase, "name": "exposed", "cat": "exposed", "id": number}
                end = {"bp": "e"} if phase == "f" else {}
                yield arrow | {"ts": _us(time)} | end | place


def _steps(timeline: Timeline) -> list[_Slice]:
    starts = [*map(_ns, timeline.step_starts_us), _ns(timeline.end_us)]
    return [
        _Slice(f"step {number}", "step", start, end, {})
        for number, (start, end) in enumerate(pairwise(starts))
    ]


def _idle(gaps: Sequence[Gap], labels: Sequence[dict[str, str]]) -> list[_Slice]:
    return [
        _Slice(
            f"idle: {gap.cause}",
            "idle",
            _ns(gap.start_us),
            _ns(gap.end_us),
            _args(gap.finding, labels),
            gap.finding,
        )
        for gap in gaps
    ]


def _tracks(pid: int, lanes: Iterable[Lane], labels: Sequence[dict[str, str]]) -> Iterator[_Track]:
    """Yield a track for each lane, and more for spans of it that overlap."""
    for lane in lanes:
        slices = [_slice(span, labels) for span in lane.spans]
        for number, part in enumerate(_nested(slices) or [[]], start=1):
            yield _Track(pid, lane.name if number == 1 else f"{lane.name} ({number})", part)


def _slice(span: Span, labels: Sequence[dict[str, str]]) -> _Slice:
    start, end = _ns(span.start_us), _ns(span.end_us)
    return _Slice(span.name, span.kind, start, end, _args(span.finding, labels), span.finding)


def _nested(slices: Iterable[_Slice]) -> list[list[_Slice]]:
    """Return spans in as few rows as it takes for those of a row to lie in each other or apart."""
    rows: list[list[_Slice]] = []
    ends: list[list[int]] = []  # of the spans of each row that are open, the outermost first
    for one in sorted(slices, key=lambda one: (one.start, -one.end)):
        at = next((at for at, row_ends in enumerate(ends) if _takes(row_ends, one)), len(rows))
        if at == len(rows):
            rows.append([])
            ends.append([])
        rows[at].append(one)
        ends[at].append(one.end)
    return rows


def _takes(ends: list[int], one: _Slice) -> bool:
    """Return whether a span fits into a row; close what has ended before it."""
    while ends and ends[-1] <= one.start:
        ends.pop()
    return not ends or one.end <= ends[-1]


def _join(spans: Iterable[_Slice], gaps: Iterable[_Slice], arrows: Iterator[int]) -> None:
    """Lay an arrow to each gap from the last span of its finding that began before the gap's end."""
    by_finding: dict[int | None, list[_Slice]] = {}
    for one in sorted(spans, key=lambda one: one.start):
        if one.end > one.start:
            by_finding.setdefault(one.finding, []).append(one)
    for gap in gaps:
        before = [one for one in by_finding.get(gap.finding, ()) if one.start < gap.end]
        if gap.finding is not None and before and gap.end > gap.start:
            wait, number = before[-1], next(arrows)
            wait.arrows += (("s", number, wait.start),)
            gap.arrows += (("f", number, max(gap.start, wait.start)),)


def _args(finding: int | None, labels: Sequence[dict[str, str]]) -> dict[str, str]:
    return labels[finding] if finding is not None and finding < len(labels) else {}


def _about(finding: Finding) -> dict[str, str]:
    """Return what is shown of a finding where a span of it is selected."""
    return {
        "finding": _written(f"{finding.code} {finding.site or 'line unknown'}"),
        "source": _written(finding.site.source if finding.site else ""),
        "cause": _written(finding.cause),
        "instead": _written(finding.mend),
    }


def _meta(name: str, pid: int, args: dict[str, Any]) -> _Event:
    return {"ph": "M", "name": name, "pid": pid, "args": args}


def _written(text: str) -> str:
    """Return a text without halves of characters, which a path may hold and Perfetto refuses."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _ns(us: float) -> int:
    return round(us * 1000.0)


def _us(ns: int) -> float:
    """Return nanoseconds as microseconds that do not lose one when they are cut again."""
    us = ns / 1000.0
    return us if int(us * 1000.0) == ns else math.nextafter(us, math.inf)
