"""Models and loops of which a part must run in Python each time: it does, and the report names it."""

from __future__ import annotations

import random

import torch
from torch import nn
from torch.nn import functional as F

from hazards.captured_models import Headed, sgd, state
from hazards.in_place_harness import either, in_place_case, refused
from hazards.in_place_models import NUM, fit, made


def _trained(place, model, *, num=NUM, optimizer=None):
    place.capture(model)
    optimizer = sgd(model) if optimizer is None else optimizer
    return fit(place, model, optimizer, num), state(model, optimizer)


class Counting(Headed):
    num_calls = 0

    def forward(self, x):
        self.num_calls += 1  # read by the loop
        return super().forward(x)


@in_place_case(
    "forward counts its calls, and the loop logs by the count.",
    expect=refused("num_calls", at="self.num_calls += 1  # read by the loop"),
)
def forward_counts(place):
    model = place.capture(made(place, Counting))
    optimizer, found = sgd(model), []
    for number in range(NUM):
        found.append((fit(place, model, optimizer, 1, start=number), model.num_calls))
    return found, state(model, optimizer)


class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        for layer in self.layers:
            if self.training and random.random() < 0.3:  # LayerDrop
                continue
            x = torch.tanh(layer(x))
        return self.head(x)


@in_place_case(
    "Layers are dropped by Python's random numbers: LayerDrop.",
    expect=refused("random", at="if self.training and random.random() < 0.3:  # LayerDrop"),
)
def layers_are_dropped(place):
    return _trained(place, made(place, Deep))


class Branching(Headed):
    def forward(self, x):
        hidden = F.relu(self.body(x))
        if hidden.mean().item() > 0.35:
            hidden = hidden * 0.5
        return self.head(hidden)


@in_place_case(
    "forward branches on a value that it reads.",
    expect=refused(at="if hidden.mean().item() > 0.35:"),
)
def forward_branches(place):
    return _trained(place, made(place, Branching))


@in_place_case(
    "A custom autograd function counts its backward passes in Python.",
    expect=either("backward|num_backwards"),
)
def backward_counts(place):
    counted = []

    class Reversed(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.view_as(x)

        @staticmethod
        def backward(ctx, grad):
            counted.append(tuple(grad.shape))
            return -0.1 * grad

    class Adversarial(Headed):
        def forward(self, x):
            return self.head(Reversed.apply(F.relu(self.body(x))))

    return _trained(place, made(place, Adversarial)), counted
