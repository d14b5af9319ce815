"""Captured work on the simulated device, and its replays."""

from __future__ import annotations

import gc
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
        graph = device.capture(lambda _: total.add_(x * 2))
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
        graph = device.capture(lambda _: y.copy_(F.dropout(x, 0.5)))
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
        graph = device.capture(lambda _: x.add_(1))
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
        graph = device.capture(lambda _: x.add_(1))
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

        def work(_):
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

        def work(_):
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
        device.capture(lambda _: device.wait_stream(stream, side))
        x + 1

    assert len(device.report.races) == 1


def test_replays_of_one_graph_keep_their_order():
    """Replays of one graph run one after the other, on whatever streams they are launched."""
    with on_a_stream("random") as device:
        x, side = floats(device).fill_(1.0), device.create_stream()
        graph = device.capture(lambda _: x.add_(1))
        graph.replay()
        with device.use_stream(side):
            graph.replay()
            assert x.tolist() == [3.0] * 4
    assert device.report.races == []


def test_memory_of_a_capture_is_the_graphs_own():
    """Memory that a capture allocates is never given to other work."""
    with on_a_stream("lazy") as device:
        x, addresses = floats(device).fill_(1.0), []

        def work(_):
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
        lambda device, x: device.capture(lambda _: x.add_(1)),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_waits_cannot_be_captured(name):
    """A wait inside a capture raises at the call, and later work runs as usual."""
    message, work = REFUSED[name]
    with on_a_stream("asap") as device:
        x = floats(device).fill_(1.0)
        with pytest.raises(RuntimeError, match=message):
            device.capture(lambda _: work(device, x))

        assert (x + 1).tolist() == [2.0] * 4


def test_events_do_not_cross_the_edge_of_a_capture():
    """An event recorded outside a capture cannot be used inside, nor the reverse."""
    with on_a_stream("lazy") as device:
        event, stream = device.create_event(), device.current_stream()
        device.record_event(event, stream)
        with pytest.raises(RuntimeError, match=r"recorded outside a capture.*no meaning inside"):
            device.capture(lambda _: device.wait_event(stream, event))
        device.capture(lambda _: device.record_event(event, stream))
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
        device.capture(lambda _: None)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_what_is_cut_out_runs_between_two_segments(scheduler):
    """A replay launches a segment, calls, and launches the next, which sees what was done."""
    with on_a_stream(scheduler) as device:
        x = floats(device).fill_(0.0)

        def work(cut):
            x.add_(1)
            cut(lambda: x.mul_(10))
            y = x + 1
            cut(lambda: x.add_(100))
            x.add_(y)

        graph = device.capture(work)
        assert x.tolist() == [0.0] * 4
        graph.replay()
        assert x.tolist() == [121.0] * 4
        graph.replay()

        assert x.tolist() == [(1220.0 + 100) + 1221] * 4
    assert device.report.races == []


def test_segments_without_work_are_not_launched():
    """Cuts at both ends and in a row are fine, and calls run all the same."""
    with on_a_stream("asap") as device:
        x, calls = floats(device).fill_(0.0), []

        def work(cut):
            cut(lambda: calls.append(1))
            cut(lambda: calls.append(2))
            x.add_(1)
            cut(lambda: calls.append(3))

        graph = device.capture(work)
        assert calls == []
        graph.replay()

        assert calls == [1, 2, 3]
        assert x.tolist() == [1.0] * 4


def test_random_numbers_go_on_over_a_cut():
    """What is called between segments draws in its turn."""
    torch.manual_seed(3)
    expected = [torch.rand(4) for _ in range(6)]
    torch.manual_seed(3)
    with on_a_stream("lazy") as device:
        parts = [floats(device) for _ in range(3)]

        def work(cut):
            parts[0].uniform_()
            cut(lambda: parts[1].uniform_())
            parts[2].uniform_()

        graph, found = device.capture(work), []
        for _ in range(2):
            graph.replay()
            found += [part.tolist() for part in parts]

    assert found == [values.tolist() for values in expected]


def test_segments_share_memory_that_is_the_graphs_own():
    """A tensor of one segment is whole in the next, also if other work allocates at the cut."""
    with on_a_stream("lazy") as device:
        x = floats(device).fill_(1.0)

        def work(cut):
            y = x * 2
            cut(lambda: [floats(device).fill_(9.0) for _ in range(5)])
            x.copy_(y)

        device.capture(work).replay()

        assert x.tolist() == [2.0] * 4
    assert device.report.races == []


def test_a_backward_pass_cannot_be_cut():
    """CUDA ends a capture on the thread that began it, and backward passes have their own."""
    with on_a_stream("asap") as device:
        weight = floats(device).fill_(1.0).requires_grad_()

        def work(cut):
            hooked = weight * 2
            hooked.register_hook(lambda grad: cut(list))
            hooked.sum().backward()

        with pytest.raises(RuntimeError, match="backward pass"):
            device.capture(work)
        with torch.no_grad():
            assert (weight + 1).tolist() == [2.0] * 4


def test_a_failed_capture_restores_the_current_stream():
    """A stream that the work had chosen is not left as the current one."""
    with on_a_stream("asap") as device:
        stream = device.current_stream()

        def work(cut):
            device.set_current_stream(device.create_stream())
            raise KeyError

        with pytest.raises(KeyError):
            device.capture(work)

        assert device.current_stream() is stream


@pytest.mark.parametrize("fails", [False, True])
def test_casts_of_weights_do_not_cross_the_edge_of_a_capture(fails):
    """Autocast keeps no cast from before a capture for it, and none of it for later."""
    with on_a_stream("asap") as device, torch.autocast("cpu", dtype=torch.bfloat16):
        weight = floats(device, 16).fill_(1.0).view(4, 4).detach().requires_grad_()
        x, out = floats(device, 16).view(4, 4).fill_(1.0), floats(device, 16).view(4, 4)
        x @ weight
        with torch.no_grad():
            weight.fill_(2.0)

        def work(cut):
            out.copy_((x @ weight).float())
            if fails:
                raise KeyError

        if fails:
            with pytest.raises(KeyError):
                device.capture(work)
        else:
            graph = device.capture(work)
            graph.replay()
            assert out.tolist() == [[8.0] * 4] * 4
            with torch.no_grad():
                weight.fill_(3.0)
            graph.replay()
            assert out.tolist() == [[12.0] * 4] * 4

        with torch.no_grad():
            weight.fill_(4.0)
        assert (x @ weight).tolist() == [[16.0] * 4] * 4


def test_no_garbage_is_collected_in_a_capture():
    """A collection could free what CUDA does not let go of while it captures."""
    with on_a_stream("asap") as device:
        seen = []
        device.capture(lambda _: seen.append(gc.isenabled()))

        assert seen == [False]
        assert gc.isenabled()
