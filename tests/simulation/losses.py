"""Losses on their way to the host."""

from __future__ import annotations

from unittest.mock import patch

import torch

from gapless.pipeline.host_waits import HostWaits
from gapless.pipeline.losses import loss_agreement
from gapless.pipeline.losses.deferred_loss import DeferredLoss
from gapless.pipeline.losses.loss_history import NonFinite, StepValues
from gapless.testing.simulated import queues
from simulation.capturing import TwoRanks
from simulation.registry import scenario
from simulation.workloads import number


@scenario(only="lazy")
def a_full_ring_waits_for_its_older_half(device):
    """When the ring is full the host waits for half of it, so that the device keeps its work."""
    losses = DeferredLoss(device)
    loss = number(device, 0.0)
    with patch.object(queues, "_POLLS_BEFORE_LAZY_MOVES", 10_000):
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
def losses_of_ranks_that_a_user_made(device):
    """They are gathered beside the loop: where ranks differ, a loop that waited would never compare."""
    on = []

    class Ranks(TwoRanks):
        def gather_rows(self, rows):
            on.append(device.current_stream())
            return super().gather_rows(rows)

    with patch.object(loss_agreement, "user_ranks", lambda _: Ranks()):
        losses = DeferredLoss(device, ranks=True, every=2)
    for count in range(6):
        losses.add(number(device, float(count)))
    assert losses.mean() == 2.5
    # The first only connects, when all ranks are at the first step.
    assert len(on) == 4
    assert device.current_stream() not in on[1:]


@scenario()
def losses_of_several_ranks(device):
    """Rows of two streams are gathered on a third, and copied before their memory is used again."""
    losses = DeferredLoss(device, ranks=TwoRanks())
    streams = [device.shared_stream(f"writer {place}") for place in range(2)]
    for count in range(8):
        with device.use_stream(streams[count // 2 % 2]):
            losses.add(number(device, float(count)))
        if count % 4 == 3:
            losses.flush()
            used_again = [device.device_buffer(4 * 2 * 2 * 8).fill_(7) for _ in range(4)]
            del used_again
    losses.drain()
    assert losses.history == [float(count) for count in range(8)]
    assert losses.weights == [2.0] * 8


@scenario(only="asap")
def losses_of_the_ranks_of_a_user(device):
    """They agree at the first step, and before each read."""
    with patch.object(loss_agreement, "user_ranks", lambda device: TwoRanks()):
        losses = DeferredLoss(device, ranks=True)
    for count in range(4):
        losses.add(number(device, float(count)))
    losses.drain()
    assert losses.history == [float(count) for count in range(4)]
    assert losses.wait_stats.by_reason["agreement"].count == 2


@scenario()
def losses_read_every_time(device):
    losses = DeferredLoss(device)
    loss = number(device, 4.0)
    for count in range(9):
        losses.add(loss)
        losses.flush()
        HostWaits(device).wait_stream(losses._ring._stream, reason="test")
        assert losses.poll() == 1
        assert losses.history == [4.0] * (count + 1)
    assert losses._ring._events.num_created == 1


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
    losses = DeferredLoss(device, warn_nonfinite=False)
    loss = number(device, float("inf"))
    losses.add(loss)
    losses.flush()
    HostWaits(device).wait_stream(losses._ring._stream, reason="test")
    assert losses.poll() == 1
    assert losses.first_nonfinite == NonFinite(step=0, name="loss", value=float("inf"))
    assert losses.wait_stats.count == 0


@scenario()
def losses_of_a_second_epoch_after_a_reset(device):
    """Rows are written again from the first on."""
    losses = DeferredLoss(device)
    for value in (1.0, 2.0, 3.0):
        losses.add(number(device, value))
    losses.reset()
    assert (losses.num_added, losses.history, losses.weights) == (0, [], [])
    for value in (7.0, 9.0):
        losses.add(number(device, value))
    assert losses.mean() == 8.0
    assert losses.history == [7.0, 9.0]
    assert {reason: total.count for reason, total in losses.wait_stats.by_reason.items()} == {
        "loss_read": 1,
        "loss_mean": 1,
    }


@scenario()
def the_newest_values_are_asked_for_without_a_wait(device):
    losses = DeferredLoss(device)
    for count in range(4):
        losses.add(number(device, float(count)))
        losses.latest()
        HostWaits(device).wait_stream(losses._ring._stream, reason="test")
        assert losses.latest() == StepValues(step=count, values={"loss": float(count)})
    assert losses.wait_stats.count == 0
    assert losses._ring._events.num_created == 1


@scenario()
def numbers_of_the_host_need_no_device(device):
    losses = DeferredLoss(device)
    for count in range(1100):
        losses.add(count, weight=2)
    assert losses.latest() == StepValues(step=1099, values={"loss": 1099.0})
    assert losses.mean() == 549.5
    assert losses.wait_stats.count == 0


@scenario()
def losses_that_are_dropped_while_a_stream_writes_them(device):
    """Their memory goes to nobody else before that stream is done."""
    losses = DeferredLoss(device)
    losses.add(number(device, 1.0))
    losses.drain()
    num_bytes = losses._ring.rows.memory.nbytes
    stream = device.create_stream()
    late = number(device, 5.0)
    device.wait_stream(stream, device.current_stream())
    with device.use_stream(stream):
        losses.add(late)
    del losses
    device.device_buffer(num_bytes).fill_(7)


@scenario()
def losses_that_are_dropped_while_they_are_copied(device):
    """Their memory goes to nobody else before the copy is done."""
    losses = DeferredLoss(device)
    losses.add(number(device, 1.0))
    losses.flush()
    num_bytes = losses._ring.rows.memory.nbytes
    del losses
    device.device_buffer(num_bytes).fill_(7)


@scenario()
def a_ring_in_memory_that_was_just_in_use(device):
    """A stream that writes waits for what was queued where the ring was made, in that memory."""
    losses, stream = DeferredLoss(device), device.create_stream()
    here = number(device, 1.0)
    with device.use_stream(stream):
        there = number(device, 1.0)
    used = torch.zeros(1024, 2, dtype=torch.float64, device=device.torch_device)  # as the ring
    device.delay(device.current_stream(), 20.0)
    used.fill_(7.0)
    del used
    losses.add(here, weight=here)
    with device.use_stream(stream):
        losses.add(there, weight=there)
    losses.drain()
    assert (losses.history, losses.weights) == ([1.0, 1.0], [1.0, 1.0])
