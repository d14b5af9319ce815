"""Calls of the device protocol that order two accesses, and the races without them."""

from __future__ import annotations

import pytest
import torch

from gapless.testing.simulated.simulated_device import SimulatedDevice


class Rig:
    """A buffer that one stream writes, another stream to read it, and a pinned buffer."""

    def __init__(self):
        self.device = SimulatedDevice(scheduler="asap")
        self.first, self.second, self.third = (self.device.create_stream() for _ in range(3))
        self.event = self.device.create_event()
        self.buffer = self.device.device_buffer(64)
        self.pinned = self.device.host_buffer(64, pinned=True)

    def write(self, stream=None, part=slice(None)):
        with self.device.use_stream(stream or self.first):
            self.buffer[part].fill_(1)

    def read(self, stream=None, part=slice(None)):
        with self.device.use_stream(stream or self.second):
            self.buffer[part] + 1

    def record(self, stream=None, event=None):
        self.device.record_event(event or self.event, stream or self.first)

    def wait(self, stream=None, event=None):
        self.device.wait_event(stream or self.second, event or self.event)

    @property
    def races(self):
        return [
            (race.first.agent, race.first.kind, race.second.agent, race.second.kind)
            for race in self.device.report.races
        ]


@pytest.fixture
def rig():
    rig = Rig()
    with rig.device:
        yield rig


def nothing(rig):
    pass


def record_and_wait(rig):
    rig.record()
    rig.wait()


def wait_stream(rig):
    rig.device.wait_stream(rig.second, rig.first)


def synchronize_event(rig):
    rig.record()
    rig.device.synchronize_event(rig.event)


def synchronize_stream(rig):
    rig.device.synchronize_stream(rig.first)


def query_that_is_true(rig):
    rig.record()
    assert rig.device.query_event(rig.event)


def blocking_copy(rig):
    with rig.device.use_stream(rig.first):
        rig.pinned.copy_(rig.buffer)


def value_on_the_host(rig):
    with rig.device.use_stream(rig.first):
        rig.buffer.cpu()


def through_a_third_stream(rig):
    rig.record()
    rig.wait(rig.third)
    rig.record(rig.third)
    rig.wait()


def the_same_stream(rig):
    rig.second = rig.first


EDGES = [
    record_and_wait,
    wait_stream,
    synchronize_event,
    synchronize_stream,
    query_that_is_true,
    blocking_copy,
    value_on_the_host,
    through_a_third_stream,
    the_same_stream,
]


@pytest.mark.parametrize("edge", EDGES)
def test_an_edge_orders_a_read_behind_a_write(rig, edge):
    """Every way to order two streams lets one read what the other wrote."""
    rig.write()
    edge(rig)
    rig.read()

    assert rig.races == []


@pytest.mark.parametrize("edge", EDGES)
def test_an_edge_orders_a_write_behind_a_read(rig, edge):
    """Every way to order two streams lets one refill a buffer that the other read."""
    rig.read(rig.first)
    edge(rig)
    rig.write(rig.second)

    assert rig.races == []


def record_alone(rig):
    rig.record()


def wait_for_nothing(rig):
    rig.wait()


def wait_the_other_way(rig):
    rig.record(rig.second)
    rig.wait(rig.first)


def wait_of_a_third_stream(rig):
    rig.record()
    rig.wait(rig.third)


def synchronize_another_stream(rig):
    rig.device.synchronize_stream(rig.third)


def non_blocking_copy(rig):
    with rig.device.use_stream(rig.first):
        rig.device.copy(rig.pinned, rig.buffer)


@pytest.mark.parametrize(
    "edge",
    [
        nothing,
        record_alone,
        wait_for_nothing,
        wait_the_other_way,
        wait_of_a_third_stream,
        synchronize_another_stream,
        non_blocking_copy,
    ],
)
def test_what_is_no_edge_leaves_a_race(rig, edge):
    """Half of an edge, the wrong stream, or an event without a record orders nothing."""
    rig.write()
    edge(rig)
    rig.read()

    assert rig.races == [("stream 0", "write", "stream 1", "read")]


def test_an_event_stands_for_its_last_record_at_the_time_of_the_wait(rig):
    """A record after the wait does not delay the stream that waits."""
    rig.record()
    rig.wait()
    rig.write()
    rig.record()
    rig.read()

    assert rig.races == [("stream 0", "write", "stream 1", "read")]


def test_work_behind_the_record_is_not_waited_for(rig):
    """Work queued after the record is not ordered by it."""
    rig.record()
    rig.write()
    rig.wait()
    rig.read()

    assert rig.races == [("stream 0", "write", "stream 1", "read")]


def test_a_query_that_is_false_orders_nothing():
    """A query that returns False does not order the host after the event."""
    device = SimulatedDevice(scheduler="lazy")
    with device:
        stream, event = device.create_stream(), device.create_event()
        buffer = device.device_buffer(8)
        with device.use_stream(stream):
            buffer.fill_(1)
        device.record_event(event, stream)
        assert not device.query_event(event)
        buffer + 1

    assert len(device.report.races) == 1


@pytest.mark.parametrize(
    ("first", "second", "num_races"),
    [
        (slice(0, 32), slice(31, 64), 1),
        (slice(0, 32), slice(32, 64), 0),
        (slice(None, None, 2), slice(1, None, 2), 0),
        (slice(None, None, 2), slice(None, None, 3), 1),
        (slice(0, 0), slice(None), 0),
    ],
)
def test_only_bytes_that_both_touch_race(rig, first, second, num_races):
    """Overlapping views race; halves of one buffer, or alternating elements, do not."""
    rig.write(part=first)
    rig.read(part=second)

    assert num_races == len(rig.races)


def test_columns_of_a_tall_matrix_do_not_race(rig):
    """Disjoint columns are disjoint however many rows there are, and the same column is not."""
    device = rig.device
    matrix = device.device_buffer(4 * 4 * 5000).view(torch.float32).view(5000, 4)
    for _ in range(2):
        for stream, column in ((rig.first, 0), (rig.second, 3)):
            with device.use_stream(stream):
                matrix[:, column].fill_(1.0)
    assert rig.races == []
    with device.use_stream(rig.second):
        matrix[4000, :1] + 1

    assert rig.races == [("stream 0", "write", "stream 1", "read")]


def test_reads_do_not_race(rig):
    """Any number of streams may read the same bytes."""
    for stream in (rig.first, rig.second, rig.third):
        rig.read(stream)

    assert rig.races == []


@pytest.mark.parametrize("is_first", [True, False])
def test_a_write_is_checked_against_every_reader(rig, is_first):
    """A write races with a reader that it does not wait for, even if it waits for another."""
    readers = [rig.first, rig.third]
    for stream in readers if is_first else reversed(readers):
        rig.read(stream)
    rig.record(rig.first)
    rig.wait(rig.second)
    rig.write(rig.second)

    assert rig.races == [("stream 2", "read", "stream 1", "write")]


def test_the_host_must_see_a_copy_done_before_it_reads(rig):
    """The host races with a copy into a page-locked buffer until an event shows it done."""
    with rig.device.use_stream(rig.first):
        rig.device.copy(rig.pinned, rig.buffer)
    rig.pinned.tolist()

    assert rig.races == [("stream 0", "write", "host", "read")]


def test_the_host_must_see_a_copy_done_before_it_refills(rig):
    """The host races with a queued copy that reads the buffer it refills."""
    with rig.device.use_stream(rig.first):
        rig.device.copy(rig.buffer, rig.pinned)
    rig.pinned.fill_(3)

    assert rig.races == [("stream 0", "read", "host", "write")]


def test_the_host_may_use_a_pinned_buffer_once_the_copy_is_done(rig):
    """Once an event shows the copy done, the host may refill the buffer."""
    with rig.device.use_stream(rig.first):
        rig.device.copy(rig.buffer, rig.pinned)
    synchronize_event(rig)
    rig.pinned.fill_(3)

    assert rig.races == []


def test_memory_that_is_freed_and_used_again_keeps_its_history(rig):
    """A freed block is reused at once, and races with another stream that still reads it."""
    with rig.device.use_stream(rig.first):
        rig.buffer = rig.device.device_buffer(64)
    rig.read(rig.second)
    address = rig.buffer.data_ptr()
    del rig.buffer
    with rig.device.use_stream(rig.first):
        again = rig.device.device_buffer(64).fill_(2)

    assert again.data_ptr() == address
    assert rig.races == [("stream 1", "read", "stream 0", "write")]


def test_record_stream_keeps_memory_until_the_reader_is_done(rig):
    """After `record_stream` a block is reused only once the named stream is done with it."""
    with rig.device.use_stream(rig.first):
        rig.buffer = rig.device.device_buffer(64)
    rig.read(rig.second)
    rig.device.record_stream(rig.buffer, rig.second)
    del rig.buffer
    with rig.device.use_stream(rig.first):
        rig.device.device_buffer(64).fill_(2)

    assert rig.races == []


def test_naming_the_streams_own_work_changes_nothing():
    """`record_stream` with the stream of the allocation does not delay reuse, as in torch."""
    device = SimulatedDevice(scheduler="lazy")
    with device:
        tensor = device.device_buffer(64).fill_(1)
        device.record_stream(tensor, device.current_stream())
        address = tensor.data_ptr()
        del tensor
        assert device.device_buffer(64).data_ptr() == address


def test_results_of_unknown_size_are_written_by_the_stream():
    """Memory of a `nonzero` result races with a stream that still reads it."""
    device = SimulatedDevice(scheduler="asap")
    with device:
        side = device.create_stream()
        mask = device.device_buffer(8).fill_(1)
        places = mask.nonzero()
        device.wait_stream(side, device.current_stream())
        with device.use_stream(side):
            places + 1
        del places
        mask.nonzero()

    assert [
        (race.first.agent, race.first.kind, race.second.kind) for race in device.report.races
    ] == [("stream 0", "read", "write")]


def test_running_statistics_are_written():
    """Batch norm writes its running statistics, although its schema does not say so."""
    device = SimulatedDevice(scheduler="asap")
    with device:
        side, x = device.create_stream(), device.device_buffer(32).view(torch.float32).view(4, 2)
        norm = torch.nn.BatchNorm1d(2)
        norm(x)
        norm.eval()
        device.wait_stream(side, device.current_stream())
        norm.train()
        norm(x)
        norm.eval()
        with device.use_stream(side):
            norm.running_mean + 1

    assert [(race.first.kind, race.second.kind) for race in device.report.races] == [
        ("write", "read")
    ]
