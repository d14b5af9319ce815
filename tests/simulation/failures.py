"""Whatever raises: history, events, memory, streams and loaders come out whole."""

from __future__ import annotations

from contextlib import contextmanager, suppress

import torch

import gapless
from gapless.loop.train_loop import TrainLoop
from gapless.pipeline.readback import DeferredLoss
from gapless.plans import PLANS
from simulation.registry import FEW, scenario
from simulation.workloads import (
    NUM_BATCHES,
    Regression,
    Sums,
    counts,
    expected_training,
    is_idle,
    make_prefetcher,
    numbered,
    read_back,
    regression_data,
)


@scenario(num_seeds=FEW)
def an_epoch_that_was_cut_short_and_then_a_whole_one(device):
    def stop(now):
        if now.batch == 6:
            raise ZeroDivisionError

    with TrainLoop(plan="gapless", device=device) as loop:
        cut = Regression()
        with suppress(ZeroDivisionError):
            loop.run_epoch(regression_data(), cut, on_batch=stop)
        expected = expected_training()[0]
        assert expected[:6] == loop.losses.history
        assert all(is_idle(device, stream) for stream in loop._engine.streams.all)
        copied = read_back(device, cut.weight)
        model = Regression()
        result = loop.run_epoch(regression_data(), model)
        assert counts(result) == {"epoch_end": 1}
    assert expected == result.losses
    assert not torch.equal(copied, expected_training()[1])
    assert loop._engine.events.num_created <= NUM_BATCHES + 3


@scenario(num_seeds=FEW)
def epochs_that_fail_in_their_step(device):
    """Events that a failing step had in its hands are not lost for good."""

    def fail(batch):
        raise ZeroDivisionError

    with TrainLoop(plan="gapless", device=device) as loop:
        for _ in range(6):
            with suppress(ZeroDivisionError):
                loop.run_epoch(regression_data(), fail)
        assert loop._engine.meter._events.num_created <= 2
        assert expected_training()[0] == loop.run_epoch(regression_data(), Regression()).losses


@scenario(num_seeds=FEW)
def an_interrupt_just_when_the_compute_stream_is_left(device):
    """The outer stream is current again, whatever the interrupted `with` left behind."""
    outer, use = device.current_stream(), device.use_stream

    @contextmanager
    def use_and_be_interrupted(stream):
        with use(stream):
            yield
        if stream is loop._engine.streams.compute:
            device.use_stream = use
            device.set_current_stream(stream)
            raise KeyboardInterrupt

    with TrainLoop(plan="gapless", device=device) as loop:
        device.use_stream = use_and_be_interrupted
        with suppress(KeyboardInterrupt):
            loop.run_epoch(regression_data(), Regression())
        assert device.current_stream() is outer
        assert expected_training()[0] == loop.losses.history


@scenario(num_seeds=FEW)
def interrupted_reads_lose_no_event(device):
    losses = DeferredLoss(device)
    loss = device.device_buffer(4).view(torch.float32)[0]
    loss.fill_(4.0)
    wait = device.wait_event

    def interrupted(stream, event):
        device.wait_event = wait
        raise KeyboardInterrupt

    for _ in range(6):
        losses.add(loss)
        device.wait_event = interrupted
        try:
            losses.flush()
        except KeyboardInterrupt:
            losses.drain()
    assert losses.history == [4.0] * 6
    assert losses._events.num_created <= 2


@scenario(num_seeds=FEW)
def epochs_interrupted_while_losses_are_sent_lose_no_event(device):
    """The end of the epoch takes back what the interrupt left in nobody's hands."""
    wait = device.wait_event

    def interrupted(stream, event):
        device.wait_event = wait
        raise KeyboardInterrupt

    def interrupt_the_sending(now):
        device.wait_event = interrupted
        loop.losses.flush()

    with TrainLoop(plan="gapless", device=device) as loop:
        for _ in range(6):
            with suppress(KeyboardInterrupt):
                loop.run_epoch(regression_data(), Regression(), on_batch=interrupt_the_sending)
        assert loop.losses._events.num_created <= 3
        assert expected_training()[0][:1] * 6 == loop.losses.history


@scenario(num_seeds=FEW)
def every_event_comes_back_once(device):
    """No event is in two hands, where one would overwrite what the other asks about."""

    def look(now):
        in_hand = [*loop._waits._in_flight, *loop._engine.events._free]
        assert len(set(map(id, in_hand))) == len(in_hand)

    with TrainLoop(plan=PLANS["gapless"].with_knobs(run_ahead=4), device=device) as loop:
        for _ in range(3):
            loop.run_epoch(regression_data()[:5], Regression(), on_batch=look)
        pools = loop._engine.events, loop._engine.meter._events, loop.losses._events
    for pool in pools:
        assert len(set(map(id, pool._free))) == len(pool._free) == pool.num_created


@scenario(num_seeds=FEW)
def a_closed_loop_gives_everything_back(device):
    outer = device.current_stream()
    with TrainLoop(plan="gapless", device=device) as loop:
        device.set_current_stream(loop._engine.streams.compute)
    assert device.current_stream() is outer
    assert loop._engine.streams.all == []


def endless(closed):
    try:
        while True:
            yield torch.ones(3)
    finally:
        closed.append(True)


@scenario(num_seeds=FEW)
def loaders_are_closed_at_once(device):
    """Also one that the caller, or a traceback, still holds."""
    closed = []
    left, failed, unmovable = (endless(closed) for _ in range(3))
    for _ in gapless.prefetch(left, device):
        break
    assert len(closed) == 1

    def fail(batch):
        raise ZeroDivisionError

    with TrainLoop(plan="gapless", device=device) as loop:
        kept = None
        try:
            loop.run_epoch(failed, fail)
        except ZeroDivisionError as error:
            kept = error
        assert len(closed) == 2

    ring = gapless.prefetch(unmovable, device)
    ring._ring.hand_out = fail_to_hand_out
    try:
        next(iter(ring))
    except ZeroDivisionError as error:
        kept = error
    assert len(closed) == 3
    assert kept is not None


def fail_to_hand_out(staged, *, compute_stream):
    del staged  # or this frame of the traceback would keep it
    raise ZeroDivisionError


@scenario(num_seeds=FEW)
def a_kept_traceback_keeps_no_memory_of_the_ring(device):
    prefetcher, _, ring = make_prefetcher(numbered([3] * 9), device)
    hand_out, ring.hand_out = ring.hand_out, fail_to_hand_out
    kept = None
    try:
        next(iter(prefetcher))
    except ZeroDivisionError as error:
        kept = error
    ring.hand_out = hand_out
    asked, allocate = [], device.device_buffer
    device.device_buffer = lambda num_bytes: asked.append(num_bytes) or allocate(num_bytes)
    sums = Sums(device, 9)
    asked.clear()
    for number, batch in enumerate(prefetcher):
        sums.add(number, batch)
    assert sums.all() == list(range(9))
    # Three of the ring's four slots have memory already.
    assert len(asked) == 1
    assert kept is not None
