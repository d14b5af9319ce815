"""Models and loops of which a part must run in Python each time: it does, and the report names it."""

from __future__ import annotations

import random
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from hazards.captured_models import Headed, batch, batches, kept, mlp, sgd, state
from hazards.in_place_harness import captured, either, in_place_case, refused
from hazards.in_place_models import NUM, fit, made, update


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


class Printing(Headed):
    def forward(self, x):
        print("forward of", tuple(x.shape))
        return super().forward(x)


@in_place_case(
    "forward prints.", expect=refused("print", at='print("forward of", tuple(x.shape))')
)
def forward_prints(place):
    return _trained(place, made(place, Printing))


class Recording(Headed):
    def __init__(self):
        super().__init__()
        self.history = []

    def forward(self, x):
        hidden = F.relu(self.body(x))
        self.history.append(hidden.detach().mean())
        return self.head(hidden)


@in_place_case(
    "forward appends activations to a list of the model.",
    expect=refused("history", at="self.history.append(hidden.detach().mean())"),
)
def forward_records(place):
    model = made(place, Recording)
    return _trained(place, model), model.history


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


class Mixing(Headed):
    def forward(self, x):
        share = float(np.random.beta(0.4, 0.4))  # noqa: NPY002  # mixup
        return super().forward(share * x + (1 - share) * x.flip(0))


@in_place_case(
    "Mixup inside forward, by numpy's random numbers.",
    expect=refused("random", at="share = float(np.random.beta(0.4, 0.4))"),
)
def forward_mixes(place):
    return _trained(place, made(place, Mixing))


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


class Selecting(Headed):
    def forward(self, x):
        rows = x[x.mean(1) > 0]  # as many as there are
        return self.head(F.relu(self.body(rows))).mean(0, keepdim=True).expand(len(x), 4)


@in_place_case(
    "forward takes the rows of a mask: sizes depend on values.",
    expect=refused(at="rows = x[x.mean(1) > 0]  # as many as there are"),
)
def forward_selects_rows(place):
    return _trained(place, made(place, Selecting))


class Stamped(Headed):
    def __init__(self):
        super().__init__()
        self.seconds = 0.0

    def forward(self, x):
        start = time.perf_counter()
        out = super().forward(x)
        self.seconds += time.perf_counter() - start
        return out


@in_place_case("forward measures its own time.", expect=refused("seconds|perf_counter"))
def forward_takes_its_time(place):
    return _trained(place, made(place, Stamped))


class CountingLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.total = 0.0

    def forward(self, scores, y):
        loss = F.cross_entropy(scores, y)
        self.total += loss.item()
        return loss


@in_place_case(
    "The loss module sums what it reads; the model itself is captured.",
    expect=captured("model", "optimizer"),
)
def loss_reads_itself(place):
    model, criterion = place.capture(mlp(place)), place.capture(CountingLoss())
    optimizer = place.capture(sgd(model))
    losses = fit(place, model, optimizer, loss_of=criterion)
    return losses, criterion.total, state(model, optimizer)


@in_place_case(
    "The same, and the report of the loss names the line.",
    expect=refused(at="self.total += loss.item()"),
)
def loss_reads_itself_and_says_so(place):
    model, criterion = mlp(place), place.capture(CountingLoss())
    optimizer = sgd(model)
    losses = fit(place, model, optimizer, loss_of=criterion)
    return losses, criterion.total, state(model, optimizer)


class Annealed(Headed):
    temperature = 1.0

    def forward(self, x):
        return super().forward(x) / self.temperature


@in_place_case(
    "A temperature, which forward reads, is lowered in each step.", expect=either("temperature")
)
def number_changes_in_each_step(place):
    model = place.capture(made(place, Annealed))
    optimizer, losses = sgd(model), []
    for number in range(24):
        model.temperature = 1.0 - number / 50
        losses += fit(place, model, optimizer, 1, start=number)
    return losses, state(model, optimizer)


@in_place_case("A temperature, which forward reads, is lowered once, and put back later.")
def number_changes_once(place):
    model = place.capture(made(place, Annealed))
    optimizer = sgd(model)
    losses = fit(place, model, optimizer, 12)
    model.temperature = 0.5
    losses += fit(place, model, optimizer, 12)
    model.temperature = 1.0
    losses += fit(place, model, optimizer, 12)
    return losses, state(model, optimizer)


@in_place_case("A weight of the loss comes from a dict that the loop changes in each epoch.")
def config_changes_each_epoch(place):
    config = {"smoothing": 0.0, "scale": 1.0}

    class SmoothLoss(nn.Module):
        def forward(self, scores, y):
            loss = F.cross_entropy(scores, y, label_smoothing=config["smoothing"])
            return config["scale"] * loss

    model, criterion = place.capture(mlp(place)), place.capture(SmoothLoss())
    optimizer, losses = sgd(model), []
    for epoch in range(3):
        config.update(smoothing=0.1 * epoch, scale=1.0 + epoch)
        losses += fit(place, model, optimizer, 14, start=14 * epoch, loss_of=criterion)
    return losses, state(model, optimizer)


class Queue(Headed):
    """Keeps a queue of features in a buffer, with its end as a number on the host: MoCo."""

    def __init__(self):
        super().__init__()
        self.register_buffer("queue", torch.zeros(24, 16))
        self.end = 0

    def forward(self, x):
        hidden = F.relu(self.body(x))
        with torch.no_grad():
            self.queue[self.end : self.end + len(x)] = hidden
        self.end = (self.end + len(x)) % 24  # moves on
        return self.head(hidden) + self.queue.mean()


@in_place_case(
    "A queue of features moves on by a number on the host: MoCo.",
    expect=refused("end", at="self.end = (self.end + len(x)) % 24  # moves on"),
)
def queue_with_an_end(place):
    model = made(place, Queue)
    return _trained(place, model), model.end


class Remembering(Headed):
    """Leaves its hidden activations and an auxiliary loss as attributes, as MoE layers do."""

    def forward(self, x):
        self.hidden = F.relu(self.body(x))
        self.aux_loss = self.hidden.square().mean()
        return self.head(self.hidden)


@in_place_case(
    "forward leaves an auxiliary loss as an attribute, which the loop adds to the loss.",
    expect=either("aux_loss|hidden"),
)
def auxiliary_loss_is_left(place):
    model = place.capture(made(place, Remembering))
    optimizer, found = sgd(model), []
    for x, y in batches(place, NUM):
        loss = F.cross_entropy(model(x), y) + 0.1 * model.aux_loss
        found.append((update(optimizer, loss), kept(model.hidden)))
    return found, state(model, optimizer)


class Stateful(nn.Module):
    """Keeps its hidden state from call to call, detached."""

    def __init__(self):
        super().__init__()
        self.cell, self.head, self.hidden = nn.GRUCell(8, 8), nn.Linear(8, 4), None

    def forward(self, x):
        before = x.new_zeros(len(x), 8) if self.hidden is None else self.hidden
        hidden = self.cell(x, before)
        self.hidden = hidden.detach()
        return self.head(hidden)


@in_place_case(
    "The model keeps its hidden state from call to call; each epoch clears it.",
    expect=either("hidden"),
)
def hidden_state_within(place):
    model = place.capture(made(place, Stateful))
    optimizer, losses = sgd(model), []
    for epoch in range(3):
        model.hidden = None
        losses += fit(place, model, optimizer, 10, start=10 * epoch)
    return losses, model.hidden, state(model, optimizer)


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


@in_place_case(
    "forward raises on a bad batch, by a value that it reads.",
    expect=refused(at="if not torch.isfinite(x).all():"),
)
def forward_checks_its_batch(place):
    class Checked(Headed):
        def forward(self, x):
            if not torch.isfinite(x).all():
                raise ValueError("the batch is not finite")
            return super().forward(x)

    model = place.capture(made(place, Checked))
    optimizer, losses, caught = sgd(model), [], []
    for number in range(24):
        x, y = batch(place, number)
        try:
            losses.append(
                update(optimizer, F.cross_entropy(model(x / (0 if number == 15 else 1)), y))
            )
        except ValueError as error:
            caught.append(error)
    return losses, caught, state(model, optimizer)
