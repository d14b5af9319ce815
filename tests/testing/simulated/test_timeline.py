"""The virtual clock: how long work takes, and what runs at the same time."""

from __future__ import annotations

import pytest
import torch

from gapless.testing.simulated.simulated_device import SimulatedDevice
from gapless.testing.simulated.virtual_clock import Timeline


def timeline_of(**durations):
    return Timeline(durations)


def test_an_engine_does_one_thing_after_another():
    """Two streams share the one engine for kernels, in order of launch."""
    timeline = timeline_of(kernel=3.0)
    ends = [timeline.run("compute", "kernel", after_ms=0.0, stream=name) for name in "ab"]

    assert ends == [3.0, 6.0]
    assert [(span.start_ms, span.end_ms) for span in timeline.spans] == [(0.0, 3.0), (3.0, 6.0)]


def test_engines_work_beside_each_other():
    """A copy in, a kernel and a copy out take as long as the longest of them."""
    timeline = timeline_of(h2d=2.0, kernel=3.0, d2h=1.0)
    lanes = {"h2d": "h2d", "compute": "kernel", "d2h": "d2h"}
    ends = [timeline.run(lane, name, after_ms=0.0, stream="a") for lane, name in lanes.items()]

    assert ends == [2.0, 3.0, 1.0]
    assert timeline.overlap_ms("h2d", "compute") == 2.0
    assert timeline.overlap_ms("compute", "d2h") == 1.0


def test_work_starts_when_its_stream_and_the_host_have_come_to_it():
    """Work starts neither before what it waits for nor before its launch."""
    timeline = timeline_of(kernel=1.0, work=4.0)

    assert timeline.run("compute", "kernel", after_ms=2.5, stream="a") == 3.5
    timeline.spend("work")
    assert timeline.run("compute", "kernel", after_ms=0.0, stream="a") == 5.0


def test_what_has_no_duration_takes_no_time():
    """Work without a duration leaves no span and does not occupy the engine."""
    timeline = timeline_of(kernel=1.0)
    timeline.run("compute", "kernel", after_ms=5.0, stream="a")

    assert timeline.run("compute", "other", after_ms=0.0, stream="b") == 0.0
    assert len(timeline.spans) == 1


def test_a_host_that_waits_is_not_busy():
    """Waiting and working are counted apart."""
    timeline = timeline_of(work=2.0)
    timeline.spend("work")
    timeline.pass_until(5.0, "wait")
    timeline.pass_until(1.0, "wait")

    assert timeline.busy_ms("host") == 2.0
    assert timeline.waited_ms() == 3.0
    assert timeline.waited_ms(since=3.0, until=4.0) == 1.0
    assert timeline.now_ms == 5.0


def test_busy_time_counts_what_lies_within():
    """Work that crosses the edge of an interval counts in part."""
    timeline = timeline_of(kernel=4.0)
    timeline.run("compute", "kernel", after_ms=1.0, stream="a")

    assert timeline.busy_ms("compute", since=2.0, until=3.0) == 1.0
    assert timeline.busy_ms("compute", since=4.0) == 1.0
    assert timeline.busy_ms("compute", until=1.0) == 0.0


def test_a_drawing_has_a_letter_for_each_stretch_of_work():
    """Neighbours in a drawing differ in case, and it ends where it was told to."""
    timeline = timeline_of(h2d=2.0, kernel=2.0, load=1.0)
    timeline.spend("load")
    for _ in range(2):
        done = timeline.run("h2d", "h2d", after_ms=0.0, stream="a")
        timeline.run("compute", "kernel", after_ms=done, stream="b")

    assert timeline.draw().splitlines() == [
        "host    l......",
        "h2d     .hhHH..",
        "compute ...kkKK",
        "d2h     .......",
    ]
    assert timeline.draw(ms_per_column=2.0, until=4.0).splitlines()[2] == "compute ..k"[:10]


def test_an_empty_drawing_has_the_lanes():
    """A drawing without work has the names of the four lanes."""
    assert [line.strip() for line in timeline_of().draw().splitlines()] == [
        "host",
        "h2d",
        "compute",
        "d2h",
    ]


@pytest.fixture
def device():
    durations = {"h2d": 2.0, "kernel": 3.0, "launch": 0.5, "step": 4.0}
    with SimulatedDevice(scheduler="asap", durations=durations) as device:
        yield device


def test_events_measure_virtual_time(device):
    """Two kernels of three milliseconds lie between two records."""
    x = device.device_buffer(8)
    start, end = device.create_event(timed=True), device.create_event(timed=True)
    x.fill_(1)
    device.record_event(start, device.current_stream())
    x.fill_(2)
    x.fill_(3)
    device.record_event(end, device.current_stream())
    with pytest.raises(ValueError, match="are done; query them first"):
        device.elapsed_ms(start, end)
    device.synchronize_event(end)

    assert device.elapsed_ms(start, end) == 6.0
    with pytest.raises(ValueError, match="two recorded events"):
        device.elapsed_ms(start, device.create_event())


def test_a_wait_takes_the_host_to_the_end_of_the_work(device):
    """After a wait, the host's clock stands at the end of the device's work."""
    device.device_buffer(8).fill_(1)
    device.synchronize_stream(device.current_stream())

    assert device.timeline.now_ms == 3.5
    assert device.timeline.waited_ms() == 3.0


def test_a_copy_runs_beside_kernels_of_another_stream(device):
    """A copy takes no extra time beside a kernel of another stream."""
    pinned = device.host_buffer(8, pinned=True)
    x, y, side = device.device_buffer(8), device.device_buffer(8), device.create_stream()
    x.fill_(1)
    with device.use_stream(side):
        device.copy(y, pinned)

    assert device.timeline.overlap_ms("h2d", "compute") == 2.0


def test_a_stream_that_waits_starts_later(device):
    """A wait for another stream delays the work after it."""
    pinned = device.host_buffer(8, pinned=True)
    y, side = device.device_buffer(8), device.create_stream()
    with device.use_stream(side):
        device.copy(y, pinned)
    device.wait_stream(device.current_stream(), side)
    y.add_(1)

    copy, kernel = [span for span in device.timeline.spans if span.lane != "host"]
    assert kernel.start_ms == copy.end_ms


def test_a_region_takes_its_time_once(device):
    """All kernels of a region together take the duration of its name."""
    x = device.device_buffer(8)
    with device.region("step"):
        x.fill_(1)
        x.add_(1)
        x.mul_(2)

    assert device.timeline.busy_ms("compute") == 4.0


def test_a_delay_keeps_its_stream_busy(device):
    """Work after a delay starts when the delay ends; other streams do not wait."""
    side, event = device.create_stream(), device.create_event()
    device.delay(side, 10.0)
    device.record_event(event, side)
    x = device.device_buffer(8).view(torch.float32).fill_(1.0)
    assert x.tolist() == [1.0, 1.0]
    assert not device.query_event(event)
    device.synchronize_event(event)

    assert device.timeline.now_ms == 10.0
