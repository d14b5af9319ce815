"""Captured steps in which a feature of Python and one of torch meet, as few loops have them."""

from __future__ import annotations

import copy

import torch
from torch.func import functional_call, stack_module_state, vmap
from torch.nn import functional as F

import gapless
from hazards.captured_harness import CAPTURED, EITHER, captured_case
from hazards.captured_models import (
    Trainer,
    losses_of,
    mlp,
    updated,
)


NUM = 24


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
