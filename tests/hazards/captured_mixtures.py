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
    batch,
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


@captured_case("A captured step is captured once more.", expect=EITHER)
def captured_twice(place):
    trainer = Trainer(place)
    step = place.capture(place.capture(trainer.train))
    return losses_of(place, step, NUM), trainer.state()


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


# ----------------------------------------------------------------------------- arguments


class Labelled(torch.Tensor):
    """Features that carry a weight."""


@captured_case("Features are a subclass of Tensor with a weight of its own.", expect=EITHER)
def features_with_a_weight(place):
    trainer, found = Trainer(place), []

    def train(x, y):
        weight = x.weight
        return updated(trainer.optimizer, trainer.loss((x.as_subclass(torch.Tensor), y)) * weight)

    step = place.capture(train)
    for number, (x, y) in enumerate(batches(place, NUM)):
        x = x.as_subclass(Labelled)
        x.weight = 0.5 if number < 12 else 0.25
        found.append(kept(step(x, y)))
    return found, trainer.state()


def with_a_bank(place, rows_of):
    """Train on rows of a bank of features, which the step changes before it reads them."""
    model = mlp(place)
    optimizer, found = sgd(model), []
    bank, classes = batch(place, 1, rows=12)

    def train(rows, y):
        bank.mul_(0.9).add_(0.01)
        return updated(optimizer, F.cross_entropy(model(rows), y))

    step = place.capture(train)
    for number in range(NUM):
        start = number % 3
        rows = rows_of(number, bank[start : start + 6])
        found.append(kept(step(rows, classes[start : start + 6])))
    return found, state(model, optimizer), bank


@captured_case(
    "The batch is a copy of rows of a bank that the step writes, and at times a view.",
    expect=CAPTURED,
)
def view_of_a_bank_at_times(place):
    return with_a_bank(place, lambda number, rows: rows if number % 5 == 4 else rows.clone())


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


@captured_case(
    "Losses are no numbers in the very calls that are watched and captured.", expect=CAPTURED
)
def no_numbers_at_first(place):
    trainer = Trainer(place)

    def train(pair):
        loss = trainer.loss(pair)
        trainer.optimizer.zero_grad()
        loss.backward()
        for weight in trainer.model.parameters():
            weight.grad.nan_to_num_(0.0)
        trainer.optimizer.step()
        return loss

    step, found = place.capture(train), []
    for number, (x, y) in enumerate(batches(place, NUM)):
        found.append(kept(step((x * float("nan") if number < 6 else x, y))))
    return found, trainer.state()
