"""The side stream: which stream a replay is launched on, and what it comes after."""

from __future__ import annotations

from threading import Event, Thread

import pytest

from gapless.device.cpu import CpuDevice
from gapless.graphs.side_stream import SideStream


class Noting(CpuDevice):
    """Notes which stream waits for which."""

    def __init__(self):
        super().__init__()
        self.waits = []

    def wait_stream(self, stream, other):
        self.waits.append((stream, other))


@pytest.fixture
def device():
    return Noting()


def test_a_replay_goes_to_the_stream_of_its_caller(device):
    """Which waits for the runs before only if the newest came from elsewhere."""
    side, caller = SideStream(device), device.current_stream()

    assert side.launch(device.current_stream) is caller
    assert side.launch(device.current_stream) is caller

    assert device.waits == [(caller, device.shared_stream("gapless.capture"))]


def test_a_replay_goes_to_the_side_stream_while_another_thread_is_there(device):
    """Also if it belongs to another captured function of the device."""
    one, other, caller = SideStream(device), SideStream(device), device.current_stream()
    with one.use():
        # The current stream of another thread is its own.
        device.set_current_stream(caller)
        assert other.launch(device.current_stream) is device.shared_stream("gapless.capture")

    assert other.launch(device.current_stream) is caller


def test_a_launch_is_not_interrupted_by_another_thread(device):
    """Whoever begins a launch or a body meanwhile waits for its end."""
    side, found = SideStream(device), []
    lock = side.order.lock

    def is_free():
        found.append(lock.acquire(blocking=False))
        if found[-1]:
            lock.release()

    def try_lock():
        thread = Thread(target=is_free)
        thread.start()
        thread.join()

    side.launch(try_lock)
    with side.use():
        side.launch(try_lock)
        try_lock()

    assert found == [False, True, True]


def test_a_stream_that_left_the_side_stream_early_waits_again(device):
    """What another thread queued there after that is not forgotten."""
    side, caller, other = SideStream(device), device.current_stream(), device.create_stream()
    device.set_current_stream(other)
    with side.use():
        device.set_current_stream(caller)
        with side.use():
            pass
        device.waits.clear()
    side.launch(lambda: None)
    device.set_current_stream(caller)
    side.launch(lambda: None)

    assert (caller, device.shared_stream("gapless.capture")) in device.waits


@pytest.mark.parametrize("way", ["use", "come_after_runs"])
def test_another_thread_queues_nothing_during_a_run(device, way):
    """The run may be a capture, of which the other thread's work would become part."""
    side, order, begun = SideStream(device), [], Event()

    def other():
        begun.set()
        if way == "use":
            with side.use():
                order.append("other")
        else:
            side.come_after_runs()
            order.append("other")

    thread = Thread(target=other)
    with side.use():
        thread.start()
        begun.wait()
        thread.join(timeout=0.2)
        order.append("first")
    thread.join()

    assert order == ["first", "other"]
