"""Captured objects that change, or ask for, what is no value: attributes and versions of tensors, hooks."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from hazards.captured_models import batches, mlp, sgd, state
from hazards.in_place_harness import CAPTURED, captured, either, in_place_case, refused
from hazards.in_place_models import NUM, fit, floats, made, update


class MomentumAtWeights(torch.optim.Optimizer):
    """A user's optimizer that keeps its momentum as an attribute of each weight."""

    def __init__(self, parameters, lr=0.05):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for weight in group["params"]:
                before = getattr(weight, "momentum", None)
                weight.momentum = (
                    weight.grad.clone() if before is None else 0.9 * before + weight.grad
                )
                weight.add_(weight.momentum, alpha=-group["lr"])


@in_place_case("An optimizer keeps its momentum as an attribute of each weight.", expect=either())
def momentum_at_the_weights(place):
    model = mlp(place)
    optimizer = place.capture(MomentumAtWeights(model.parameters()))
    losses = fit(place, model, optimizer)
    return losses, [weight.momentum for weight in model.parameters()], state(model)


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


class LeavesStatistics(nn.Module):
    """Leaves what it saw by names that it makes."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 4)

    def forward(self, x):
        scores = self.inner(x)
        for name, value in {
            "mean": scores.detach().mean(),
            "most": scores.detach().amax(),
        }.items():
            setattr(self, f"scores_{name}", value)
        return scores


@in_place_case("A model leaves statistics by names that it makes.", expect=refused("scores_m"))
def statistics_by_names(place):
    model = place.capture(made(place, LeavesStatistics))
    optimizer, found = sgd(model), []
    for x, y in batches(place, NUM):
        found += [update(optimizer, F.cross_entropy(model(x), y)), model.scores_most.item()]
    return found, state(model, optimizer)


class Teacher(nn.Module):
    """Normalises its rows anew when their version is another."""

    def __init__(self):
        super().__init__()
        self.rows = nn.Parameter(torch.randn(4, 8), requires_grad=False)
        self.version = self.unit = None

    def forward(self, x):
        if self.version != self.rows._version:
            self.unit, self.version = F.normalize(self.rows, dim=1), self.rows._version
        return x @ self.unit.t()


@in_place_case(
    "A frozen teacher keeps its normalised rows by their version.", expect=refused("version")
)
def teacher_by_version(place):
    teacher, model = place.capture(made(place, Teacher)), mlp(place)
    optimizer, losses = sgd(model), []
    for number, (x, _) in enumerate(batches(place, NUM)):
        with torch.no_grad():
            target = teacher(x)
        losses.append(update(optimizer, F.mse_loss(model(x), target)))
        if number % 4 == 3:
            teacher.rows.lerp_(model[0].weight.detach()[:4], 0.5)
    return losses, state(model, optimizer)


@in_place_case(
    "The loop keeps a weight's norm until the weight's version is another.", expect=CAPTURED
)
def norm_by_version(place):
    model = mlp(place)
    optimizer, version, found = place.capture(sgd(model)), None, []
    for x, y in batches(place, NUM):
        update(optimizer, F.cross_entropy(model(x), y))
        weight = model[0].weight
        if weight._version != version:
            norm, version = weight.detach().norm().item(), weight._version
        found.append(norm)
    return found, state(model, optimizer)


@in_place_case(
    "An update between both passes, which autograd refuses; the loop goes on.", expect=either()
)
def update_between_the_passes(place):
    model = place.capture(mlp(place))
    optimizer, found = place.capture(sgd(model)), []
    for number, (x, y) in enumerate(batches(place, NUM)):
        found.append(update(optimizer, F.cross_entropy(model(x), y)))
        if number % 5 == 4:
            loss = F.cross_entropy(model(x), y)
            optimizer.step()
            try:
                loss.backward()
            except RuntimeError:
                found.append("refused")
    return found, state(model, optimizer)


@in_place_case("Running statistics have their version counted.", expect=captured("model"))
def versions_of_buffers(place):
    model = place.capture(
        made(place, nn.Sequential, nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 4))
    )
    optimizer, found, version = sgd(model), [], None
    for x, y in batches(place, NUM):
        found.append(update(optimizer, F.cross_entropy(model(x), y)))
        count = model[1].num_batches_tracked
        found.append(count._version != version)
        version = count._version
    return found, state(model, optimizer)


class OneOrTwo(nn.Module):
    """Asks whether it is given one tensor or two."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 4)

    def forward(self, a, b):
        return self.inner(a) if a is b else self.inner(a) + self.inner(b)


@in_place_case("A model asks whether both arguments are one.", expect=CAPTURED)
def one_argument_or_two(place):
    model = place.capture(made(place, OneOrTwo))
    optimizer, losses = sgd(model), []
    for number, (x, y) in enumerate(batches(place, 30)):
        scores = model(x, x if number % 3 else x.flip(0))
        losses.append(update(optimizer, F.cross_entropy(scores, y)))
    return losses, state(model, optimizer)


@in_place_case("Self-attention whose query is its key.", expect=CAPTURED)
def query_is_key(place):
    model = place.capture(made(place, nn.MultiheadAttention, 8, 2, batch_first=True))
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.5), []
    for number in range(NUM):
        x = floats(place, number, 3, 5, 8)
        out, _ = model(x, x, x, need_weights=False)
        losses.append(update(optimizer, out.square().mean()))
    return losses, state(model, optimizer)


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
