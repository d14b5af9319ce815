"""Training epochs under every plan."""

from __future__ import annotations

from unittest.mock import patch

import torch

from gapless.loop.train_loop import TrainLoop
from gapless.pipeline.host_waits import HostWaits
from gapless.pipeline.losses import loss_ring
from gapless.plans import PLANS
from simulation.registry import FEW, scenario
from simulation.workloads import (
    NUM_BATCHES,
    Regression,
    check_training,
    counts,
    expected_training,
    read_back,
    regression_data,
)


_WAITS = {
    "blocking": {"batch": 11, "loss_read": 11},
    "deferred-loss": {"batch": 11, "loss_read": 1, "epoch_end": 1},
    "events": {"batch": 11, "epoch_end": 1},
    "interval": {"interval": 1, "loss_read": 1, "epoch_end": 1},
    "events-interval": {"interval": 1, "epoch_end": 1},
    "four-stream": {"interval": 1, "epoch_end": 1},
    "full": {"interval": 1, "epoch_end": 1},
    "gapless": {"epoch_end": 1},
    "captured": {"capture": 1, "epoch_end": 1},
    "auto": {"epoch_end": 1},
}


def _plan_scenario(plan):
    @scenario(f"plan_{plan}")
    def check(device):
        loop, (result,), means = check_training(device, plan)
        assert _WAITS[plan] == counts(result)
        waits = PLANS[plan].wait_with != "nothing"
        if waits:
            assert means[-1] is not None
        # A plan that waits knows at once that its events are done.
        assert loop._engine.events.num_created <= (3 if waits else NUM_BATCHES + 3)


for _name in PLANS:
    _plan_scenario(_name)


@scenario(num_seeds=FEW)
def two_epochs_in_one_loop(device):
    loop, results, _ = check_training(device, "gapless", num_epochs=2, num_batches=6)
    assert [counts(result) for result in results] == [{"epoch_end": 1}] * 2
    assert loop._engine.events.num_created <= NUM_BATCHES + 3


@scenario()
def one_stream_or_many(device):
    for streams, wait_with in ((1, "nothing"), (5, "event"), (8, "stream")):
        plan = PLANS["gapless"].with_knobs(
            streams=streams, wait_with=wait_with, sync_interval=3, loss_interval=2, prefetch=1
        )
        check_training(device, plan, num_batches=5)


@scenario()
def bounded_run_ahead(device):
    plan = PLANS["gapless"].with_knobs(run_ahead=2)
    loop, (result,), _ = check_training(device, plan)
    assert set(counts(result)) <= {"run_ahead", "staging", "epoch_end"}
    assert loop._engine.events.num_created <= 2 + 3


@scenario(num_seeds=FEW)
def pageable_staging(device):
    device.max_direct_copy_bytes = 20
    plan = PLANS["gapless"].with_knobs(pin_memory=False)
    _, (result,), _ = check_training(device, plan, num_batches=6)
    assert counts(result) == {"pageable_copy": 6, "epoch_end": 1}


@scenario()
def what_was_queued_before_and_after_an_epoch(device):
    """The outer stream's work comes before the epoch's, and what `on_batch` queued after it."""
    model = Regression()
    start = device.device_buffer(12).view(torch.float32).view(3, 1)
    start.copy_(model.weight.detach(), non_blocking=True)
    model.weight = torch.nn.Parameter(start)
    counted = device.device_buffer(4).view(torch.float32)
    counted.zero_()

    def count(now):
        counted.add_(1.0)

    outer = device.current_stream()
    with TrainLoop(plan="blocking", device=device) as loop:
        result = loop.run_epoch(regression_data(), model, on_batch=count)
        assert device.current_stream() is outer
        assert read_back(device, counted).tolist() == [float(NUM_BATCHES)]
        assert torch.equal(expected_training()[1], read_back(device, model.weight))
    assert expected_training()[0] == result.losses


@scenario(num_seeds=FEW)
def backward_runs_where_the_plan_says(device):
    class Watched(Regression):
        def forward(self, batch):
            found.add(("forward", device.current_stream()))
            return super().forward(batch)

        def backward(self, out):
            found.add(("backward", device.current_stream()))
            super().backward(out)

    found = set()
    with TrainLoop(plan="four-stream", device=device) as loop:
        loop.run_epoch(regression_data()[:4], Watched())
        streams = loop._engine.streams
        forward, backward = streams.compute, streams.backward
    assert {("forward", forward), ("backward", backward)} == found


@scenario(durations={"kernel": 1.0}, num_seeds=FEW)
def losses_and_gaps_show_while_an_epoch_runs(device):
    """Once the device has done ten batches, the next one's progress has their losses."""
    seen = []

    def look(now):
        seen.append((now.mean_loss, now.gap_share))
        if now.batch == 10:
            HostWaits(device).wait_stream(stream, reason="test")
            HostWaits(device).wait_stream(device.current_stream(), reason="test")

    with TrainLoop(plan="gapless", device=device) as loop:
        stream = loop._engine.streams.readback
        loop.run_epoch(regression_data(), Regression(), on_batch=look)
    losses = expected_training()[0][:10]
    assert abs(seen[10][0] - sum(losses) / 10) < 1e-12
    assert seen[10][1] is not None


@scenario(only="asap")
def losses_of_a_device_that_keeps_up_show_at_once(device):
    """Progress has the first ten with the tenth batch, which sends them to the host."""
    seen = []
    with TrainLoop(plan="gapless", device=device) as loop:
        loop.run_epoch(
            regression_data(), Regression(), on_batch=lambda now: seen.append(now.mean_loss)
        )
    assert [mean is None for mean in seen] == [True] * 9 + [False] * 2


@scenario(num_seeds=FEW)
def losses_that_fill_half_of_the_ring_show_before_a_read_is_due(device):
    """They go to the host by themselves, and the wait after the batch is enough to have them."""
    expected = expected_training()[0][:4]
    with patch.object(loss_ring, "_ROWS", 8):
        for wait_with in ("stream", "event"):
            plan = PLANS["blocking"].with_knobs(wait_with=wait_with, loss_interval=100)
            _, (result,), means = check_training(device, plan, num_batches=6)
            assert [mean is None for mean in means] == [True] * 3 + [False] * 3
            assert abs(means[3] - sum(expected) / 4) < 1e-12
            assert counts(result) == {"batch": 6, "epoch_end": 1}


@scenario()
def a_device_that_is_behind_holds_the_host_back(device):
    """With a run-ahead of 3 the host has queued at most 3 steps that are not done."""
    unfinished = []

    def look(now):
        event = device.create_event()
        device.record_event(event, device.current_stream())
        unfinished.append(event)
        while unfinished and unfinished[0].mark.is_done:
            unfinished.pop(0)
        assert len(unfinished) <= 3

    with TrainLoop(plan=PLANS["gapless"].with_knobs(run_ahead=3), device=device) as loop:
        loop.run_epoch(regression_data(), Regression(), on_batch=look)
    assert loop._engine.events.num_created <= 3 + 3


@scenario(durations={"load": 30.0, "step": 10.0}, num_seeds=FEW)
def gaps_of_a_slow_loader(device):
    """The loader takes 30 a batch and the device 10, so the device has gaps of 20."""

    class SlowBatches:
        def __iter__(self):
            for batch in regression_data()[:6]:
                device.spend("load")
                yield batch

    model = Regression()

    def step(batch):
        with device.region("step"):
            out = model.forward(batch)
            model.backward(out)
        return out

    with TrainLoop(plan=PLANS["gapless"].with_knobs(prefetch=0), device=device) as loop:
        for _ in range(2):
            result = loop.run_epoch(SlowBatches(), step)
            assert (
                result.busy_ms,
                result.gap_ms,
            ) == (10.0 * 6, 20.0 * 5)
            device.spend("load")
    assert loop._engine.meter._events.num_created <= 2 * 6


@scenario(only="asap")
def a_meter_of_an_idle_device_needs_few_events(device):
    with TrainLoop(plan="gapless", device=device) as loop:
        loop.run_epoch(regression_data(), Regression())
    assert loop._engine.meter._events.num_created <= 3
