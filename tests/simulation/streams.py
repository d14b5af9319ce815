"""Streams and events by hand."""

from __future__ import annotations

import torch

from gapless.nmt.stream_manager import StreamManager
from simulation.registry import scenario


@scenario()
def streams_chained_by_hand(device):
    outer = device.current_stream()
    with StreamManager(device, num_streams=2) as streams:
        streams.create_stream("side")
        done = streams.create_event()
        value = device.device_buffer(4).view(torch.float32)
        streams.set_current_stream(0)
        value.fill_(1.0)
        streams.record_event(done, 0)
        streams.wait_event(done, 1)
        with streams.use(1):
            value *= 2
        assert streams.get_current_stream() is streams.get_stream(0)
        again = streams.create_event()
        streams.record_event(again, 1)
        streams.wait_event(again, "side")
        with streams.use("side"):
            value += 5
            pinned = device.host_buffer(4, pinned=True).view(torch.float32)
            device.copy(pinned, value)
        streams.synchronize("side")
        assert pinned.tolist() == [7.0]
        with streams.use("side"):
            value += 1
            device.copy(pinned, value)
        last = streams.create_event()
        streams.record_event(last, "side")
        streams.synchronize_event(last)
        assert streams.query_event(last)
        assert pinned.tolist() == [8.0]
        with streams.use("side"):
            value += 1
            device.copy(pinned, value)
        streams.synchronize_all()
        assert pinned.tolist() == [9.0]
    assert device.current_stream() is outer
    assert streams.num_streams == 0
    assert {name: wait.count for name, wait in streams.stats.by_reason.items()} == {
        "stream": 4,
        "event": 1,
    }


@scenario(only="lazy")
def an_event_is_not_done_before_its_work(device):
    with StreamManager(device, num_streams=1) as streams:
        event = streams.create_event()
        with streams.use(0):
            device.device_buffer(4).fill_(1)
        streams.record_event(event, 0)
        assert not streams.query_event(event)
