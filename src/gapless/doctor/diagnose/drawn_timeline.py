"""The timeline of the steps that are played again: what each thread and stream did, and why the device was idle. No torch."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from gapless.doctor.replay.exposed import ChargedGap, DeviceSpan, HostSpan, charge_gaps
from gapless.records.timeline import Gap, Lane, Span, Timeline


if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gapless.doctor.replay.exposed import GapCause
    from gapless.doctor.replay.recording import HostInterval
    from gapless.doctor.trace.chrome_trace import Call, Trace, Wait, Work
    from gapless.records.timeline import SpanKind

_MAX_NAME = 80

# From the end of a launch to the beginning of its work on an idle device, at most.
_LATENCY_US = 20.0

_GAP_CAUSES: dict[GapCause, str] = {
    "wait": "host wait",
    "loader": "data",
    "collective": "host wait",
    "gc": "host code",
    "allocation": "host code",
    "launch": "launch",
    "host code": "host code",
    "device": "device",
}


def draw(
    trace: Trace,
    waits: Sequence[Wait],
    intervals: Sequence[HostInterval],
    *,
    begin_us: float,
    end_us: float,
    finding_of_wait: Mapping[int, int],
    finding_of_owner: Mapping[int, int],
    finding_of_launches: int | None,
) -> Timeline:
    """Return the timeline of a stretch of a trace.

    Args:
        trace: what was recorded.
        waits: of the trace.
        intervals: of the loader and the garbage collector.
        begin_us: of the stretch, in the trace's time.
        end_us: likewise.
        finding_of_wait: place of the finding that a wait belongs to.
        finding_of_owner: likewise of what was seen.
        finding_of_launches: place of the finding that the host queues too slowly; None without it.
    """
    window = _Window(begin_us, end_us)
    host = _launches(trace, waits, window)
    for place, wait in enumerate(waits):
        window.add(
            host[wait.thread],
            wait.name,
            "wait",
            wait.start_us,
            wait.end_us,
            finding_of_wait.get(place),
        )
    if trace.main is not None:
        for one in intervals:
            name, kind = _NAMES.get(one.kind, (one.kind, "host code"))
            finding = None if one.owner is None else finding_of_owner.get(one.owner)
            window.add(host[trace.main], name, kind, one.start_us, one.end_us, finding)
    device = _streams(trace, window)
    threads = sorted(host, key=lambda thread: (thread != trace.main, thread))
    lanes = [
        Lane(
            name=_lane_name(trace, thread),
            is_device=False,
            spans=_in_order(host[thread]),
        )
        for thread in threads
    ]
    lanes += [
        Lane(name=f"stream {stream}", is_device=True, spans=_in_order(device[stream]))
        for stream in sorted(device)
    ]
    return Timeline(
        lanes=tuple(lane for lane in lanes if lane.spans),
        gaps=tuple(
            _gap(gap, window, finding_of_wait, finding_of_owner, finding_of_launches)
            for gap in _charged(trace, waits, intervals, window)
        ),
        step_starts_us=tuple(
            start - begin_us for start in trace.steps if begin_us <= start < end_us
        ),
        end_us=end_us - begin_us,
    )


_NAMES: dict[str, tuple[str, SpanKind]] = {
    "loader": ("waiting for a batch", "data"),
    "collective": ("waiting for other processes", "wait"),
    "gc": ("garbage collection", "host code"),
    "allocation": ("cudaMalloc", "host code"),
}


class _Window:
    """A stretch of a trace whose times begin at 0."""

    def __init__(self, begin_us: float, end_us: float) -> None:
        self.begin_us, self.end_us = begin_us, end_us

    def add(
        self,
        spans: list[Span],
        name: str,
        kind: SpanKind,
        start: float,
        end: float,
        finding: int | None = None,
    ) -> None:
        """Add what lies in the stretch."""
        start, end = max(start, self.begin_us), min(end, self.end_us)
        if start < end:
            spans.append(
                Span(
                    name=name[:_MAX_NAME],
                    kind=kind,
                    start_us=round(start - self.begin_us, 3),
                    end_us=round(end - self.begin_us, 3),
                    finding=finding,
                )
            )


def _lane_name(trace: Trace, thread: int) -> str:
    name = trace.thread_name(thread)
    return f"{name} thread" if name in ("main", "autograd") else name


def _launches(trace: Trace, waits: Sequence[Wait], window: _Window) -> dict[int, list[Span]]:
    queued = {work.correlation for work in trace.works}
    queued -= {wait.correlation for wait in waits} | {wait.copy or 0 for wait in waits}
    found: dict[int, list[Span]] = defaultdict(list)
    for call in trace.calls:
        if call.correlation in queued:
            window.add(found[call.thread], call.name, "launch", call.start_us, call.end_us)
    return found


def _streams(trace: Trace, window: _Window) -> dict[int, list[Span]]:
    kinds: dict[str, SpanKind] = {"kernel": "kernel", "copy": "copy", "fill": "fill"}
    found: dict[int, list[Span]] = defaultdict(list)
    for work in trace.works:
        window.add(found[work.stream], work.name, kinds[work.kind], work.start_us, work.end_us)
    return found


def _in_order(spans: Sequence[Span]) -> tuple[Span, ...]:
    return tuple(sorted(spans, key=lambda span: (span.start_us, span.end_us)))


def _device_span(work: Work, call: Call | None) -> DeviceSpan:
    launch, ready = work.start_us, work.start_us
    if call is not None:
        launch = call.start_us
        if work.start_us > call.end_us + _LATENCY_US:
            ready = call.end_us
    return DeviceSpan(start_us=work.start_us, end_us=work.end_us, launch_us=launch, ready_us=ready)


def _charged(
    trace: Trace,
    waits: Sequence[Wait],
    intervals: Sequence[HostInterval],
    window: _Window,
) -> list[ChargedGap]:
    chain = {trace.main, *trace.autograd}
    calls = {call.correlation: call for call in trace.calls}
    device = [_device_span(work, calls.get(work.correlation)) for work in trace.works]
    host = [
        HostSpan(kind="wait", start_us=wait.start_us, end_us=wait.end_us, owner=place)
        for place, wait in enumerate(waits)
        if wait.thread in chain
    ]
    host += [
        HostSpan(kind=one.kind, start_us=one.start_us, end_us=one.end_us, owner=one.owner)
        for one in intervals
    ]
    queued = {work.correlation for work in trace.works}
    host += [
        HostSpan(kind="launch", start_us=call.start_us, end_us=call.end_us)
        for call in trace.calls
        if call.thread in chain and call.correlation in queued
    ]
    return charge_gaps(device, host, begin_us=window.begin_us, end_us=window.end_us)


def _gap(
    gap: ChargedGap,
    window: _Window,
    finding_of_wait: Mapping[int, int],
    finding_of_owner: Mapping[int, int],
    finding_of_launches: int | None,
) -> Gap:
    most = max(gap.charges, key=lambda charge: charge.us)
    finding = finding_of_launches if most.cause == "launch" else None
    if most.owner is not None:
        of = finding_of_wait if most.cause == "wait" else finding_of_owner
        finding = of.get(most.owner)
    return Gap(
        start_us=round(gap.start_us - window.begin_us, 3),
        end_us=round(gap.end_us - window.begin_us, 3),
        cause=_GAP_CAUSES[most.cause],
        finding=finding,
    )
