"""A module that cannot be captured as a whole gives way to its parts."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

import gapless
from gapless.errors import CaptureRefused
from gapless.graphs.in_place.captor import captor_of
from gapless.testing import SimulatedDevice


pytestmark = pytest.mark.quick_tests(4)

NUM = 12


@pytest.fixture(autouse=True)
def nothing_is_compiled():
    """Children are not listened to in a process that has compiled something, as other tests have."""
    counters.clear()


@pytest.fixture
def device():
    with SimulatedDevice(scheduler="asap") as device:
        yield device


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x):
        return x + self.second(torch.tanh(self.first(x)))


class Noisy(nn.Module):
    """The loss of a diffusion model draws the steps of its noise on the host."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(Block(), nn.Dropout(0.1))
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(4, 4)

    def forward(self, x):
        noise = torch.rand(x.shape[0], 1).to(x.device)
        h = self.net(x + noise)
        for block in self.blocks:
            h = block(h)
        return self.head(h).square().mean()


class PrintsInside(nn.Module):
    """Its part calls a function that prints."""

    def __init__(self):
        super().__init__()
        self.body = Telling()

    def forward(self, x):
        print(end="")
        return self.body(x).square().mean()


class Telling(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Block()

    def forward(self, x):
        return self.block(told(x))


def told(x):
    print(end="")
    return x


def trained(device, kind, *, capture, **options):
    """Return a model, its losses and its weights after some updates."""
    torch.manual_seed(0)
    model = kind().to(device.torch_device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if capture:
        gapless.capture(model, optimizer, device=device, **options)
    losses = []
    for _ in range(NUM):
        optimizer.zero_grad()
        loss = model(torch.randn(3, 4).to(device.torch_device))
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().clone())
    with device.allow_waits():
        weights = [weight.detach().cpu() for weight in model.parameters()]
        return model, [loss.item() for loss in losses], weights


def as_eager(device, kind, **options):
    """Train with a capture, check that all is as without, and return the model and what was said."""
    _, losses, weights = trained(device, kind, capture=False)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        model, its_losses, its_weights = trained(device, kind, capture=True, **options)
    assert its_losses == losses
    assert all(map(torch.equal, weights, its_weights))
    return model, [str(one.message) for one in said]


def test_parts_of_a_refused_module_are_captured(device):
    """The largest ones that can be called and are no single layer; one line says which."""
    model, (first, *_) = as_eager(device, Noisy)

    report = gapless.capture_report(model)
    assert report.in_its_place == ["net", "blocks.0", "blocks.1"]
    assert report.num_replays >= 3 * (NUM - 5)
    assert captor_of(model.head) is None
    assert "Noisy is not captured" in first
    assert "in its place are captured: `net`, `blocks.0` and `blocks.1`" in first
    assert "in its place are captured" in str(report)


def test_a_part_that_is_refused_gives_way_in_turn(device):
    """The report of the module is that of all parts."""
    model, _ = as_eager(device, PrintsInside)

    report = gapless.capture_report(model)
    assert report.in_its_place == ["body", "block"]
    assert report.num_replays > 0


def test_release_lets_go_of_parts(device):
    """Nothing of a capture is left in any of them, and copies have none."""
    model, _ = as_eager(device, Noisy)
    twin = copy.deepcopy(model)
    assert all(captor_of(part) is None for part in twin.modules())

    gapless.release(model)

    plain = Noisy()
    for part, its in zip(plain.modules(), model.modules(), strict=True):
        assert vars(part).keys() == vars(its).keys()


def test_parts_run_as_written_in_autocast(device):
    """A weight of a part may be used in the same block by code of the module, first in a later call."""

    class Late(Noisy):
        num = 0

        def forward(self, x):
            self.num += 1
            with torch.autocast(x.device.type, dtype=torch.bfloat16):
                early = self.blocks[0].first(x) if self.num > NUM // 2 else x.new_zeros(())
                return super().forward(x) + early.float().square().mean()

    model, said = as_eager(device, Late)

    report = gapless.capture_report(model)
    assert report.in_its_place == ["net", "blocks.0", "blocks.1"]
    assert report.num_replays == 0
    assert any("within a block of autocast" in text for text in said)


def test_parts_share_the_limits_of_the_module(device):
    """`max_graphs` is of all graphs together."""
    model, _ = as_eager(device, Noisy, max_graphs=2)

    assert gapless.capture_report(model).num_graphs == 2


def test_of_a_part_that_is_not_called_itself_its_layers_are_captured(device):
    """A Sequential may be iterated over."""

    class Iterates(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(Block(), Block())

        def forward(self, x):
            x = x + torch.rand(x.shape[0], 1).to(x.device)
            for layer in self.layers:
                x = layer(x)
            return x.square().mean()

    model, _ = as_eager(device, Iterates)

    report = gapless.capture_report(model)
    assert report.in_its_place == ["layers"]
    assert report.num_replays > 0


def test_parts_are_told_where_the_reason_was_told_before(device):
    """A loop that evaluates from the beginning has a second kind of calls, which is refused later."""
    torch.manual_seed(0)
    model = Noisy().to(device.torch_device)
    gapless.capture(model, device=device)

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(NUM):
            x = torch.randn(3, 4).to(device.torch_device)
            model(x).backward()
            with torch.no_grad():
                model(x)

    assert gapless.capture_report(model).in_its_place
    assert sum("in its place are captured" in str(one.message) for one in said) == 1


def test_whoever_asks_for_an_error_gets_it(device):
    """Nothing is captured then."""
    with pytest.raises(CaptureRefused, match="random numbers on the host"):
        trained(device, Noisy, capture=True, on_refusal="raise")


def test_parts_are_in_graphs_within_captured_methods_alone(device):
    """A module with a captured method keeps it; `forward` runs as written."""

    class WithMethod(Noisy):
        def encoded(self, x):
            return self.net(x)

        def forward(self, x):
            return super().forward(self.encoded(x))

    model, _ = as_eager(device, WithMethod)

    assert gapless.capture_report(model).in_its_place == ["net", "blocks.0", "blocks.1"]
