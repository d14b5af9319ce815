"""Calls with gradients that no backward pass follows, as those of a policy that acts, are graphs without one."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import gapless
from gapless.graphs.modules.module_refusals import OTHER_GRADIENTS
from gapless.testing import SimulatedDevice


NUM_STEPS = 40


@pytest.fixture
def device():
    with SimulatedDevice(scheduler="asap") as device, device.allow_waits():
        yield device


def policy(device):
    torch.manual_seed(0)
    layers = nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 2)
    return nn.Sequential(*layers).to(device.torch_device)


def train(device, model, *, trains=True, has_late_backward=False):
    """Act on one row in each step, whose result is held until the next, and train on rows in between."""
    at = device.torch_device
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = []
    for step in range(NUM_STEPS):
        values = model(torch.full((1, 4), float(step), device=at))
        found.append((values.argmax().item(), values.requires_grad))
        optimizer.zero_grad()
        if trains:
            loss = model(torch.full((16, 4), step / NUM_STEPS, device=at)).square().mean()
            loss.backward()
            found.append(loss.item())
        if has_late_backward and step == NUM_STEPS - 1:
            model(torch.full((1, 4), float(step), device=at)).sum().backward()
            found += [weight.grad.tolist() for weight in model.parameters()]
        optimizer.step()
    return found


@pytest.mark.parametrize("has_late_backward", [False, True])
def test_a_policy_that_acts_with_gradients_is_captured(device, has_late_backward):
    """Its values need gradients as written; a backward pass that comes all the same gives those as written."""
    expected = train(device, policy(device), has_late_backward=has_late_backward)
    model = gapless.capture(policy(device), device=device)

    assert train(device, model, has_late_backward=has_late_backward) == expected

    report = gapless.capture_report(model)
    assert (report.num_graphs, report.note) == (2, None)
    # Both kinds from some step on: with training alone half of the calls would be.
    assert report.num_replays > 1.4 * NUM_STEPS


def test_what_may_be_trained_yet_is_not_taken_for_a_policy(device):
    """A pass of evaluation with gradients comes first in many scripts; the same kind is trained then."""
    plain, model = policy(device), gapless.capture(policy(device), device=device)
    for one in (plain, model):
        train(device, one, trains=False)
    found = []
    for one in (plain, model):
        torch.manual_seed(1)
        for _ in range(10):
            one(torch.ones(1, 4, device=device.torch_device)).sum().backward()
        found.append([weight.grad.tolist() for weight in one.parameters()])

    assert found[0] == found[1]
    assert gapless.capture_report(model).num_replays > 0
    assert gapless.capture_report(model).refusals == []


def test_calls_that_wait_for_their_backward_passes_are_no_policy(device):
    """The log probabilities of an episode are trained at its end."""
    at = device.torch_device
    plain, model = policy(device), gapless.capture(policy(device), device=device)
    found = []
    for one in (plain, model):
        torch.manual_seed(1)
        for episode in range(4):
            one(torch.ones(16, 4, device=at)).sum().backward()
            kept = [one(torch.full((1, 4), episode + n / 20, device=at)).sum() for n in range(20)]
            torch.stack(kept).sum().backward()
        found.append([weight.grad.tolist() for weight in one.parameters()])

    assert found[0] == found[1]
    assert OTHER_GRADIENTS not in gapless.capture_report(model).refusals
