"""The loop against a plain one, and when something goes wrong."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

import gapless
from gapless.device.cpu import CpuDevice
from gapless.loop.train_loop import TrainLoop
from gapless.pipeline.step import StepLoss
from gapless.testing.simulated.simulated_device import SimulatedDevice
from gapless.testing.simulated.simulation import SimulatedGraph


def make_training(seed=0):
    """Return batches, and a step of a small model with dropout."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 32), torch.nn.Dropout(0.5), torch.nn.Linear(32, 1)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, fused=True)
    data = [(torch.randn(4, 8), torch.randn(4, 1)) for _ in range(230)]

    def step(batch):
        inputs, targets = batch
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        return loss

    return data, step, model


@pytest.mark.parametrize("plan", gapless.PLANS)
def test_a_plan_equals_the_plain_loop_to_the_last_bit(plan):
    """Losses and weights of 230 steps with dropout are those of a loop without us."""
    data, step, model = make_training()
    torch.manual_seed(1)
    expected = [step(batch).item() for batch in data]
    expected_weights = [weight.clone() for weight in model.parameters()]

    data, step, model = make_training()
    torch.manual_seed(1)
    result = gapless.run_epoch(data, step, device="cpu", plan=plan)

    assert expected == result.losses
    assert all(map(torch.equal, expected_weights, model.parameters()))


class Batches:
    """A loader that can be waited to be gone, as its worker processes would be with it."""

    def __iter__(self):
        yield from make_training()[0][:4]


@pytest.mark.parametrize("plan", gapless.PLANS)
def test_an_epoch_that_ended_does_not_wait_for_a_garbage_collection(plan):
    """Its loader, and so its worker processes, go with the last name that it has."""
    _, step, _ = make_training()
    batches = Batches()
    is_there = weakref.ref(batches)
    gc.collect()
    gc.disable()
    try:
        with TrainLoop(plan=plan, device="cpu") as loop:
            result = loop.run_epoch(batches, step)
        del loop, batches
        assert is_there() is None
    finally:
        gc.enable()
    assert len(result.losses) == 4


@pytest.mark.parametrize("failure", [KeyboardInterrupt, ValueError, MemoryError])
@pytest.mark.parametrize("plan", ["blocking", "events-interval", "gapless"])
def test_every_loss_is_kept_when_a_step_fails(plan, failure):
    """An epoch cut short leaves the losses of all steps that ran, once each."""

    def step(batch):
        if batch == 57:
            raise failure
        return batch * 1.0

    with TrainLoop(plan=plan, device="cpu") as loop:
        with pytest.raises(failure):
            loop.run_epoch([torch.tensor(float(n)) for n in range(90)], step)
        again = loop.run_epoch([torch.tensor(3.0)] * 15, lambda batch: batch * 1.0)

    assert [float(n) for n in range(57)] == loop.losses.history[:57]
    assert again.losses == [3.0] * 15


def test_a_callback_can_stop_the_epoch():
    """An exception of the callback ends the epoch with all losses read."""

    def stop(progress):
        if progress.batch == 13:
            raise StopAsyncIteration

    with TrainLoop(plan="gapless", device="cpu") as loop, pytest.raises(StopAsyncIteration):
        loop.run_epoch([torch.tensor(1.0)] * 50, lambda x: x * 2, on_batch=stop)

    assert loop.losses.history == [2.0] * 13


def test_weights_and_reported_losses():
    """A step may report another number than it trains on, with a weight."""

    def step(batch):
        return StepLoss(loss=batch, logged=batch * 10, weight=batch)

    result = gapless.run_epoch([torch.tensor(1.0), torch.tensor(3.0)], step, device="cpu")

    assert result.losses == [10.0, 30.0]
    assert result.mean_loss == 25.0
    assert result.weight == 4.0


def test_progress_shows_the_running_mean_between_reads():
    """The mean appears with the first bulk read and follows every later one."""
    seen = []
    gapless.run_epoch(
        [torch.tensor(float(n)) for n in range(25)],
        lambda x: x * 1.0,
        device="cpu",
        plan="events-interval",
        on_batch=lambda progress: seen.append(progress.mean_loss),
    )

    assert seen == [None] * 9 + [4.5] * 10 + [9.5] * 6


def test_knobs_are_free_of_each_other():
    """Intervals, depth and pinning can be set one by one, and the counts follow."""
    plan = gapless.PLANS["events-interval"].with_knobs(
        sync_interval=4, loss_interval=7, prefetch=5, pin_memory=False
    )

    result = gapless.run_epoch([torch.tensor(1.0)] * 28, lambda x: x * 1, plan=plan, device="cpu")

    counts = {reason: total.count for reason, total in result.waits.by_reason.items()}
    assert counts["interval"] == 7
    # A CPU has no other memory that a copy would have to be staged for.
    assert "pageable_copy" not in counts
    assert result.num_batches == 28


def test_an_empty_epoch_is_no_error():
    """No batches give no losses."""
    result = gapless.run_epoch([], lambda x: x, device="cpu")

    assert result.losses == []


class SplitTraining:
    """A step in two parts, with the same arithmetic as that of `make_training`."""

    def __init__(self, model):
        self._model = model
        self._optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, fused=True)

    def forward(self, batch):
        inputs, targets = batch
        return StepLoss(loss=torch.nn.functional.mse_loss(self._model(inputs), targets))

    def backward(self, out):
        self._optimizer.zero_grad()
        out.loss.backward()
        self._optimizer.step()


@pytest.mark.parametrize("plan", ["blocking", "four-stream", "gapless"])
def test_a_step_in_two_parts_equals_the_whole_one(plan):
    """A `SplitStep` gives the losses and weights of the same step as one function."""
    data, step, model = make_training()
    torch.manual_seed(1)
    whole = gapless.run_epoch(data, step, device="cpu", plan=plan)
    data, _, split_model = make_training()
    torch.manual_seed(1)
    split = gapless.run_epoch(data, SplitTraining(split_model), device="cpu", plan=plan)

    assert whole.losses == split.losses
    assert all(map(torch.equal, model.parameters(), split_model.parameters()))


@pytest.mark.parametrize("failure", [KeyboardInterrupt, OSError, StopAsyncIteration])
@pytest.mark.parametrize("plan", gapless.PLANS)
def test_every_loss_is_kept_when_the_loader_or_the_callback_fails(plan, failure):
    """Each step that ran is in the history once; a loader's error follows its last batch."""

    def loader():
        yield from (torch.tensor(float(n)) for n in range(37))
        raise failure

    def stop(progress):
        if progress.batch == 23:
            raise failure

    with TrainLoop(plan=plan, device="cpu") as loop:
        with pytest.raises(failure):
            loop.run_epoch([torch.tensor(1.0)] * 50, lambda x: x * 2, on_batch=stop)
        num_before = len(loop.losses.history)
        with pytest.raises(failure):
            loop.run_epoch(loader(), lambda x: x * 1)
        after = loop.losses.history[num_before:]

    assert loop.losses.history[:num_before] == [2.0] * 23
    # A signal does not wait for the batches that are on their way; an error does.
    assert [float(n) for n in range(len(after))] == after
    assert len(after) == 37 or failure is KeyboardInterrupt


@pytest.mark.parametrize("plan", gapless.PLANS)
def test_epochs_keep_their_results_apart(plan):
    """Losses, means, weights and waits of an epoch are its own, also with a rare read."""
    knobs = gapless.PLANS[plan].with_knobs(loss_interval=64)
    with TrainLoop(plan=knobs, device="cpu") as loop:
        epochs = [
            loop.run_epoch([torch.tensor(float(n))] * count, lambda x: StepLoss(loss=x, weight=x))
            for n, count in ((1, 15), (2, 3), (3, 64), (4, 65))
        ]

    assert [one.losses for one in epochs] == [[1.0] * 15, [2.0] * 3, [3.0] * 64, [4.0] * 65]
    assert [one.mean_loss for one in epochs] == [1.0, 2.0, 3.0, 4.0]
    assert [one.weight for one in epochs] == [15.0, 6.0, 192.0, 260.0]
    assert [one.num_batches for one in epochs] == [15, 3, 64, 65]
    assert epochs[0].waits is not epochs[1].waits
    assert all(one.waits.count >= 1 for one in epochs)
    assert epochs[1].waits.count < epochs[3].waits.count or knobs.wait_with == "nothing"


def test_an_epoch_knows_its_times():
    """Data wait, launch, busy and wall time are there; a CPU has no gap."""
    result = gapless.run_epoch([torch.ones(3)] * 20, lambda x: x.sum(), device="cpu")

    assert result.data_wait_ms > 0
    assert result.launch_ms > 0
    assert result.wall_ms >= result.launch_ms + result.data_wait_ms
    assert result.launch_ms >= result.busy_ms > 0
    assert None is result.gap_ms
    assert None is result.gap_share


class UnhurriedDevice(CpuDevice):
    """Events are done only once somebody waited for them or for a later one."""

    def __init__(self):
        super().__init__()
        self._now = 0
        self._waited_until = 0

    def record_event(self, event, stream):
        super().record_event(event, stream)
        self._now += 1
        event.number = self._now

    def query_event(self, event):
        return getattr(event, "number", 0) <= self._waited_until

    def synchronize_event(self, event):
        self._waited_until = max(self._waited_until, event.number)


@pytest.mark.parametrize("run_ahead", [2, 8, 100])
def test_the_host_is_never_further_ahead_than_asked(run_ahead):
    """When the device finishes nothing by itself, every batch past the bound waits for one."""
    plan = gapless.PLANS["gapless"].with_knobs(run_ahead=run_ahead, prefetch=0)
    device = UnhurriedDevice()

    result = gapless.run_epoch(
        [torch.tensor(float(n)) for n in range(60)], lambda x: x * 1, plan=plan, device=device
    )

    counts = {reason: total.count for reason, total in result.waits.by_reason.items()}
    assert [float(n) for n in range(60)] == result.losses
    assert max(0, 60 - run_ahead + 1) == counts.get("run_ahead", 0)
    assert counts["epoch_end"] == 1


def test_progress_counts_batches_and_weights():
    """Every callback sees one batch more, and the weight of the losses read so far."""
    seen = []
    gapless.run_epoch(
        [torch.tensor(2.0)] * 6,
        lambda x: StepLoss(loss=x, weight=3.0),
        device="cpu",
        plan=gapless.PLANS["gapless"].with_knobs(loss_interval=3),
        on_batch=lambda progress: seen.append((progress.batch, progress.weight)),
    )

    assert seen == [(1, 0.0), (2, 0.0), (3, 9.0), (4, 9.0), (5, 9.0), (6, 18.0)]


def test_the_loop_serves_an_evaluation_between_epochs():
    """Batches prefetched outside an epoch pass through the same memory and disturb nothing."""
    data = [torch.tensor(float(n)) for n in range(12)]
    with TrainLoop(device="cpu") as loop:
        first = loop.run_epoch(data, lambda x: x * 1)
        between = [float(batch) for batch in loop.prefetch(data)]
        second = loop.run_epoch(data, lambda x: x * 1)

    assert first.losses == between == second.losses


class ScriptedDevice(CpuDevice):
    """A device whose clock the test moves, and which is asked for its gaps."""

    is_accelerator = True
    now = 0.0

    def record_event(self, event, stream):
        event.recorded_at = self.now

    def elapsed_ms(self, start, end):
        return end.recorded_at - start.recorded_at


def test_the_time_between_epochs_is_no_gap():
    """Steps of 3 ms with 1 ms before each are a quarter idle, however long a pause was."""
    device = ScriptedDevice()

    def loader():
        for _ in range(10):
            device.now += 1.0
            yield torch.tensor(1.0)

    def step(batch):
        device.now += 3.0
        return batch * 1

    plan = gapless.PLANS["gapless"].with_knobs(prefetch=0)
    shares = []
    with TrainLoop(plan=plan, device=device) as loop:
        for _epoch in range(2):
            device.now += 1000.0
            result = loop.run_epoch(
                loader(), step, on_batch=lambda progress: shares.append(progress.gap_share)
            )

            assert (result.busy_ms, result.gap_ms) == (30.0, 9.0)
            assert result.gap_share == 9.0 / 39.0

    assert [0.0, 1.0 / 7.0] == shares[:2] == shares[10:12]


def test_a_loop_that_ended_holds_no_graphs():
    """Whoever still holds it: NCCL would wait for ever for a graph that sums gradients of ranks."""
    data, step, model = make_training()
    before = graphs()
    with SimulatedDevice(scheduler="asap") as device:
        model.to(device.torch_device)
        with TrainLoop(plan="captured", device=device) as loop:
            loop.run_epoch(data[:12], step)
            held = graphs() - before

        assert held > 0
        assert graphs() == before
        assert loop.capture_report.num_graphs == held


def graphs():
    gc.collect()
    return sum(isinstance(one, SimulatedGraph) for one in gc.get_objects())
