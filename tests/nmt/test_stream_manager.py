"""Streams with numbers and names, and the events between them."""

from __future__ import annotations

import pytest

from gapless.device.find import find_device
from gapless.nmt import StreamManager


def test_streams_have_numbers_and_names():
    """A manager returns the streams that it created, and lists them when asked for another."""
    with StreamManager("cpu", num_streams=3) as streams:
        streams.create_stream("metrics")

        assert streams.num_streams == 4
        assert streams.get_stream(1) is streams.get_compute_stream()
        with pytest.raises(ValueError, match="'metrics' exists already"):
            streams.create_stream("metrics")
        with pytest.raises(KeyError, match="no stream 7; the streams are 0, 1, 2, 'metrics'"):
            streams.get_stream(7)


@pytest.mark.parametrize("count", [0, 9])
def test_the_number_of_streams_is_one_to_eight(count):
    """A number of streams outside 1 to 8 is refused."""
    with pytest.raises(ValueError, match=f"1 to 8, but is {count}"):
        StreamManager("cpu", num_streams=count)


def test_waits_are_counted_by_reason():
    """Waits for events and streams are counted by their reasons."""
    streams = StreamManager("cpu", num_streams=2)
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
    with pytest.raises(RuntimeError), StreamManager(device) as streams:
        streams.set_current_stream(0)
        with streams.use(1) as inner:
            assert inner is streams.get_current_stream()
        raise RuntimeError

    assert before is device.current_stream()
