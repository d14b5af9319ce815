"""Idioms of policies and robots: what they give back, leave on an object, and read of spaces."""

from __future__ import annotations

import weakref
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Normal

import gapless
from gapless.graphs.modules.seen_calls import CallsSeen
from gapless.graphs.proof.capture_failure import why_it_failed
from gapless.testing import SimulatedDevice


NUM = 16


class Policy(nn.Module):
    """Two heads behind a layer."""

    def __init__(self):
        super().__init__()
        self.first, self.head, self.value = nn.Linear(4, 6), nn.Linear(6, 4), nn.Linear(6, 1)
        self.space = SimpleNamespace(low=np.zeros(3), high=np.ones(3))
        self.held = SimpleNamespace(distribution=None)


class GivesActionBack(Policy):
    """As policies that are trained on an action which they have drawn before."""

    def forward(self, x, action=None):
        hidden = self.first(x).tanh()
        mean = self.head(hidden)
        action = torch.ones_like(mean) if action is None else action
        return action, (mean - action).square().sum(1), self.value(hidden)


class GivesHalves(Policy):
    """Mean and logarithm of the variance, as encoders have them."""

    def forward(self, x, action=None):
        mean, variance = self.head(self.first(x)).chunk(2, dim=1)
        return mean, variance, self.value(self.first(x))


class GivesOverlapping(Policy):
    def forward(self, x, action=None):
        out = self.head(self.first(x))
        return out[:, :3], out[:, 1:], self.value(self.first(x))


class GivesWhatIsBehindAnother(Policy):
    """The loop's gradient of the first comes in strides of its own, and that of the second is added."""

    def forward(self, x, action=None):
        action = self.head(self.first(x)).tanh()
        return action, action.square().sum(1), self.value(action.new_ones(len(x), 6))


class ReadsSpace(Policy):
    """As frameworks ask whether an observation is a picture."""

    def forward(self, x, action=None):
        scale = 2.0 if np.any(self.space.low != 0) or len(self.space.high) == 2 else 1.0
        return self.head(self.first(x)) * scale, self.first(x).sum(1), self.value(self.first(x))


class KeepsDistribution(Policy):
    """On an object beside it, and acts on other batches in between."""

    def forward(self, x, action=None):
        mean = self.head(self.first(x))
        self.held.distribution = Normal(mean, mean.exp(), validate_args=False)
        return (
            mean,
            self.held.distribution.log_prob(mean.detach()).sum(1),
            self.value(self.first(x)),
        )


def trained(kind, *, is_captured, change=lambda policy, number: None):
    """Train as loops do, and act between the updates; return the policy, all numbers and the outputs."""
    torch.manual_seed(0)
    losses = []
    with SimulatedDevice(scheduler="asap") as device, device.allow_waits():
        policy = kind().to(device.torch_device)
        if is_captured:
            gapless.capture(policy, device=device)
        given = []
        for number in range(NUM):
            change(policy, number)
            x = torch.randn(8, 4).to(device.torch_device)
            action = torch.randn(8, 4).to(device.torch_device)
            with torch.no_grad():
                losses.append(policy(x[:1])[0].sum().item())
            outs = policy(x, action)
            given.append(outs[0] is action)
            # As a critic that is given state and action takes its gradient apart.
            loss = torch.cat([x, outs[0]], 1).square().sum() + outs[1].sum() + outs[2].sum()
            policy.zero_grad()
            loss.backward()
            losses += [loss.item(), *[weight.grad.sum().item() for weight in weights_of(policy)]]
    return policy, losses, given


def weights_of(policy):
    return [weight for weight in policy.parameters() if weight.grad is not None]


@pytest.mark.parametrize(
    "kind",
    [GivesActionBack, GivesHalves, GivesWhatIsBehindAnother, ReadsSpace, KeepsDistribution],
)
def test_policies_are_captured(kind):
    """Acting and updates are replayed, nothing is refused, and every bit is as written."""
    _, expected, given = trained(kind, is_captured=False)
    policy, losses, given_by_replays = trained(kind, is_captured=True)
    report = gapless.capture_report(policy)

    assert losses == expected
    assert given_by_replays == given
    assert report.refusals == []
    assert report.num_graphs == 2
    assert report.num_replays > NUM


def test_outputs_that_overlap_are_refused():
    """A change of one would show in the other."""
    _, expected, _ = trained(GivesOverlapping, is_captured=False)
    policy, losses, _ = trained(GivesOverlapping, is_captured=True)

    assert losses == expected
    assert "shares memory" in str(gapless.capture_report(policy).refusals[0])


@pytest.mark.parametrize(
    "change",
    [
        lambda space: space.low.fill(1.0),
        lambda space: setattr(space, "low", np.ones(3)),
        lambda space: setattr(space, "high", np.ones(2)),
    ],
    ids=["in place", "another", "another shape"],
)
def test_a_small_array_is_compared(change):
    """Once it is another, calls are computed with it."""

    def at_ten(policy, number):
        if number == 10:
            change(policy.space)

    _, expected, _ = trained(ReadsSpace, is_captured=False, change=at_ten)
    policy, losses, _ = trained(ReadsSpace, is_captured=True, change=at_ten)

    assert losses == expected
    assert gapless.capture_report(policy).num_replays > 0
    assert any("space" in line for line in gapless.capture_report(policy).changes)


@pytest.mark.parametrize(
    ("function", "advice"), [("normal", "rsample"), ("is_all_true", "set_default_validate_args")]
)
def test_the_advice_on_distributions_says_what_does_not_wait(monkeypatch, function, advice):
    """Drawing looks at the deviation on a GPU, and checks of arguments at all of them."""

    def waits(*args, **kwargs):
        raise RuntimeError("operation not permitted when stream is capturing")

    if function == "normal":
        monkeypatch.setattr(torch, "normal", waits)
    else:
        monkeypatch.setattr(torch.distributions.constraints.real, "check", waits)
    with pytest.raises(RuntimeError) as raised:
        Normal(torch.zeros(2), torch.ones(2), validate_args=True).sample()

    assert advice in why_it_failed(raised.value, ["train.py:1"])[0].text


class Maker:
    def __init__(self, scale):
        self.scale = scale


class Made:
    """A batch that remembers what it was made of, as a TensorDict does, by a weak reference."""

    def __init__(self, x, maker):
        self.x, self.made_by = x, ("to", weakref.ref(maker))


@pytest.mark.parametrize(
    ("follows", "num_graphs", "told"), [(False, 1, ""), (True, 0, "no attribute 'scale'")]
)
def test_a_batch_that_remembers_what_it_was_made_of_is_captured(follows, num_graphs, told):
    """Unless the step follows the reference, which leads to something that no batch holds."""
    with SimulatedDevice() as device:
        makers = [Maker(float(1 + number)) for number in range(NUM)]
        batches = [Made(torch.ones(2).to(device.torch_device), maker) for maker in makers]

        def step(batch):
            out = batch.x * 3.0
            return (out * batch.made_by[1]().scale if follows else out).sum()

        captured = gapless.capture(step, device=device)

        assert [captured(one).item() for one in batches] == [step(one).item() for one in batches]
    assert captured.report.num_graphs == num_graphs
    assert told in str(captured.report.refusal)


def test_a_call_that_no_graph_can_take_is_not_watched(monkeypatch):
    """Its gradients are nobody's business: it costs what it costs as written."""
    observed = []
    monkeypatch.setattr(CallsSeen, "observed", lambda *_: observed.append(1))
    with SimulatedDevice() as device:
        model = nn.Linear(4, 4).to(device.torch_device)
        gapless.capture(model, device=device)
        for _ in range(8):
            with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x):
                model(torch.ones(2, 4).to(device.torch_device))

    assert gapless.capture_report(model).refusal.kind == "hook"
    assert observed == []
