"""Captured steps in which a feature of Python and one of torch meet, as few loops have them."""

from __future__ import annotations

import copy
import functools

import torch
from torch.func import functional_call, stack_module_state, vmap
from torch.nn import functional as F

import gapless
from hazards.captured_harness import CAPTURED, EITHER, captured_case, snapshot
from hazards.captured_models import (
    Headed,
    Trainer,
    batches,
    kept,
    losses_of,
    mlp,
    sgd,
    state,
    updated,
)


NUM = 24


class Weighted(Trainer):
    """A trainer whose loss has a weight, which each case finds in its own way."""

    find = None

    def train(self, batch):
        return updated(self.optimizer, self.loss(batch) * self.find())


def weighted(place, find, change, *, num=NUM, of=Weighted):
    """Train with a loss that `find(trainer)` weighs, which `change(trainer, number)` changes."""
    trainer = of(place)
    trainer.find = functools.partial(find, trainer)
    step = place.capture(trainer.train)
    losses = losses_of(place, step, num, before=lambda number: change(trainer, number))
    return losses, trainer.state()


# ------------------------------------------------------------------- what is found, and how


@captured_case("A variable of an enclosing function is unbound for some calls.", expect=EITHER)
def variable_is_unbound(place):
    weight = 0.5

    def find(trainer):
        del trainer
        try:
            return weight
        except NameError:
            return 2.0

    def change(trainer, number):
        nonlocal weight
        del trainer
        if number == 9:
            del weight
        if number == 15:
            weight = 0.25

    return weighted(place, find, change)


# --------------------------------------------------------------------- what the step leaves


@captured_case(
    "The step keeps an activation, of which the loop reads the gradient.", expect=EITHER
)
def gradient_of_an_activation(place):
    model = Headed().to(place.torch_device)
    optimizer, seen, found = sgd(model), {}, []

    def train(pair):
        x, y = pair
        hidden = F.relu(model.body(x))
        hidden.retain_grad()
        seen["hidden"] = hidden
        return updated(optimizer, F.cross_entropy(model.head(hidden), y))

    step = place.capture(train)
    for pair in batches(place, NUM):
        found.append(kept(step(pair)))
        found.append(snapshot(place, [seen["hidden"].detach(), seen["hidden"].grad]))
    return found, state(model, optimizer)


# ------------------------------------------------------------------ how the step is called


@captured_case(
    "Model and optimizer are captured where they stand, by the step itself.", expect=EITHER
)
def captured_in_place_within(place):
    trainer = Trainer(place)
    trainer.is_new = True

    def train(pair):
        if trainer.is_new:
            trainer.is_new = False
            if not place.is_plain:
                gapless.capture(trainer.model, trainer.optimizer, device=place.device)
        return updated(trainer.optimizer, trainer.loss(pair))

    return losses_of(place, place.capture(train), NUM), trainer.state()


@captured_case("Graphs are thrown away by `clear()` now and then.", expect=CAPTURED)
def cleared_now_and_then(place):
    trainer = Trainer(place, dropout=0.3)
    step = place.capture(trainer.train)

    def change(number):
        if number in (2, 3, 9) and not place.is_plain:
            step.captured.clear()

    return losses_of(place, step, NUM, before=change), trainer.state()


# -------------------------------------------------------------------------------- autograd


@captured_case("An ensemble of models is one stack of weights, mapped by vmap.", expect=EITHER)
def ensemble_by_vmap(place):
    models = [mlp(place) for _ in range(3)]
    for number, model in enumerate(models):
        with torch.no_grad():
            model[0].weight.mul_(1 + 0.1 * number)
    weights, buffers = stack_module_state(models)
    base = copy.deepcopy(models[0]).to("meta")
    optimizer = torch.optim.SGD(weights.values(), lr=0.1)

    def one(weights, buffers, x):
        return functional_call(base, (weights, buffers), (x,))

    def train(pair):
        x, y = pair
        scores = vmap(one, (0, 0, None))(weights, buffers, x)
        loss = sum(F.cross_entropy(each, y) for each in scores)
        return updated(optimizer, loss)

    return losses_of(place, place.capture(train), NUM), list(weights.values())
