"""A loop edits the parts, the settings or the hooks of its model between two calls."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

import gapless
from gapless.testing import SimulatedDevice


NUM, LATE = 16, 8


class Layers(nn.Module):
    """Calls its layers in the order in which they stand, and counts its weights in theirs."""

    def __init__(self, *layers, **named):
        super().__init__()
        self.layers = nn.ModuleDict(named) if named else nn.ModuleList(layers)
        self.late = nn.ModuleList()
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        layers = self.layers.values() if isinstance(self.layers, nn.ModuleDict) else self.layers
        for layer in (*layers, *self.late):
            x = torch.tanh(layer(x))
        return self.head(x)


class Weighed(Layers):
    def forward(self, x):
        penalty = sum(n * w.square().sum() for n, w in enumerate(self.head.parameters()))
        return super().forward(x) + 0.01 * penalty


def linear():
    return nn.Linear(8, 8)


def appends_a_layer(model):
    torch.manual_seed(1)
    model.late.append(linear().to(model.head.weight.device))


def puts_a_layer_at_the_end(model):
    model.layers["a"] = model.layers.pop("a")


def takes_the_first_two_in_another_order(model):
    first = model.layers._modules.pop("0")
    model.layers._modules["0"] = first


def sets_a_weight_anew(model):
    weight = model.head.weight
    del model.head.weight
    model.head.weight = weight


def evaluates_a_part(model):
    model.layers[0].eval()


def iterates_more_often(model):
    model.layers[0].parametrizations.weight[0].n_power_iterations = 3


EDITS = [
    (lambda: Layers(linear()), appends_a_layer),
    (Layers, appends_a_layer),
    (lambda: Layers(a=linear(), b=nn.Sequential(linear(), nn.ReLU())), puts_a_layer_at_the_end),
    (
        lambda: Layers(linear(), nn.Sequential(linear(), nn.ReLU())),
        takes_the_first_two_in_another_order,
    ),
    (lambda: Weighed(linear()), sets_a_weight_anew),
    (lambda: Layers(spectral_norm(linear())), evaluates_a_part),
    (lambda: Layers(spectral_norm(linear())), iterates_more_often),
]


def losses_of(make, edit, *, captures, kind=SimulatedDevice):
    with kind() as device, device.allow_waits():
        torch.manual_seed(0)
        model = make().to(device.torch_device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(x, y):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            return loss

        if captures == "model":
            gapless.capture(model, device=device)
        run = gapless.capture(step, device=device) if captures == "step" else step
        losses = []
        for n in range(NUM):
            if n == LATE:
                edit(model)
            chance = torch.Generator().manual_seed(n)
            x, y = (torch.randn(6, size, generator=chance) for size in (8, 4))
            losses.append(run(x.to(device.torch_device), y.to(device.torch_device)).item())
        if captures:
            report = run.report if captures == "step" else gapless.capture_report(model)
            assert report.num_replays
        return losses


@pytest.mark.parametrize("captures", ["step", "model"])
@pytest.mark.parametrize(("make", "edit"), EDITS, ids=lambda one: getattr(one, "__name__", ""))
def test_a_replay_sees_the_edit(make, edit, captures):
    """Losses are those of the loop as written, and there are replays."""
    assert losses_of(make, edit, captures=captures) == losses_of(make, edit, captures=None)


def test_a_hook_that_lies_where_another_lay():
    """What was registered counts, not where it lies: Python gives an address again."""
    came_again = []

    def clip(most):
        return partial(torch.clamp, min=-most, max=most)

    def make():
        model = Layers()
        model.clips = model.head.weight.register_hook(clip(0.1))
        return model

    def edit(model):
        (address,) = map(id, model.head.weight._backward_hooks.values())
        model.clips.remove()
        # One of many lies where the former lay.
        hooks = {id(hook): hook for hook in [clip(0.001) for _ in range(10_000)]}
        came_again.append(address in hooks)
        model.clips = model.head.weight.register_hook(hooks.get(address, clip(0.001)))

    assert losses_of(make, edit, captures="step") == losses_of(make, edit, captures=None)
    if not came_again[0]:
        pytest.skip("no address came again")
