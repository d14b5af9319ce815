"""Reads and writes of Python that a graph would bake in or skip: found by trying to break it."""

from __future__ import annotations

import argparse
import contextlib
import os
from unittest import mock

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from hazards import captured_elsewhere
from hazards.captured_found import Weights, weighted
from hazards.captured_harness import CAPTURED, EITHER, captured_case, refused
from hazards.captured_models import (
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


NUM, LATE = 30, 15


def trained(place, loss_of, change, *, model=None, optimizer=None, num=NUM):
    """Train by `loss_of(model, x, y)`; the loop calls `change()` once."""
    model = mlp(place) if model is None else model
    optimizer = sgd(model, momentum=0.9) if optimizer is None else optimizer

    def train(pair):
        return updated(optimizer, loss_of(model, *pair))

    def before(number):
        if number == LATE:
            change()

    step = place.capture(train)
    return losses_of(place, step, num, before=before), state(model, optimizer)


def working(place, work, num=12):
    """Train by a step that calls `work()` each time."""
    model = mlp(place)
    optimizer = sgd(model)

    def train(pair):
        work()
        return updated(optimizer, F.cross_entropy(model(pair[0]), pair[1]))

    return losses_of(place, place.capture(train), num), state(model)


# ------------------------------------------------------------------- where modules are looked up


@captured_case("An activation is named by a text, `getattr(F, name)`.", expect=CAPTURED)
def activation_by_name(place):
    args = argparse.Namespace(act="relu", out_act="log_softmax")
    body, head = nn.Linear(8, 16), nn.Linear(16, 4)
    model = nn.ModuleList([body, head]).to(place.torch_device)

    def loss_of(model, x, y):
        hidden = getattr(F, args.act)(model[0](x))
        return F.nll_loss(getattr(F, args.out_act)(model[1](hidden), dim=1), y)

    return trained(place, loss_of, lambda: setattr(args, "act", "gelu"), model=model)


# ------------------------------------------------------------ classes, methods and functions


@captured_case(
    "Some steps run under `mock.patch.object` of a number and a function.", expect=EITHER
)
def patched_for_some_steps(place):
    term, trainer, losses = Weights(), Trainer(place), []

    def train(pair):
        loss = term.weight * trainer.loss(pair)
        return updated(trainer.optimizer, captured_elsewhere.scaled(loss))

    step = place.capture(train)
    for number, pair in enumerate(batches(place, 40)):
        with contextlib.ExitStack() as stack:
            if number in range(20, 30):
                stack.enter_context(mock.patch.object(term, "weight", 0.2))
                stack.enter_context(
                    mock.patch.object(captured_elsewhere, "scaled", lambda loss: loss * 3.0)
                )
            losses.append(kept(step(pair)))
    return losses, trainer.state()


# -------------------------------------------------------------------------- kinds of containers


@captured_case("One record of a structured numpy array is kept, and edited.", expect=EITHER)
def numpy_record(place):
    table = np.array([(1.0, 2), (0.5, 1)], dtype=[("weight", "f8"), ("power", "i4")])
    settings = {"row": table[0]}

    def weight():
        return float(settings["row"]["weight"]) ** int(settings["row"]["power"])

    return weighted(place, weight, lambda: settings["row"].__setitem__("weight", 0.2))


# ----------------------------------------------------------------- settings of torch, and hooks


@captured_case("A hook for all modules is registered late.", expect=CAPTURED)
def hook_of_all_modules(place):
    handles = []

    def half(module, args, output):
        return output * 0.5 if isinstance(module, nn.Linear) else None

    def change():
        handles.append(nn.modules.module.register_module_forward_hook(half))

    try:
        return trained(place, lambda model, x, y: F.cross_entropy(model(x), y), change)
    finally:
        for handle in handles:
            handle.remove()


@captured_case(
    "A hook after the optimizer's step clamps weights, from some step on.", expect=CAPTURED
)
def hook_after_the_update(place):
    model = mlp(place)
    optimizer = sgd(model)

    def clamp(optimizer, args, kwargs):
        with torch.no_grad():
            for weight in model.parameters():
                weight.clamp_(-0.2, 0.2)

    return trained(
        place,
        lambda model, x, y: F.cross_entropy(model(x), y),
        lambda: optimizer.register_step_post_hook(clamp),
        model=model,
        optimizer=optimizer,
    )


# ------------------------------------------------------------------------ tensors, and gradients


@captured_case("Layers find out their sizes in the first call.", expect=CAPTURED)
def lazy_layers(place):
    torch.manual_seed(2)
    model = nn.Sequential(nn.LazyLinear(16), nn.ReLU(), nn.LazyLinear(4)).to(place.torch_device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return trained(
        place,
        lambda model, x, y: F.cross_entropy(model(x), y),
        lambda: None,
        model=model,
        optimizer=optimizer,
    )


@captured_case("A group of weights is added to the optimizer late.", expect=CAPTURED)
def group_is_added(place):
    model = mlp(place)
    optimizer = torch.optim.SGD(model[3].parameters(), lr=0.1, momentum=0.9)
    return trained(
        place,
        lambda model, x, y: F.cross_entropy(model(x), y),
        lambda: optimizer.add_param_group({"params": list(model[0].parameters()), "lr": 0.01}),
        model=model,
        optimizer=optimizer,
    )


# --------------------------------------------------------------------------------------- writes


@captured_case(
    "The step sets a variable of the environment, which the loop reads.",
    expect=refused(at='os.environ["STEPS_DONE"] = str'),
)
def environment_is_written(place):
    os.environ["STEPS_DONE"] = "0"

    def work():
        os.environ["STEPS_DONE"] = str(int(os.environ["STEPS_DONE"]) + 1)

    return working(place, work), os.environ["STEPS_DONE"]


@captured_case(
    "Batches without labels come from an iterator that the step renews.",
    expect=refused(at="next(self.unlabelled)"),
)
def second_loader_in_the_step(place):
    model = mlp(place)
    optimizer = sgd(model)

    class Semi:
        def __init__(self):
            self.data = [batch(place, 50 + number)[0] for number in range(4)]
            self.unlabelled = iter(self.data)

        def next(self):
            try:
                return next(self.unlabelled)
            except StopIteration:
                self.unlabelled = iter(self.data)
                return self.data[0]

        def train(self, pair):
            out = model(self.next()).softmax(1)
            entropy = -(out * out.log()).sum(1).mean()
            return updated(optimizer, F.cross_entropy(model(pair[0]), pair[1]) + 0.1 * entropy)

    return losses_of(place, place.capture(Semi().train), 20), state(model)
