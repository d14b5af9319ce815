"""Losses on their way to the host."""

from __future__ import annotations

from gapless.pipeline.host_waits import HostWaits
from gapless.pipeline.readback import DeferredLoss
from simulation.registry import scenario
from simulation.workloads import number


@scenario(num_seeds=8)
def losses_of_a_full_ring(device):
    losses = DeferredLoss(device)
    loss = number(device, 0.0)
    for _ in range(1100):
        losses.add(loss)
        loss += 1
    assert losses.mean() == sum(range(1100)) / 1100
    assert [float(number) for number in range(1100)] == losses.history
    assert set(losses.wait_stats.by_reason) <= {"loss_ring", "loss_mean"}
    assert losses._events.num_created <= 4


@scenario(only="lazy")
def a_full_ring_waits_for_its_older_half(device):
    """When the ring is full the host waits for half of it, so that the device keeps its work."""
    losses = DeferredLoss(device)
    loss = number(device, 0.0)
    for _ in range(1025):
        losses.add(loss)
    assert len(losses.history) == 512
    assert {name: wait.count for name, wait in losses.wait_stats.by_reason.items()} == {
        "loss_ring": 1
    }


@scenario(only="asap")
def a_full_ring_whose_copies_are_done_is_not_waited_for(device):
    losses = DeferredLoss(device)
    loss = number(device, 0.0)
    for _ in range(1025):
        losses.add(loss)
    assert len(losses.history) == 1024
    assert losses.wait_stats.count == 0


@scenario()
def losses_read_every_time(device):
    losses = DeferredLoss(device)
    loss = number(device, 4.0)
    for count in range(9):
        losses.add(loss)
        losses.flush()
        HostWaits(device).wait_stream(losses._stream, reason="test")
        assert losses.poll() == 1
        assert losses.history == [4.0] * (count + 1)
    assert losses._events.num_created == 1


@scenario()
def losses_of_a_body_that_raised(device):
    losses = DeferredLoss(device)
    loss = number(device, 4.0)
    try:
        with losses:
            losses.add(loss)
            raise ZeroDivisionError
    except ZeroDivisionError:
        pass
    assert losses.history == [4.0]


@scenario()
def losses_read_in_portions(device):
    losses = DeferredLoss(device)
    scale = number(device, 1.0)
    for count in range(24):
        losses.add(scale * count, weight=scale * 3 if count % 2 else 3.0)
        if count % 5 == 4:
            losses.flush()
        if count % 7 == 6:
            losses.poll()
        if count == 15:
            losses.drain()
            assert len(losses.history) == 16
    with losses:
        pass
    assert [float(number) for number in range(24)] == losses.history
    assert losses.weights == [3.0] * 24
    assert losses.first_nonfinite is None


@scenario()
def a_done_copy_is_picked_up_without_waiting(device):
    losses = DeferredLoss(device)
    loss = number(device, float("inf"))
    losses.add(loss)
    losses.flush()
    HostWaits(device).wait_stream(losses._stream, reason="test")
    assert losses.poll() == 1
    assert losses.first_nonfinite == (0, float("inf"))
    assert losses.wait_stats.count == 0


@scenario()
def losses_of_a_second_epoch_after_a_reset(device):
    """Rows are written again from the first on, and the old history is left to who holds it."""
    losses = DeferredLoss(device)
    for value in (1.0, 2.0, 3.0):
        losses.add(number(device, value))
    before = losses.history
    losses.reset()
    assert before == [1.0, 2.0, 3.0]
    assert (losses.num_added, losses.history, losses.weights) == (0, [], [])
    for value in (7.0, 9.0):
        losses.add(number(device, value))
    assert losses.mean() == 8.0
    assert losses.history == [7.0, 9.0]
    assert {reason: total.count for reason, total in losses.wait_stats.by_reason.items()} == {
        "loss_read": 1,
        "loss_mean": 1,
    }
