"""What modules in place leave on themselves: objects and containers of tensors, with gradients."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.distributions import Normal

import gapless
from gapless.testing import SimulatedDevice


NUM = 14


class Leaves(nn.Module):
    """Calls a function of itself and of what it has computed, which leaves something."""

    def __init__(self, leave):
        super().__init__()
        self.first, self.second = nn.Linear(4, 3), nn.Linear(4, 3)
        self.leave, self.last, self.losses = leave, None, {"aux": None}

    def forward(self, x):
        return self.leave(self, self.first(x), self.second(x))


def distribution(model, mean, std):
    model.last = Normal(mean, std.exp(), validate_args=False)
    return mean


def same_tensor(model, mean, std):
    model.last = SimpleNamespace(mean=mean, scale=[std, mean])
    return mean


def detached(model, mean, std):
    model.last = std
    model.losses["aux"] = mean.detach()
    return mean


def entry(model, mean, std):
    model.losses["aux"] = std.square()
    return mean


def read_again(model, mean, std):
    before = model.last
    model.last = mean
    return mean if before is None else mean + 0.1 * before.detach()


def the_very_same(model, mean, std):
    model.last = SimpleNamespace(mean=mean, std=std)
    return model.last


def loss_of(model, x):
    out = model(x)
    found = [out if isinstance(out, torch.Tensor) else out.mean]
    last = model.last
    if isinstance(last, Normal):
        found += [last.log_prob(torch.zeros_like(last.mean)), last.entropy()]
    elif isinstance(last, SimpleNamespace):
        found += [last.mean * 2, last.std if hasattr(last, "std") else last.scale[0]]
    elif last is not None:
        found.append(last)
    found += [one for one in model.losses.values() if one is not None]
    return sum(one.square().mean() for one in found)


def trained(device, leave, *, is_captured, audit_every=None, between=lambda model: None):
    torch.manual_seed(0)
    model = Leaves(leave)
    device.upload_module(model) if hasattr(device, "upload_module") else model.to(
        device.torch_device
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if is_captured:
        gapless.capture(model, device=device, audit_every=audit_every)
    losses = []
    for number in range(NUM):
        x = torch.linspace(-1, 1, 20).view(5, 4) + 0.1 * number
        optimizer.zero_grad()
        loss = loss_of(model, x.to(device.torch_device))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        between(model)
    weights = [one.tolist() for one in model.parameters()]
    return model, losses, weights


def both(leave, **options):
    with SimulatedDevice(scheduler="asap") as device:
        _, *expected = trained(device, leave, is_captured=False)
        model, *found = trained(device, leave, is_captured=True, **options)
        report = gapless.capture_report(model)
    assert found == expected
    assert device.report.races == []
    return model, report


@pytest.mark.parametrize("audit_every", [None, 2])
@pytest.mark.parametrize(
    "leave", [distribution, same_tensor, detached, entry], ids=lambda leave: leave.__name__
)
def test_what_is_left_has_gradients_like_what_is_returned(leave, audit_every):
    """The loop makes a loss of it; an audited call leaves it as well."""
    _, report = both(leave, audit_every=audit_every)

    assert report.num_replays > NUM // 3
    assert report.refusals == []
    assert report.audits.differences == []
    assert audit_every is None or (report.audits.num_equal > 1 and report.audits.num_halves == 0)


def test_a_tensor_that_is_left_twice_is_one():
    """And it is the one that is returned."""
    seen = []

    def between(model):
        seen.append(model.last.mean is model.last.scale[1])

    with SimulatedDevice(scheduler="asap") as device:
        model, *_ = trained(device, same_tensor, is_captured=True, between=between)

        assert gapless.capture_report(model).num_replays > NUM // 3
    assert seen == [True] * NUM


def test_what_the_next_call_reads_is_refused():
    """The line says what is kept, and the way that works."""
    with pytest.warns(gapless.CaptureWarning, match=r"self\.last|model\.last"):
        _, report = both(read_again)

    assert report.num_replays == 0
    assert "return it and pass it as an argument" in str(report.refusals[0])


def test_an_object_that_is_left_and_returned_is_refused():
    """After a replay it would be two."""
    with pytest.warns(gapless.CaptureWarning, match="SimpleNamespace"):
        _, report = both(the_very_same)

    assert report.num_replays == 0


def test_a_call_that_runs_again_leaves_what_the_replay_has_left():
    """Two forward passes before their backward passes: the first one runs again as written."""
    with SimulatedDevice(scheduler="asap") as device:
        model, *_ = trained(device, distribution, is_captured=True)
        x = torch.ones(5, 4).to(device.torch_device)

        loss = loss_of(model, x)
        left = model.last
        with torch.no_grad():
            model(x * 2)
        newer = model.last
        loss.backward()

        assert newer is not left
        assert model.last is newer
