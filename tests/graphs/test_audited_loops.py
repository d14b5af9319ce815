"""Audits in whole loops: losses read late, gradients that add up under a scaler, a run that is resumed."""

from __future__ import annotations

import io

import pytest
import torch

import gapless
from gapless.testing.simulated.simulated_device import SimulatedDevice
from toy_steps import Training, batches, read_back


DATA = batches(*[4] * 40)


@pytest.fixture(params=["asap", "lazy", "random"])
def device(request):
    with SimulatedDevice(scheduler=request.param) as device, device.allow_waits():
        yield device


class Drops(Training):
    """With dropout, so that a draw more or less shows."""

    def __init__(self, device):
        super().__init__(device)
        self.model[2].p = 0.5

    def state(self):
        """Return weights, gradients and momentum as they are now."""
        tensors = [*self.model.parameters()]
        tensors += [weight.grad for weight in tensors if weight.grad is not None]
        tensors += [part["momentum_buffer"] for part in self.optimizer.state.values()]
        return [read_back(self.device, tensor).tolist() for tensor in tensors]


def losses_read_late(device, capture):
    """Batches are prefetched; no loss is waited for before the end, and the device seldom."""
    training, read, states = Drops(device), [], []
    losses = gapless.DeferredLoss(device, every=7, on_values=read.append)
    step = capture(training.step)
    for number, batch in enumerate(gapless.prefetch(DATA, device)):
        losses.add(step(batch))
        if number % 5 == 4:
            states.append(training.state())
    return [losses.mean(), losses.history, repr(read), states], step


class Accumulates(Drops):
    """Four micro-batches make an update, by a scaler that has to skip one."""

    def __init__(self, device):
        super().__init__(device)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=3)

    def add(self, batch):
        loss = self.loss_of(batch) / 4
        self.scaler.scale(loss).backward()
        return loss.detach()


def gradients_add_up_under_a_scaler(device, capture):
    training, seen = Accumulates(device), []
    add = capture(training.add)
    for number, batch in enumerate(gapless.prefetch(DATA, device)):
        loss = add(batch * float("inf") if number == 17 else batch)
        if number % 4 == 3:
            training.scaler.step(training.optimizer)
            training.scaler.update()
            training.optimizer.zero_grad(set_to_none=False)
        seen.append([read_back(device, loss).tolist(), training.scaler.get_scale()])
    return [repr(seen), training.state()], add


def resumed(device, capture):
    """Weights, optimizer and random state are saved behind an audited call, and loaded into another run."""
    training, seen, saved = Drops(device), [], io.BytesIO()
    step = capture(training.step)
    for number, batch in enumerate(gapless.prefetch(DATA, device)):
        if number == 15:
            state = (
                training.model.state_dict(),
                training.optimizer.state_dict(),
                torch.get_rng_state(),
            )
            torch.save(state, saved)
            saved.seek(0)
            training = Drops(device)
            weights, of_optimizer, draws = torch.load(saved)
            training.model.load_state_dict(weights)
            training.optimizer.load_state_dict(of_optimizer)
            step = capture(training.step)
            torch.set_rng_state(draws)
        seen.append(read_back(device, step(batch)).tolist())
    return [seen, training.state(), torch.rand(2).tolist()], step


def not_resumed(device, capture):
    """The same run, which is not interrupted."""
    training = Drops(device)
    step = capture(training.step)
    seen = [read_back(device, step(batch)).tolist() for batch in gapless.prefetch(DATA, device)]
    return [seen, training.state(), torch.rand(2).tolist()], step


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize(
    ("loop", "as_written"),
    [
        (losses_read_late, losses_read_late),
        (gradients_add_up_under_a_scaler, gradients_add_up_under_a_scaler),
        (resumed, not_resumed),
    ],
    ids=["losses read late", "gradients add up under a scaler", "resumed"],
)
def test_an_audited_loop_is_the_loop_as_written(device, loop, as_written, every):
    """Bit for bit, whichever of its calls are audits; none finds a difference."""

    def capture(step):
        return gapless.capture(step, device=device, audit_every=every)

    torch.manual_seed(1)
    expected, _ = as_written(device, lambda step: step)
    torch.manual_seed(1)
    found, step = loop(device, capture)

    assert found == expected
    report = step.report
    assert report.audits.differences == []
    assert report.audits.num >= 2
    assert report.num_replays > 0 or every == 1
