"""How long kernels run: one short profile a row, apart from the timed rounds."""

from __future__ import annotations

import gzip
import json
import tempfile
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.profiler import ProfilerActivity, profile

from gapless.device.instruments.kernel_trace import summarise


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


@dataclass(kw_only=True)
class KernelTimes:
    """What ran on the device while it was watched.

    Attributes:
        num_kernels: kernels, those of replayed graphs included.
        busy_ms: time in which a kernel ran; where several ran at once, it counts once.
        ms_by_name: time of all runs of each kernel, summed.
        compute_ms: time in which a kernel ran that is not NCCL's, nor waits for another GPU.
        collectives: of each kernel of NCCL that sums, in their order: its time, and the part of it in which no
            other kernel ran, in milliseconds. The wait for a rank that comes later is in both.
    """

    num_kernels: int = 0
    busy_ms: float = 0.0
    ms_by_name: Counter[str] = field(default_factory=Counter)
    compute_ms: float = 0.0
    collectives: list[tuple[float, float]] = field(default_factory=list)

    def costliest(self, count: int) -> list[dict[str, Any]]:
        """Return the kernels that took most, with their share of the time of all."""
        total = self.ms_by_name.total() or 1.0
        return [
            {"kernel": name, "ms": ms, "share": ms / total}
            for name, ms in self.ms_by_name.most_common(count)
        ]


@contextmanager
def watch_kernels(times: KernelTimes, *, trace: Path | None = None) -> Iterator[None]:
    """Fill `times` with what runs on the GPU during the body, which must end with an idle device.

    The host runs slower under a profiler; the durations of kernels are as they always are.

    Args:
        times: to be filled.
        trace: file for the compressed trace, for chrome://tracing or Perfetto; None: it goes.
    """
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        yield
    with tempfile.TemporaryDirectory(prefix="peers-") as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        text = path.read_bytes()
    if trace is not None:
        trace.write_bytes(gzip.compress(text))
    events = json.loads(text)["traceEvents"]
    count_kernels(times, events)


def count_kernels(times: KernelTimes, events: Iterable[dict[str, Any]]) -> None:
    """Fill `times` from the events of a trace.

    Copies and fills are left out: engines of their own run them beside kernels, so a device that
    only copies would look busy.
    """
    kernels = [event for event in events if event.get("cat") == "kernel"]
    found = summarise(kernels)
    if found is not None:
        times.num_kernels, times.busy_ms = found.num_kernels, found.busy_ms
    for event in kernels:
        times.ms_by_name[event["name"]] += event["dur"] / 1000.0
    compute = summarise([event for event in kernels if not _is_between_ranks(event)])
    times.compute_ms = 0.0 if compute is None else compute.busy_ms
    times.collectives = _collectives(kernels)


def _collectives(kernels: list[dict[str, Any]]) -> list[tuple[float, float]]:
    """Return the time of each sum of NCCL, and the part of it in which nothing else ran, in ms."""
    sums = sorted(_span(event) for event in kernels if _is_of_nccl(event) and _sums(event))
    others = sorted(_span(event) for event in kernels if not _is_between_ranks(event))
    return [
        ((end - start) / 1000.0, (end - start - _covered(others, start, end)) / 1000.0)
        for start, end in sums
    ]


def _span(event: dict[str, Any]) -> tuple[float, float]:
    return event["ts"], event["ts"] + event["dur"]


def _is_of_nccl(event: dict[str, Any]) -> bool:
    return str(event["name"]).startswith("nccl")


def _is_between_ranks(event: dict[str, Any]) -> bool:
    return _is_of_nccl(event) or "symmetric_memory::barrier" in event["name"]


def _sums(event: dict[str, Any]) -> bool:
    # Losses are gathered now and then.
    return not any(word in event["name"] for word in ("AllGather", "Broadcast"))


def _covered(spans: Iterable[tuple[float, float]], start: float, end: float) -> float:
    """Return how much of an interval a union of spans covers; they are sorted by their start."""
    covered, reached = 0.0, start
    for one_start, one_end in spans:
        begin, stop = max(one_start, reached), min(one_end, end)
        covered += max(0.0, stop - begin)
        reached = max(reached, stop)
    return covered
