"""Streams by number and name, and their events."""

from __future__ import annotations

import pytest

from gapless.device.find import find_device
from gapless.pipeline.meter import GapMeter
from gapless.pipeline.streams import EventPool, stream_roles


@pytest.mark.parametrize("count", range(1, 9))
def test_every_stream_carries_something(count):
    """No stream of a plan is there for show."""
    found = stream_roles(count)

    used = {*found.transfer, found.forward, found.backward, found.readback}
    assert set(range(count)) == used


def test_events_are_used_again():
    """A pool creates no more events than are out at once."""
    device = find_device("cpu")
    pool = EventPool(device)
    for _ in range(5):
        pool.give_back(pool.record(device.current_stream()))

    assert pool.num_created == 1


class ScriptedDevice:
    """Events done when the test says so, at times the test says."""

    def __init__(self):
        self.now = 0.0
        self.done_until = 3.0

    def create_event(self, *, timed):
        return {}

    def record_event(self, event, stream):
        event["at"] = self.now

    def query_event(self, event):
        return event["at"] <= self.done_until

    def elapsed_ms(self, start, end):
        return end["at"] - start["at"]


def test_busy_time_and_gaps_add_up_to_the_span():
    """Steps of 3 ms every 5 ms are busy for 3 and idle for 2, and a pause is no gap."""
    device = ScriptedDevice()
    meter = GapMeter(device)
    for start in (0, 5, 10):
        device.now = start
        meter.start_step(None)
        device.now = start + 3
        meter.end_step(None)
    meter.poll()
    before = meter.reading()
    device.done_until = 100.0
    meter.pause()
    device.now = 50.0
    meter.start_step(None)
    device.now = 53.0
    meter.end_step(None)
    meter.poll()

    assert (before.busy_ms, before.gap_ms) == (3.0, 0.0)
    assert (meter.reading().busy_ms, meter.reading().gap_ms) == (12.0, 4.0)
    assert meter.reading().gap_share == 0.25
