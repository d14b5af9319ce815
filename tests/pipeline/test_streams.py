"""Streams by number and name, and their events."""

from __future__ import annotations

import pytest

import gapless
from gapless.device.find import find_device
from gapless.errors import DeviceError
from gapless.pipeline.meter import GapMeter
from gapless.pipeline.streams import EventPool, lanes


def test_streams_have_numbers_and_names():
    """A manager offers what it created, and names what it has when asked for another."""
    with gapless.StreamManager("cpu", num_streams=3) as streams:
        streams.create_stream("metrics")

        assert streams.num_streams == 4
        assert streams.get_stream(1) is streams.get_compute_stream()
        with pytest.raises(ValueError, match="'metrics' exists already"):
            streams.create_stream("metrics")
        with pytest.raises(KeyError, match="no stream 7; the streams are 0, 1, 2, 'metrics'"):
            streams.get_stream(7)


@pytest.mark.parametrize("count", [0, 9])
def test_the_number_of_streams_is_one_to_eight(count):
    """Any other number is refused."""
    with pytest.raises(ValueError, match=f"1 to 8, but is {count}"):
        gapless.StreamManager("cpu", num_streams=count)


def test_waits_are_counted_by_reason():
    """Events and streams are waited for through one account."""
    streams = gapless.StreamManager("cpu", num_streams=2)
    event = streams.create_event(timed=True)
    later = streams.create_event(timed=True)
    streams.record_event(event, 0)
    streams.record_event(later, 0)
    streams.wait_event(event, 1)
    streams.synchronize_event(event, reason="log")
    streams.synchronize_all()

    assert streams.query_event(event)
    assert streams.elapsed_ms(event, later) >= 0
    counts = {reason: total.count for reason, total in streams.stats.by_reason.items()}
    assert counts == {"log": 1, "stream": 2}
    assert streams.stats.count == 3
    assert streams.stats.ms >= 0


def test_closing_returns_to_the_stream_that_was_current():
    """A manager leaves the current stream as it found it, also when the body raises."""
    device = find_device("cpu")
    before = device.current_stream()
    with pytest.raises(RuntimeError), gapless.StreamManager(device) as streams:
        streams.set_current_stream(0)
        with streams.use(1) as inner:
            assert inner is streams.get_current_stream()
        raise RuntimeError

    assert before is device.current_stream()


@pytest.mark.parametrize("count", range(1, 9))
def test_every_stream_carries_something(count):
    """No stream of a plan is there for show."""
    found = lanes(count)

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


@pytest.mark.parametrize("name", ["tpu", "cuda:x", "cpu:1", ""])
def test_an_unknown_device_is_refused(name):
    """The message lists the devices there are."""
    with pytest.raises(DeviceError, match="auto, cpu, cuda and cuda:N"):
        find_device(name)
