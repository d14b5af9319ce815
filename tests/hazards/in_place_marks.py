"""Captured objects that change, or ask for, what is no value: attributes and versions of tensors, hooks."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from hazards.captured_models import sgd, state
from hazards.in_place_harness import either, in_place_case, refused
from hazards.in_place_models import NUM, fit, floats, made, update


class MeanAtWeight(nn.Module):
    """Keeps a running mean, and a count, as attributes of its weight."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x):
        weight = self.first.weight
        weight.count = getattr(weight, "count", 0) + 1
        weight.mean_in = x.mean(0) * 0.1 + getattr(weight, "mean_in", 0.0) * 0.9
        return self.last(F.relu(self.first(x - weight.mean_in)))


@in_place_case("A model keeps a running mean at its weight.", expect=refused("count"))
def running_mean_at_the_weight(place):
    model = place.capture(made(place, MeanAtWeight))
    optimizer = sgd(model)
    return fit(place, model, optimizer), model.first.weight.count, state(model, optimizer)


@in_place_case(
    "Self-attention on what a layer before it gives: one tensor with gradients, given three times.",
    expect=either(),
)
def query_with_gradients(place):
    first = made(place, nn.Linear, 8, 8)
    model = place.capture(made(place, nn.MultiheadAttention, 8, 2, batch_first=True))
    both = nn.ModuleList([first, model])
    optimizer, losses = torch.optim.SGD(both.parameters(), lr=0.5), []
    for number in range(NUM):
        hidden = first(floats(place, number, 3, 5, 8))
        out, _ = model(hidden, hidden, hidden, need_weights=False)
        losses.append(update(optimizer, out.square().mean()))
    return losses, state(both, optimizer)
