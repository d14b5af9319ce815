"""The loop against a plain one, and when something goes wrong."""

from __future__ import annotations

import pytest
import torch

import gapless
from gapless.pipeline.loop import StepLoss, TrainLoop


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
        return StepLoss(loss=batch, report=batch * 10, weight=batch)

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
    assert counts["pageable_copy"] == 28
    assert result.num_batches == 28


def test_an_empty_epoch_is_no_error():
    """No batches give no losses."""
    result = gapless.run_epoch([], lambda x: x, device="cpu")

    assert result.losses == []
