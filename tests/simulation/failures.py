"""Whatever raises: history, events, memory, streams and loaders come out whole."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from unittest.mock import patch

import torch

import gapless
from gapless.loop.train_loop import TrainLoop
from gapless.pipeline.batch_mover import BatchMover
from gapless.pipeline.losses.deferred_loss import DeferredLoss
from gapless.plans import PLANS
from simulation.registry import FEW, scenario
from simulation.workloads import (
    Regression,
    expected_training,
    numbered,
    regression_data,
)


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
def a_device_is_idle_after_an_epoch_that_failed(device):
    """Copies of batches that were read ahead are done as well, though nobody took them."""
    device.max_queued_copy_bytes = 0
    copied, copy = [], device.copy

    def noted_copy(target, source):
        copy(target, source)
        copied.append(device.create_event())
        device.record_event(copied[-1], device.current_stream())

    def fail(batch):
        raise ZeroDivisionError

    with TrainLoop(plan="four-stream", device=device) as loop:
        device.copy = noted_copy
        with suppress(ZeroDivisionError):
            loop.run_epoch([torch.full((40,), 1.0) for _ in range(6)], fail)
        assert copied
        assert all(event.mark.is_done for event in copied)


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
    assert losses._ring._events.num_created <= 2


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
        assert loop.losses._ring._events.num_created <= 3
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
        pools = loop._engine.events, loop._engine.meter._events, loop.losses._ring._events
    for pool in pools:
        assert len(set(map(id, pool._free))) == len(pool._free) == pool.num_created


@scenario(num_seeds=FEW)
def a_closed_loop_gives_everything_back(device):
    outer = device.current_stream()
    with TrainLoop(plan="gapless", device=device) as loop:
        device.set_current_stream(loop._engine.streams.compute)
    assert device.current_stream() is outer
    assert loop._engine.streams.all == []


class Endless:
    """A loader that keeps its generators, which say when they are closed."""

    def __init__(self, closed):
        self._closed = closed
        self._started = []

    def __iter__(self):
        self._started.append(self._batches())
        return self._started[-1]

    def _batches(self):
        try:
            while True:
                yield torch.ones(3)
        finally:
            self._closed.append(True)


@scenario(num_seeds=FEW)
def loaders_are_closed_at_once(device):
    """Also while the loader, or a traceback, still holds them."""
    closed = []
    loader = Endless(closed)
    for _ in gapless.prefetch(loader, device):
        break
    assert len(closed) == 1

    def fail(batch):
        raise ZeroDivisionError

    with TrainLoop(plan="gapless", device=device) as loop:
        kept = None
        try:
            loop.run_epoch(Endless(closed), fail)
        except ZeroDivisionError as error:
            kept = error
        assert len(closed) == 2

    with patch.object(BatchMover, "hand_out", lambda self, staged: fail(staged)):
        try:
            next(iter(gapless.prefetch(Endless(closed), device)))
        except ZeroDivisionError as error:
            kept = error
    assert len(closed) == 3
    assert kept is not None


@scenario(num_seeds=FEW)
def a_pass_that_is_closed_before_its_first_batch_ends_its_loader(device):
    loader = Endless([])
    iter(gapless.prefetch(loader, device)).close()
    (started,) = loader._started
    assert next(started, None) is None


@scenario(num_seeds=FEW)
def a_pass_that_is_closed_yields_no_batch_that_was_read_ahead(device):
    batches = iter(gapless.prefetch(numbered([40] * 5), device, depth=2))
    next(batches)
    batches.close()
    assert next(batches, None) is None
