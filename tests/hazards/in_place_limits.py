"""More kinds of calls than graphs may be, or than there is memory for."""

from __future__ import annotations

import random

import torch
from torch import nn
from torch.nn import functional as F

import gapless
from hazards.captured_models import sgd, state
from hazards.harness import GPU, SIMULATED
from hazards.in_place_harness import in_place_case, refused
from hazards.in_place_models import Normed, floats, made, tokens, update


# Nothing is captured on a CPU, so nothing can be counted.
DEVICES = (SIMULATED, GPU)


def _small(place):
    return made(place, nn.Sequential, nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))


def _lengths(num, *, most=300):
    return [random.Random(8).choice(range(1, most + 1)) for _ in range(num)]


def _at_most(place, captured, num):
    assert place.is_plain or place.report(captured).num_graphs <= num


@in_place_case(
    "300 lengths, each of which comes again, and at most four graphs.",
    expect=refused(
        "there are 4 graphs already; pad batches", "with padding these would have been"
    ),
)
def three_hundred_lengths(place):
    model = place.capture(_small(place), max_graphs=4)
    optimizer, losses = sgd(model), []
    for number in range(300):
        for _ in range(4 if number < 6 else 1):
            losses.append(
                update(optimizer, model(floats(place, number, number + 1, 8)).square().mean())
            )
    _at_most(place, model, 4)
    return losses, state(model, optimizer)


@in_place_case(
    "Sentences of up to 300 tokens through a recurrent model, at most three graphs, in epochs.",
    expect=refused("there are 3 graphs already"),
)
def sentences_in_epochs(place):
    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.mix = nn.Embedding(11, 8), nn.Linear(8, 8)
            self.head = nn.Linear(8, 11)

        def forward(self, ids):
            return self.head(torch.tanh(self.mix(self.embed(ids)).cumsum(dim=0)))

    model = place.capture(made(place, Reader), max_graphs=3)
    optimizer, losses = sgd(model), []
    lengths = [5, 9, 12, *range(100, 300, 20), 300]
    for epoch in range(5):
        random.Random(epoch).shuffle(lengths)
        for length in lengths:
            ids = tokens(place, length, length + 1)
            losses.append(update(optimizer, F.cross_entropy(model(ids[:-1]), ids[1:])))
    _at_most(place, model, 3)
    return losses, state(model, optimizer)


@in_place_case(
    "Training, evaluation and inputs that need gradients have three graphs together, of three shapes each.",
    expect=refused("there are 3 graphs already"),
)
def three_graphs_for_all_ways_of_calling(place):
    model = place.capture(made(place, Normed), max_graphs=3)
    optimizer, losses = sgd(model), []
    for number in range(18):
        for rows in (4, 6, 8):
            x = floats(place, number, rows, 8)
            losses.append(update(optimizer, model(x).square().mean()))
            with torch.no_grad():
                losses.append(model(x).sum().item())
            x.requires_grad_()
            losses.append(update(optimizer, model(x).square().mean()))
            losses.append(x.grad.sum().item())
    _at_most(place, model, 3)
    return losses, state(model, optimizer)


@in_place_case(
    "A budget that hardly leaves room for one graph.",
    expect=refused("which is over its budget", "pad batches to fewer shapes"),
    devices=(SIMULATED,),
)
def hardly_any_budget(place):
    model = _small(place)
    optimizer, losses = sgd(model, momentum=0.9), []

    def step(number, rows):
        losses.append(update(optimizer, model(floats(place, number, rows, 8)).square().mean()))

    step(0, 40)
    device = gapless.find_device(place.device)
    limit = device.reserved_memory_bytes() + 30_000
    place.capture(model, memory_fraction=limit / device.total_memory_bytes())
    most = 0
    for number, rows in enumerate(range(1, 41)):
        for _ in range(5):
            step(number, rows)
        most = max(most, device.reserved_memory_bytes())
    # The first that turns out to need more is the last.
    assert place.is_plain or most <= limit + 30_000, (most, limit)
    return losses, state(model, optimizer)


@in_place_case(
    "An optimizer of a model that grows has a limit of one graph.",
    expect=refused("there are 1 graphs already"),
    devices=DEVICES,
)
def an_optimizer_with_one_graph(place):
    parts = [made(place, nn.Linear, 8, 8) for _ in range(3)]
    optimizer = place.capture(
        torch.optim.SGD([one for part in parts for one in part.parameters()], lr=0.1),
        max_graphs=1,
    )
    losses = []
    for number in range(60):
        # Which weights have gradients is another thing from time to time.
        x = floats(place, number, 4, 8)
        for part in parts[: 1 + number // 5 % 3]:
            x = part(x)
        loss = x.square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    _at_most(place, optimizer, 1)
    return losses, [part.state_dict() for part in parts]


@in_place_case(
    "A model is released and captured again in each epoch.", expect=refused("2 graphs already")
)
def captured_anew_in_each_epoch(place):
    model = _small(place)
    optimizer, losses = sgd(model), []
    for _ in range(3):
        place.capture(model, max_graphs=2)
        for length in (3, 4, 5) * 5:
            losses.append(update(optimizer, model(floats(place, length, length, 8)).sum()))
        place.release(model)
    return losses, state(model, optimizer)
