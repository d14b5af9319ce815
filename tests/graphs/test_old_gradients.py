"""Gradients that a call finds from the call before: used, let go of, or parts of one tensor."""

from __future__ import annotations

import copy

import pytest
import torch

import gapless
from gapless.testing.simulated.simulated_device import SimulatedDevice
from toy_steps import HoldsGradients, Training, UpdatesFirst, read_back


@pytest.fixture
def device():
    with SimulatedDevice(scheduler="asap") as device, device.allow_waits():
        yield device


class ReadsTheLastGradient(Training):
    """Adds half of the last call's gradient."""

    def step(self, batch):
        weight = self.model[0].weight
        last = None if weight.grad is None else weight.grad.clone()
        self.optimizer.zero_grad()
        loss = self.loss_of(batch)
        loss.backward()
        if last is not None:
            weight.grad.add_(last, alpha=0.5)
        self.optimizer.step()
        return loss


class LetsGoOfMoreThanItMakes(Training):
    """One of two heads is trained in each call, and the gradients of both are let go of."""

    def __init__(self, device):
        super().__init__(device)
        self.others = torch.nn.Linear(3, 3).to(device.torch_device)
        self.optimizer.add_param_group({"params": list(self.others.parameters())})
        self.trains_others = False

    def step(self, batch):
        self.optimizer.zero_grad()
        loss = self.loss_of(batch)
        if self.trains_others:
            loss = self.others.weight.pow(2).sum() + self.others.bias.sum()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def before(self, number):
        self.trains_others = number % 2 == 1


class SetsPartsOfOneTensor(Training):
    """Gradients are views of one flat tensor, which is another one in each call."""

    def step(self, batch):
        weights = list(self.model.parameters())
        loss = self.loss_of(batch)
        parts = [part.reshape(-1) for part in torch.autograd.grad(loss, weights)]
        flat, first = torch.cat(parts), 0
        for weight in weights:
            weight.grad = flat[first : first + weight.numel()].view_as(weight)
            first += weight.numel()
        self.optimizer.step()
        return loss.detach()


class SharesGradients(Training):
    """Another model, which the step knows by its name alone, gets the same gradients; the loop updates it."""

    def __init__(self, device):
        super().__init__(device)
        self.others = copy.deepcopy(self.model)
        self.update = torch.optim.SGD(self.others.parameters(), lr=0.1)

    def step(self, batch):
        self.model.zero_grad()
        loss = self.loss_of(batch)
        loss.backward()
        for weight, other in zip(self.model.parameters(), self.others.parameters(), strict=True):
            other.grad = weight.grad
        return loss.detach()

    def after(self, number):
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 0.1)  # those of the others, too
        self.update.step()
        with torch.no_grad():
            for weight, other in zip(
                self.model.parameters(), self.others.parameters(), strict=True
            ):
                weight.copy_(other)
        return [weight.grad.clone() for weight in self.others.parameters()]


class SetsPartsAndAViewIsKept(SetsPartsOfOneTensor):
    """The loop keeps a part of a gradient."""

    def after(self, number):
        kept, self.kept = getattr(self, "kept", None), None
        if number % 4 == 3:
            self.kept = self.model[0].weight.grad[0]
        return [] if kept is None else [kept.clone()]


def trained(kind, device, *, captured, num=24):
    """Return all that the loop sees, the weights, and the report."""
    torch.manual_seed(0)
    training, seen = kind(device), []
    step = gapless.capture(training.step, device=device) if captured else training.step
    data = [training.data[number % len(training.data)] for number in range(num)]
    for number, batch in enumerate(gapless.prefetch(data, device)):
        training.before(number)
        seen.append(read_back(device, step(batch)).tolist())
        seen += [read_back(device, tensor).tolist() for tensor in training.after(number)]
    weights = [read_back(device, weight).tolist() for weight in training.model.parameters()]
    return seen, weights, step.report if captured else None


@pytest.mark.parametrize("kind", [UpdatesFirst, ReadsTheLastGradient])
def test_a_step_that_uses_the_last_gradients_is_refused(device, kind):
    """Its graph would read them where they lay in the capture."""
    *plain, _ = trained(kind, device, captured=False)
    *found, report = trained(kind, device, captured=True)

    assert found == plain
    assert report.num_replays == 0
    assert "computes something else than the step" in str(report)


@pytest.mark.parametrize(
    "kind",
    [
        LetsGoOfMoreThanItMakes,
        SetsPartsOfOneTensor,
        SetsPartsAndAViewIsKept,
        HoldsGradients,
        SharesGradients,
    ],
)
def test_a_step_that_lets_go_of_the_last_gradients_is_captured(device, kind):
    *plain, _ = trained(kind, device, captured=False)
    *found, report = trained(kind, device, captured=True)

    assert found == plain
    assert report.num_replays >= 6, report
