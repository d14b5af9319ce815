"""What a GPU ran, kernel by kernel, from a trace of torch's profiler.

The meter of the pipeline sees the time between steps; a trace sees the idle time between the
kernels of a step as well. It slows the host down while it runs, so wall times are measured
without it.

Source: the trace format of torch.profiler.profile.export_chrome_trace, whose categories `kernel`,
`gpu_memcpy` and `gpu_memset` come from CUPTI; kernels inside CUDA graphs are among them.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gapless.device.base import Device


_WORK = ("kernel", "gpu_memset", "gpu_memcpy")


@dataclass(frozen=True, kw_only=True)
class KernelTrace:
    """What a device ran.

    Attributes:
        num_kernels: kernels, those inside graphs included.
        busy_ms: time in which at least one kernel, fill or copy within the device ran. Copies
            from and to the host do not count: they have engines of their own.
        kernel_ms: their times summed; more than `busy_ms` where some ran side by side.
        span_ms: from the start of the first to the end of the last.
    """

    num_kernels: int
    busy_ms: float
    kernel_ms: float
    span_ms: float


def trace_kernels(device: Device, work: Callable[[], object]) -> KernelTrace | None:
    """Run a function and return what the device ran meanwhile; None where no trace exists.

    Args:
        device: whose kernels are counted.
        work: queues them, and waits for them.

    Sync: Blocks the host until the device is idle.
    """
    if device.torch_device.type != "cuda":
        return None
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities, acc_events=True) as profile:
        work()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    index = device.torch_device.index or 0
    return summarise([event for event in events if _is_work(event, index=index)])


def _is_work(event: dict[str, Any], *, index: int) -> bool:
    if event.get("ph") != "X" or event.get("cat") not in _WORK:
        return False
    if event.get("args", {}).get("device", index) != index:
        return False
    return event["cat"] != "gpu_memcpy" or "DtoD" in event.get("name", "")


def summarise(events: Iterable[dict[str, Any]]) -> KernelTrace | None:
    """Return the totals of trace events of one device; None if there are none.

    Args:
        events: with `cat`, and with `ts` and `dur` in microseconds.
    """
    found = list(events)
    spans = sorted((event["ts"], event["ts"] + event["dur"]) for event in found)
    if not spans:
        return None
    return KernelTrace(
        num_kernels=sum(event["cat"] == "kernel" for event in found),
        busy_ms=_covered(spans) / 1000.0,
        kernel_ms=sum(end - start for start, end in spans) / 1000.0,
        span_ms=(max(end for _, end in spans) - spans[0][0]) / 1000.0,
    )


def _covered(spans: list[tuple[float, float]]) -> float:
    """Return the length of the union of spans that are sorted by their start."""
    covered, reached = 0.0, spans[0][0]
    for start, end in spans:
        covered += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return covered
