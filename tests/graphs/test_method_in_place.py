"""Methods of a captured module, and children that the loop calls in its place."""

from __future__ import annotations

import copy
import pickle
import warnings

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.nn.modules import module as torch_module
from torch.optim import optimizer as torch_optimizer

import gapless
from gapless.testing import SimulatedDevice


@pytest.fixture(autouse=True)
def nothing_is_compiled():
    """Children are not listened to in a process that has compiled something, as other tests have."""
    counters.clear()


@pytest.fixture
def device():
    with SimulatedDevice() as device:
        yield device


class Coder(nn.Module):
    """It is called by its methods, of which one calls another."""

    def __init__(self, device):
        super().__init__()
        torch.manual_seed(0)
        self.there = nn.Linear(4, 4, device=device)
        self.back = nn.Sequential(nn.Linear(4, 4, device=device), nn.Tanh())
        self.num_saved = 0

    def encode(self, x):
        return self.there(x)

    def around(self, x):
        return self.back(self.encode(x))

    def save(self, *places):
        self.num_saved += 1

    def fit(self, batches, optimizer):
        for x in batches:
            train(self.around, optimizer, x)


def batch(device, number):
    torch.manual_seed(number)
    return torch.randn(3, 4).to(device.torch_device)


def batches(device, num):
    return [batch(device, number) for number in range(num)]


def train(call, optimizer, x):
    optimizer.zero_grad()
    call(x).square().mean().backward()
    optimizer.step()


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def captured(device):
    """Return a plain coder and a captured one with an optimizer each."""
    plain, model = Coder(device.torch_device), Coder(device.torch_device)
    gapless.capture(model, device=device)
    return (plain, sgd(plain)), (model, sgd(model))


def assert_equal(plain, model):
    pairs = zip(plain.parameters(), model.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_a_method_that_another_calls_is_a_part_of_its_call(device):
    """The report counts the calls of the loop; a method that it calls later has graphs of its own.

    Around the very first call was no captured call yet.
    """
    (plain, of_plain), (model, of_model) = captured(device)
    for x in batches(device, 12):
        train(plain.around, of_plain, x)
        train(model.around, of_model, x)
    report = gapless.capture_report(model)
    num_alone, graphs_alone = report.num_steps, report.num_graphs
    for x in batches(device, 12):
        train(plain.encode, of_plain, x)
        train(model.encode, of_model, x)

    assert_equal(plain, model)
    assert (num_alone, graphs_alone) == (12, 1)
    report = gapless.capture_report(model)
    assert (report.num_steps, report.num_graphs) == (25, 2)
    assert report.num_replays >= 12


def test_a_method_that_trains_is_none_and_what_it_calls_is_captured(device):
    """So is one that neither takes nor returns a tensor, whatever else it takes."""
    endless = [{}]
    endless.append(endless)
    (plain, of_plain), (model, of_model) = captured(device)
    for number in range(3):
        plain.fit(batches(device, 4), of_plain)
        model.fit(batches(device, 4), of_model)
        model.save(endless)
        assert model.num_saved == number + 1

    assert_equal(plain, model)
    report = gapless.capture_report(model)
    assert report.num_steps == 12
    assert report.num_replays >= 4
    assert report.refusals == []


def test_copies_have_methods_of_their_own(device):
    """Copies and files have no more attributes than before, and a copy is called with its own weights."""
    (plain, _), (model, optimizer) = captured(device)
    train(model.around, optimizer, batch(device, 0))
    with torch.no_grad():
        twin = copy.deepcopy(model)
        twin.there.weight.zero_()
        twin.there.bias.zero_()

    assert not twin.encode(batch(device, 1)).any()
    assert model.encode(batch(device, 1)).any()
    for other in (twin, copy.copy(model), pickle.loads(pickle.dumps(copy.deepcopy(model).cpu()))):
        assert sorted(vars(other)) == sorted(vars(plain))


def test_a_replica_calls_its_own_methods(device):
    """`DataParallel` gives a module's attributes to other objects, which have other weights."""

    class Called(Coder):
        def forward(self, x):
            return self.encode(x)

    model = gapless.capture(Called(device.torch_device), device=device)
    model(batch(device, 1))
    replica = model._replicate_for_data_parallel()
    replica._modules = dict(replica._modules, there=nn.Identity())
    x = batch(device, 0)
    with pytest.warns(gapless.CaptureWarning, match="copy"):
        out = replica(x)

    assert torch.equal(out, x)


def test_a_released_module_has_the_methods_of_its_class(device):
    """One that somebody holds runs as written."""
    (plain, of_plain), (model, of_model) = captured(device)
    held = model.around
    for x in batches(device, 8):
        train(plain.around, of_plain, x)
        train(held, of_model, x)
    gapless.release(model)
    train(plain.around, of_plain, batch(device, 9))
    train(held, of_model, batch(device, 9))

    assert_equal(plain, model)
    assert sorted(vars(model)) == sorted(vars(plain))
    assert (held.__self__, held.__name__) == (model, "around")


def test_a_method_that_the_class_gets_anew_is_called(device, monkeypatch):
    """No graph of the one before is replayed."""
    _, (model, optimizer) = captured(device)
    for x in batches(device, 8):
        train(model.encode, optimizer, x)
    monkeypatch.setattr(Coder, "encode", lambda self, x: x + 1)

    assert torch.equal(model.encode(batch(device, 0)), batch(device, 0) + 1)


def test_children_that_the_loop_calls_are_captured(device):
    """Once some steps have come without a call of the module; it is released with them."""
    (plain, of_plain), (model, of_model) = captured(device)
    gapless.capture(of_model, device=device)
    for x in batches(device, 16):
        train(lambda x: plain.back(plain.there(x)), of_plain, x)
        train(lambda x: model.back(model.there(x)), of_model, x)
    report = gapless.capture_report(model)
    gapless.release(model)

    assert_equal(plain, model)
    assert report.num_graphs == 2
    assert report.num_replays >= 8
    assert [vars(part).keys() for part in model.modules()] == [
        vars(part).keys() for part in plain.modules()
    ]


@pytest.mark.parametrize("is_optimizer_captured", [True, False])
def test_a_module_that_nobody_calls_is_told_of_once(device, is_optimizer_captured):
    """After a hundred steps; the report says so too."""
    model, other = Coder(device.torch_device), Coder(device.torch_device)
    optimizer = torch.optim.SGD([*model.parameters(), *other.parameters()], lr=0.1)
    gapless.capture(*[model, optimizer][: 1 + is_optimizer_captured], device=device)
    told = []
    for number in range(120):
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            train(other.around, optimizer, batch(device, number))
        told += [(number, str(one.message)) for one in warned]

    assert [number for number, _ in told] == [99]
    assert told[0][1].startswith("Coder is not captured: nothing of it was called in 100 steps")
    assert "gapless.capture(step)" in gapless.capture_report(model).note


def test_nothing_is_listened_to_once_a_module_was_called(device):
    """No hooks are left for all optimizers, none are set for all modules, and parts are as they were."""
    (plain, _), (model, optimizer) = captured(device)
    for x in batches(device, 3):
        train(model.around, optimizer, x)

    assert not torch_optimizer._global_optimizer_pre_hooks
    assert not torch_module._global_forward_hooks
    assert vars(model.there).keys() == vars(plain.there).keys()
