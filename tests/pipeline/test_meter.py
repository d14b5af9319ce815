"""Busy time and gaps, on a device whose clock the test sets."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from gapless.pipeline.meter import GapMeter, GapReading


class ScriptedDevice:
    """Time stands still until a test moves it; events are done once `done_until` passed them."""

    def __init__(self):
        self.now = 0
        self.done_until = 0
        self.num_events = 0

    def create_event(self, *, timed):
        assert timed
        self.num_events += 1
        return {}

    def record_event(self, event, stream):
        event["at"] = self.now

    def query_event(self, event):
        return event["at"] <= self.done_until

    def elapsed_ms(self, start, end):
        assert max(start["at"], end["at"]) <= self.done_until
        return end["at"] - start["at"]


def run_step(meter, device, *, start, end):
    device.now = start
    meter.start_step(None)
    device.now = end
    meter.end_step(None)


durations = st.tuples(st.integers(0, 9), st.integers(1, 9), st.booleans(), st.booleans())


@given(st.lists(durations, max_size=20))
def test_gaps_are_the_time_between_steps_without_pauses(steps):
    """Busy time and gaps are those of the script, whenever they are read."""
    device = ScriptedDevice()
    meter = GapMeter(device)
    busy = gap = 0
    follows = False
    for idle, length, reads, pauses in steps:
        start = device.now + idle
        run_step(meter, device, start=start, end=start + length)
        busy += length
        gap += idle if follows else 0
        follows = not pauses
        if reads:
            device.done_until = device.now
            meter.poll()
            assert GapReading(busy_ms=busy, gap_ms=gap) == meter.reading()
        if pauses:
            meter.pause()
    device.done_until = device.now
    meter.poll()

    assert GapReading(busy_ms=busy, gap_ms=gap) == meter.reading()


def test_steps_are_taken_in_only_when_they_are_done():
    """A reading holds the steps that an event says are done, and no later one."""
    device = ScriptedDevice()
    meter = GapMeter(device)
    run_step(meter, device, start=0, end=3)
    run_step(meter, device, start=5, end=9)
    readings = []
    for device.done_until in (2, 3, 8, 9):
        meter.poll()
        readings.append((meter.reading().busy_ms, meter.reading().gap_ms))

    assert readings == [(0, 0), (3, 0), (3, 0), (7, 2)]


def test_a_step_that_failed_is_not_counted():
    """A start without an end is forgotten when the next step starts."""
    device = ScriptedDevice()
    meter = GapMeter(device)
    meter.start_step(None)
    meter.pause()
    run_step(meter, device, start=50, end=53)
    device.done_until = 60
    meter.poll()

    assert GapReading(busy_ms=3, gap_ms=0) == meter.reading()


def test_a_reading_that_was_interrupted_counts_no_step_twice():
    """The step whose times were being read is lost from them; those after it are right."""
    device = ScriptedDevice()
    device.done_until = 20
    meter = GapMeter(device)
    run_step(meter, device, start=0, end=3)
    meter.poll()
    run_step(meter, device, start=5, end=9)
    device.elapsed_ms = None
    with pytest.raises(TypeError):
        meter.poll()
    del device.elapsed_ms
    run_step(meter, device, start=10, end=14)
    meter.poll()

    assert GapReading(busy_ms=7, gap_ms=1) == meter.reading()


def test_events_of_steps_read_are_used_again():
    """A long epoch needs as many events as steps are in flight, not as many as steps."""
    device = ScriptedDevice()
    meter = GapMeter(device)
    for number in range(100):
        run_step(meter, device, start=10 * number, end=10 * number + 5)
        device.done_until = device.now
        meter.poll()

    assert device.num_events <= 4


def test_the_share_of_gaps():
    """Two idle of eight milliseconds are a quarter; nothing measured has no share."""
    assert GapReading(busy_ms=6.0, gap_ms=2.0).gap_share == 0.25
    assert None is GapReading(busy_ms=0.0, gap_ms=0.0).gap_share
    later, earlier = GapReading(busy_ms=9.0, gap_ms=4.0), GapReading(busy_ms=3.0, gap_ms=2.0)
    assert GapReading(busy_ms=6.0, gap_ms=2.0) == later - earlier
