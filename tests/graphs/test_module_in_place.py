"""Modules that are captured where they stand."""

from __future__ import annotations

import copy
import inspect
import pickle
import warnings
import weakref

import pytest
import torch
from torch import nn

import gapless
from gapless.graphs.modules.gradient_paths import gradients_by_use
from gapless.testing import SimulatedDevice


@pytest.fixture
def device():
    with SimulatedDevice() as device:
        yield device


def mlp(device):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).to(device.torch_device)


def batch(device, number, rows=3):
    draw = torch.Generator().manual_seed(number)
    return torch.randn(rows, 4, generator=draw).to(device.torch_device)


def gradients(device, model, number, *, weight=1.0):
    """Run both passes; return the loss and all gradients."""
    model.zero_grad()
    loss = (model(batch(device, number)) * weight).square().mean()
    loss.backward()
    return [loss.item(), *[one.grad.tolist() for one in model.parameters()]]


def test_losses_and_gradients_are_those_of_the_module_as_written(device):
    """From the first replay on, and the report counts all calls."""
    plain, model = mlp(device), mlp(device)
    assert gapless.capture(model, device=device) is model

    for number in range(8):
        assert gradients(device, model, number) == gradients(device, plain, number)

    report = gapless.capture_report(model)
    assert (report.num_graphs, report.num_replays, report.num_eager) == (1, 5, 3)
    assert report.proved == 1
    assert report.refusals == []


def test_a_gradient_in_other_memory_is_computed_as_written(device):
    """A graph is captured for gradients of one layout; another runs the call again."""
    plain, model = mlp(device), gapless.capture(mlp(device), device=device)
    for number in range(6):
        gradients(device, model, number)

    for one in (model, plain):
        one.zero_grad()
        one(batch(device, 9)).sum().backward()  # a gradient of one number, seen many times

    pairs = zip(model.parameters(), plain.parameters(), strict=True)
    assert all(torch.equal(one.grad, other.grad) for one, other in pairs)


def test_two_forward_passes_before_the_backward_pass_are_graphs(device):
    """Each has memory of its own, as a discriminator's that sees real batches and made ones."""
    plain, model = mlp(device), gapless.capture(mlp(device), device=device)
    for number in range(12):
        for one in (plain, model):
            one.zero_grad()
            first, second = one(batch(device, number)), one(batch(device, number + 1))
            (first * second).sum().backward()
        for own, other in zip(model.parameters(), plain.parameters(), strict=True):
            assert torch.equal(own.grad, other.grad)

    report = gapless.capture_report(model)
    assert (report.num_graphs, report.refusals) == (2, [])
    assert report.num_replays > 12


def test_a_third_forward_pass_before_the_backward_pass_runs_as_written(device):
    """The report says so, and a warning once."""
    plain, model = mlp(device), gapless.capture(mlp(device), device=device)
    for number in range(6):
        gradients(device, model, number)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for number in range(8):
            for one in (model, plain):
                one.zero_grad()
                first, second, third = [one(batch(device, number + n)) for n in range(3)]
                (first * second * third).sum().backward()

    assert [one.category for one in told] == [gapless.CaptureWarning]
    assert "capture the whole step, or let go of the loss" in str(told[0].message)
    assert [one.kind for one in gapless.capture_report(model).refusals] == ["second_forward"]
    pairs = zip(model.parameters(), plain.parameters(), strict=True)
    assert all(torch.equal(one.grad, other.grad) for one, other in pairs)


def test_copies_and_files_are_ordinary_modules(device):
    """They have the attributes that they would have without a capture, and no graphs."""
    plain, model = mlp(device), gapless.capture(mlp(device), device=device)
    gradients(device, model, 0)

    for other in (copy.deepcopy(model), copy.copy(model)):
        assert sorted(vars(other)) == sorted(vars(plain))
        with pytest.raises(gapless.UserError, match="not captured"):
            gapless.capture_report(other)
    on_host = copy.deepcopy(model).to("cpu")
    assert sorted(vars(pickle.loads(pickle.dumps(on_host)))) == sorted(vars(plain))


def test_a_released_module_is_what_it_was(device):
    """Its attributes are, and a `forward` that somebody holds runs as written."""
    model = mlp(device)
    before, signature = dict(vars(model)), inspect.signature(model.forward)
    gapless.capture(model, device=device)
    held = model.forward
    assert inspect.signature(held) == signature

    assert gapless.release(model) is model

    assert vars(model) == before
    assert torch.equal(held(batch(device, 0)), model(batch(device, 0)))


def test_a_refusal_can_be_an_error(device):
    """After the call ran as written."""

    class Counting(nn.Linear):
        num_calls = 0

        def forward(self, x):
            self.num_calls += 1
            return super().forward(x)

    model = Counting(4, 2).to(device.torch_device)
    gapless.capture(model, device=device, on_refusal="raise")
    with pytest.raises(gapless.CaptureRefused, match="num_calls"):
        for number in range(8):
            model(batch(device, number)).sum().backward()
    assert 2 <= model.num_calls <= 3


def test_casts_of_others_stay_in_autocast(device):
    """A capture within a block of autocast makes nobody cast a weight again."""
    kind = device.torch_device.type
    other = nn.Linear(4, 4).to(device.torch_device)
    model = gapless.capture(mlp(device), device=device)

    def losses(captured):
        found = []
        for number in range(12):
            with torch.autocast(kind, dtype=torch.bfloat16):
                x = other(batch(device, number)).float()
                out = captured(x) + other(batch(device, number + 50)).sum()
            other.zero_grad()
            out.float().square().sum().backward()
            found.append(other.weight.grad.tolist())
        return found

    plain = losses(mlp(device))
    assert losses(model) == plain
    assert gapless.capture_report(model).num_replays > 0


# --- the nodes of a call ---


def test_what_each_use_of_a_weight_gives_is_told_in_its_order():
    """Autograd sums them in the same order."""
    weight = torch.tensor([2.0], requires_grad=True)
    x = torch.tensor([3.0])
    out = (weight * x).exp() * weight

    ((first, second),) = gradients_by_use([out], [torch.ones(1)], [weight])
    ((expected),) = torch.autograd.grad((weight * x).exp() * weight, weight)

    assert first.item() == torch.tensor(6.0).exp().item()
    assert torch.equal(first + second, expected)


def test_calls_as_written_are_let_go(device):
    """What is noted of their backward passes holds no tensor of the call."""
    model = gapless.capture(mlp(device), device=device)
    ended = []
    for number in range(5):
        out = model(batch(device, number))
        ended.append(weakref.ref(out))
        out.square().mean().backward()
        del out

    assert [one() for one in ended] == [None] * 5


# --- several objects ---


def test_of_several_objects_each_has_to_be_a_module_or_an_optimizer(device):
    """Nothing is captured if one is not."""
    model = torch.nn.Linear(2, 2)

    with pytest.raises(gapless.UserError, match="got a function, expected a torch Module or"):
        gapless.capture(model, lambda x: x, device=device)

    with pytest.raises(gapless.UserError, match="is not captured"):
        gapless.capture_report(model)
