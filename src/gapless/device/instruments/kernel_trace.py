"""Which kernels a GPU ran, from a trace of torch's profiler.

The pipeline's meter sees idle time between steps; a trace also sees idle time between the kernels
of one step. Tracing slows the host down, so wall times are measured without it.

Source: the trace format of torch.profiler.profile.export_chrome_trace, whose categories `kernel`,
`gpu_memcpy` and `gpu_memset` come from CUPTI and include kernels inside CUDA graphs.
"""

from __future__ import annotations

import json
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from gapless.records.timeline import Lane, Span


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gapless.records.timeline import SpanKind

_WORK: dict[str, SpanKind] = {"kernel": "kernel", "gpu_memset": "fill", "gpu_memcpy": "copy"}


@dataclass(frozen=True, kw_only=True)
class KernelTrace:
    """Totals of a trace.

    Attributes:
        num_kernels: kernels, including those inside graphs.
        busy_ms: time during which at least one kernel, fill or copy within the device ran. Copies
            from and to the host do not count: they use copy engines.
        kernel_ms: sum of the kernels' times; more than `busy_ms` if some ran side by side.
        ms_of_streams: sum of the kernels' times on each stream that ran some, largest first.
        lanes: streams with all of their work, copies from and to the host included; times are
            microseconds of `perf_counter`.
    """

    num_kernels: int
    busy_ms: float
    kernel_ms: float
    ms_of_streams: tuple[float, ...]
    lanes: tuple[Lane, ...] = ()


def trace_kernels(index: int, work: Callable[[], object]) -> KernelTrace | None:
    """Call a function and return which kernels a GPU ran meanwhile; None if it ran none.

    Args:
        index: of the GPU, as torch numbers it.
        work: queues kernels, and waits for them.

    Sync: Blocks the host until the device is idle.
    """
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities, acc_events=True) as profile:
        work()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(path))
        trace = json.loads(path.read_text(encoding="utf-8"))
    events = [event for event in trace["traceEvents"] if _is_work(event, index=index)]
    found = summarise([event for event in events if not _is_host_copy(event)])
    if found is None:
        return None
    # The trace counts from a base in the time of the system's clock.
    shift_ns = trace.get("baseTimeNanoseconds", 0) - (time.time_ns() - time.perf_counter_ns())
    return replace(found, lanes=lanes_of(events, shift_us=shift_ns / 1000.0))


def _is_work(event: dict[str, Any], *, index: int) -> bool:
    if event.get("ph") != "X" or event.get("cat") not in _WORK:
        return False
    return bool(event.get("args", {}).get("device", index) == index)


def _is_host_copy(event: dict[str, Any]) -> bool:
    return event["cat"] == "gpu_memcpy" and "DtoD" not in event.get("name", "")


def lanes_of(events: Iterable[dict[str, Any]], *, shift_us: float) -> tuple[Lane, ...]:
    """Return a lane for each stream, by its number, with the work of trace events.

    Args:
        events: with `name`, `cat`, the stream in `args`, and with `ts` and `dur` in microseconds.
        shift_us: added to all times.
    """
    streams: dict[int, list[Span]] = {}
    for event in sorted(events, key=lambda event: float(event["ts"])):
        start_us = event["ts"] + shift_us
        span = Span(
            name=event.get("name", ""),
            kind=_WORK[event["cat"]],
            start_us=start_us,
            end_us=start_us + event["dur"],
        )
        streams.setdefault(int(event.get("args", {}).get("stream", 0)), []).append(span)
    return tuple(
        Lane(name=f"stream {number}", is_device=True, spans=tuple(spans))
        for number, spans in sorted(streams.items())
    )


def summarise(events: Iterable[dict[str, Any]]) -> KernelTrace | None:
    """Return the totals of trace events of one device; None if there are none.

    Args:
        events: with `cat`, the stream in `args`, and with `ts` and `dur` in microseconds.
    """
    found = list(events)
    spans = sorted((event["ts"], event["ts"] + event["dur"]) for event in found)
    if not spans:
        return None
    return KernelTrace(
        num_kernels=sum(event["cat"] == "kernel" for event in found),
        busy_ms=_covered(spans) / 1000.0,
        kernel_ms=sum(event["dur"] for event in found) / 1000.0,
        ms_of_streams=_by_stream(found),
    )


def _by_stream(events: Iterable[dict[str, Any]]) -> tuple[float, ...]:
    totals: dict[Any, float] = {}
    for event in events:
        stream = event.get("args", {}).get("stream")
        totals[stream] = totals.get(stream, 0.0) + event["dur"]
    return tuple(sorted((us / 1000.0 for us in totals.values()), reverse=True))


def _covered(spans: list[tuple[float, float]]) -> float:
    """Return the length of the union of spans that are sorted by their start."""
    covered, reached = 0.0, spans[0][0]
    for start, end in spans:
        covered += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return covered
