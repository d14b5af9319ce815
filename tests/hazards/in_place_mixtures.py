"""Objects captured in place, in loops where features of torch and of Python meet as few have them."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from hazards.captured_models import batches, kept, mlp, sgd, state
from hazards.in_place_harness import captured, either, in_place_case
from hazards.in_place_models import NUM, Normed, fit, made, update


# ----------------------------------------------------------------------- weights and updates


@in_place_case(
    "A weight changes places with another by `swap_tensors`, and back.", expect=captured()
)
def weights_are_swapped(place):
    model = mlp(place)
    optimizer = sgd(model)
    other = nn.Parameter(torch.full_like(model[0].weight, 0.05))
    place.capture(model)
    place.capture(optimizer)
    losses = fit(place, model, optimizer, 8)
    for start in (8, 18):
        optimizer.zero_grad()
        torch.utils.swap_tensors(model[0].weight, other)
        losses += fit(place, model, optimizer, 10, start=start)
    return losses, state(model, optimizer), other


@in_place_case(
    "Switches of the captured optimizer are flipped in its group.", expect=captured("optimizer")
)
def switches_of_the_optimizer(place):
    model = mlp(place)
    optimizer = sgd(model, momentum=0.9)
    place.capture(optimizer)
    losses = []
    for start, switch in enumerate(["foreach", "nesterov", "maximize", "maximize"]):
        losses += fit(place, model, optimizer, 8, start=8 * start)
        optimizer.param_groups[0][switch] = not optimizer.param_groups[0][switch]
    return losses, state(model, optimizer)


class Remembering(nn.Module):
    """Writes into a table that its input may be a view of."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 4)
        self.register_buffer("table", torch.ones(12, 8))

    def forward(self, x):
        with torch.no_grad():
            self.table.mul_(0.9)
        return self.layer(x)


@in_place_case("The input is a view of a buffer that forward writes, at times.", expect=either())
def input_is_a_view_of_a_buffer(place):
    model = made(place, Remembering)
    place.capture(model)
    optimizer, found = sgd(model), []
    for number in range(NUM):
        rows = model.table[number % 3 : number % 3 + 6]
        rows = rows if number % 4 == 3 else rows.clone()
        with torch.no_grad():
            found.append(kept(model(rows)))
        found.append(update(optimizer, model(rows).square().mean()))
    return found, state(model, optimizer)


# ------------------------------------------------------------------------ turns of the loop


def training(place, model, optimizer, seed):
    """Yield between the passes of each step, as a scheduler of several trainings wants it."""
    for x, y in batches(place, NUM):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), (y + seed) % 4)
        try:
            yield
        except ValueError:
            continue
        loss.backward()
        yield kept(loss)
        optimizer.step()


@in_place_case("Two trainings are generators, whose passes are interleaved.", expect=captured())
def interleaved_trainings(place):
    models = [made(place, Normed) for _ in range(2)]
    optimizers = [sgd(model) for model in models]
    for number, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
        place.capture(model, name=f"model {number}")
        place.capture(optimizer, name=f"optimizer {number}")
    both = [
        training(place, model, optimizer, seed)
        for seed, (model, optimizer) in enumerate(zip(models, optimizers, strict=True))
    ]
    found = [value for pair in zip(*both, strict=True) for value in pair if value is not None]
    return found, state(models[0], optimizers[0]), state(models[1], optimizers[1])
