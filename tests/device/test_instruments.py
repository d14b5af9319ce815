"""Clocks, traces and the driver's figures."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from time import perf_counter, process_time

import pytest

from gapless.device.find import find_device
from gapless.device.instruments.kernel_trace import KernelTrace, lanes_of, summarise
from gapless.device.instruments.nvml import Sampler
from gapless.device.instruments.processor import cpu_seconds, num_cores
from gapless.errors import DeviceError


CPU = find_device("cpu")


def test_processor_time_holds_that_of_children():
    """Processor time of children counts while they run and after they have ended."""
    start, own = cpu_seconds(), process_time()
    spin = "import time\nwhile time.process_time() < 0.2: pass\nprint(flush=True)"
    subprocess.run([sys.executable, "-c", spin], check=True, capture_output=True)
    ended = cpu_seconds() - start - (process_time() - own)
    ready, leave = multiprocessing.Event(), multiprocessing.Event()
    child = multiprocessing.Process(target=_spin, args=(ready, leave))
    start, own = cpu_seconds(), process_time()
    child.start()
    ready.wait()
    running = cpu_seconds() - start - (process_time() - own)
    leave.set()
    child.join()

    assert ended >= 0.15
    assert running >= 0.15


def test_processor_time_is_not_counted_in_ticks():
    """Three milliseconds are seen as such, not as zero or ten."""
    own = process_time()
    start = cpu_seconds()
    while process_time() - own < 0.003:
        pass
    found = cpu_seconds() - start

    assert 0.0 < found <= process_time() - own


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a child inherits no size")
def test_peak_memory_is_that_of_the_program_not_of_what_started_it():
    """A small program that a large one starts says its own size."""
    held = bytearray(b"\1") * (700 << 20)
    code = "from gapless.device.find import find_device as f; print(f('cpu').peak_memory_bytes())"
    ended = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)

    assert 50 << 20 < int(ended.stdout) < len(held)
    assert CPU.peak_memory_bytes() > len(held)


def _spin(ready, leave):
    start = process_time()
    while process_time() - start < 0.25:
        pass
    ready.set()
    leave.wait()


def event(start, end, cat="kernel", stream=7):
    return {"ph": "X", "cat": cat, "ts": start, "dur": end - start, "args": {"stream": stream}}


def test_kernels_side_by_side_count_once():
    """Busy time is the union of the kernels; their sum shows the overlap."""
    spans = [(4000, 6000), (0, 2000), (1000, 3000), (1500, 1600), (2500, 2800)]

    found = summarise([event(*span) for span in spans])

    assert found == KernelTrace(num_kernels=5, busy_ms=5.0, kernel_ms=6.4, ms_of_streams=(6.4,))


def test_kernel_time_is_kept_apart_by_stream():
    """The stream with most of the time comes first."""
    spans = [(0, 1000, "kernel", 7), (1000, 4000, "kernel", 13), (4000, 5000, "kernel", 7)]

    assert summarise([event(*span) for span in spans]).ms_of_streams == (3.0, 2.0)


def test_fills_are_busy_but_no_kernels():
    """A fill counts as busy time, not as a kernel; a trace without events gives None."""
    found = summarise([event(0, 1000), event(1000, 2000, "gpu_memset")])

    assert (found.num_kernels, found.busy_ms) == (1, 2.0)
    assert summarise([]) is None


def test_a_trace_has_a_lane_for_each_stream_on_the_clock_of_the_host():
    """Work is in order of its start, copies from the host included, and all times are moved."""
    events = [
        event(5000, 6000, stream=13),
        event(1000, 2000, "gpu_memset"),
        event(0, 500, "gpu_memcpy"),
    ]
    lanes = lanes_of([{"name": "w", **one} for one in events], shift_us=100.0)

    assert [lane.name for lane in lanes] == ["stream 7", "stream 13"]
    assert [(span.kind, span.start_us, span.end_us) for span in lanes[0].spans] == [
        ("copy", 100.0, 600.0),
        ("fill", 1100.0, 2100.0),
    ]
    assert all(lane.is_device for lane in lanes)


def test_a_sampler_reads_until_its_body_ends_and_skips_the_start():
    """Values from the start are dropped, and an error ends only the reading."""
    start, times = perf_counter(), []

    def read():
        times.append(perf_counter() - start)
        if len(times) == 5:
            raise DeviceError("gone")
        return 10.0 * len(times)

    with Sampler(read, period_seconds=0.001, skip_seconds=0.05) as sampler:
        while len(times) < 5:
            pass

    assert min(times) >= 0.05
    assert sampler.values == [10.0, 20.0, 30.0, 40.0]
    assert sampler.mean == 25.0
    with Sampler(read, skip_seconds=60.0) as nothing:
        pass
    assert nothing.mean is None


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux")
def test_a_process_that_was_given_one_core_has_one():
    """As under `taskset`, or a scheduler's job, on a machine with many."""
    code = (
        "import os\n"
        "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "from gapless.device.instruments.processor import num_cores\n"
        "print(num_cores())"
    )

    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )

    assert found.stdout == "1\n"


@pytest.mark.parametrize(("told", "expected"), [(6, 6), (None, 1)])
def test_where_the_system_does_not_tell_it_is_all_cores(monkeypatch, told, expected):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: told)

    assert num_cores() == expected
