"""Captured work on the simulated device, and its replays."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch
from torch.nn import functional as F

from gapless.testing.simulated.simulated_device import SimulatedDevice


SCHEDULERS = ["asap", "lazy", "random"]


@contextmanager
def on_a_stream(scheduler):
    """Yield a device whose current stream is one of its own: the default one has no captures."""
    with SimulatedDevice(scheduler=scheduler) as device, device.use_stream(device.create_stream()):
        yield device


def floats(device, count=4):
    return device.device_buffer(4 * count).view(torch.float32)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_a_capture_does_nothing_until_it_is_replayed(scheduler):
    """Each replay works on the memory of the capture, with the values it holds at that time."""
    with on_a_stream(scheduler) as device:
        x, total = floats(device).fill_(1.0), floats(device).fill_(0.0)
        graph = device.capture(lambda: total.add_(x * 2))
        assert total.tolist() == [0.0] * 4
        graph.replay()
        x.fill_(10.0)
        graph.replay()

        assert total.tolist() == [22.0] * 4
    assert device.report.races == []


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_every_replay_has_random_numbers_of_its_own(scheduler):
    """Dropout in a graph gives the masks of a loop without graphs, even if replays are queued."""
    torch.manual_seed(3)
    expected = [F.dropout(torch.ones(32), 0.5) for _ in range(3)]
    state = torch.get_rng_state()
    torch.manual_seed(3)
    with on_a_stream(scheduler) as device:
        x, y = floats(device, 32).fill_(1.0), floats(device, 32)
        kept = [floats(device, 32) for _ in range(3)]
        graph = device.capture(lambda: y.copy_(F.dropout(x, 0.5)))
        for target in kept:
            graph.replay()
            target.copy_(y)
        found = [target.cpu() for target in kept]

    assert [tensor.tolist() for tensor in expected] == [tensor.tolist() for tensor in found]
    assert torch.equal(state, torch.get_rng_state())


def test_a_replay_is_one_piece_of_work_for_the_checker():
    """A replay reads and writes everything that its captured work does, on its own stream."""
    with on_a_stream("asap") as device:
        x, side = floats(device).fill_(1.0), device.create_stream()
        graph = device.capture(lambda: x.add_(1))
        device.wait_stream(side, device.current_stream())
        with device.use_stream(side):
            graph.replay()
        x + 1

    assert [
        (race.first.agent, race.first.what, race.second.agent, race.second.what)
        for race in device.report.races
    ] == [("stream 1", "graph replay", "stream 0", "aten.add.Tensor")]


def test_capturing_touches_no_memory():
    """A capture does not race with a stream that uses the same memory, since nothing runs yet."""
    with on_a_stream("lazy") as device:
        x, side = floats(device), device.create_stream()
        device.wait_stream(side, device.current_stream())
        with device.use_stream(side):
            x.fill_(1.0)
        graph = device.capture(lambda: x.add_(1))
        with device.use_stream(side):
            x.mul_(3)
        device.wait_stream(device.current_stream(), side)
        graph.replay()

        assert x.tolist() == [4.0] * 4
    assert device.report.races == []


def test_streams_of_one_capture_can_race():
    """Unordered work of two streams is reported when it is captured."""
    with on_a_stream("lazy") as device:
        x, side = floats(device).fill_(1.0), device.create_stream()

        def work():
            x.add_(1)
            with device.use_stream(side):
                x.mul_(2)

        device.capture(work)

    assert [(race.first.agent, race.second.agent) for race in device.report.races] == [
        ("stream 0", "stream 1")
    ]


def test_streams_of_one_capture_can_be_ordered():
    """Events that are recorded and waited for inside a capture order its work."""
    with on_a_stream("lazy") as device:
        x, side, event = floats(device).fill_(1.0), device.create_stream(), device.create_event()

        def work():
            x.add_(1)
            device.record_event(event, device.current_stream())
            device.wait_event(side, event)
            with device.use_stream(side):
                x.mul_(2)
            device.wait_stream(device.current_stream(), side)

        device.capture(work).replay()
        assert x.tolist() == [4.0] * 4
    assert device.report.races == []


def test_events_of_a_capture_order_nothing_outside():
    """A captured wait takes place in the replay only."""
    with on_a_stream("lazy") as device:
        x, side, stream = floats(device), device.create_stream(), device.current_stream()
        with device.use_stream(side):
            x.fill_(1.0)
        device.capture(lambda: device.wait_stream(stream, side))
        x + 1

    assert len(device.report.races) == 1


def test_replays_of_one_graph_keep_their_order():
    """Replays of one graph run one after the other, on whatever streams they are launched."""
    with on_a_stream("random") as device:
        x, side = floats(device).fill_(1.0), device.create_stream()
        graph = device.capture(lambda: x.add_(1))
        graph.replay()
        with device.use_stream(side):
            graph.replay()
            assert x.tolist() == [3.0] * 4
    assert device.report.races == []


def test_memory_of_a_capture_is_the_graphs_own():
    """Memory that a capture allocates is never given to other work."""
    with on_a_stream("lazy") as device:
        x, addresses = floats(device).fill_(1.0), []

        def work():
            y = x + 1
            addresses.append(y.data_ptr())
            x.copy_(y)

        graph = device.capture(work)
        others = [floats(device).fill_(9.0) for _ in range(5)]
        graph.replay()

        assert addresses[0] not in {other.data_ptr() for other in others}
        assert x.tolist() == [2.0] * 4


REFUSED = {
    "item": ("_local_scalar_dense.* inside a capture", lambda device, x: x[0].item()),
    "mask": ("index.Tensor .* inside a capture", lambda device, x: x[x > 1]),
    "stream": (
        "synchronize_stream .* inside a capture",
        lambda device, x: device.synchronize_stream(device.current_stream()),
    ),
    "pageable": ("blocking copy D2H .*inside", lambda device, x: torch.zeros(4).copy_(x)),
    "query": (
        "query_event .* inside a capture",
        lambda device, x: device.query_event(device.create_event()),
    ),
    "values": ("poisson.* cannot be captured", lambda device, x: torch.poisson(x)),
    "nested": (
        "cannot capture inside a capture",
        lambda device, x: device.capture(lambda: x.add_(1)),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_waits_cannot_be_captured(name):
    """A wait inside a capture raises at the call, and later work runs as usual."""
    message, work = REFUSED[name]
    with on_a_stream("asap") as device:
        x = floats(device).fill_(1.0)
        with pytest.raises(RuntimeError, match=message):
            device.capture(lambda: work(device, x))

        assert (x + 1).tolist() == [2.0] * 4


def test_events_do_not_cross_the_edge_of_a_capture():
    """An event recorded outside a capture cannot be used inside, nor the reverse."""
    with on_a_stream("lazy") as device:
        event, stream = device.create_event(), device.current_stream()
        device.record_event(event, stream)
        with pytest.raises(RuntimeError, match=r"recorded outside a capture.*no meaning inside"):
            device.capture(lambda: device.wait_event(stream, event))
        device.capture(lambda: device.record_event(event, stream))
        for use in (device.query_event, device.synchronize_event):
            with pytest.raises(
                RuntimeError, match=r"recorded inside a capture.*no meaning outside"
            ):
                use(event)


def test_nothing_is_captured_on_the_default_stream():
    """A capture on the default stream raises, as in CUDA."""
    with (
        SimulatedDevice(scheduler="asap") as device,
        pytest.raises(RuntimeError, match="cannot capture on the default stream"),
    ):
        device.capture(lambda: None)
