"""Captured optimizers: their kinds, their schedulers, their state, and who else writes the weights."""

from __future__ import annotations

import torch
from torch.nn import functional as F
from torch.optim import lr_scheduler

from hazards.captured_models import Headed, batches, mlp, sgd, state
from hazards.in_place_harness import captured, either, in_place_case
from hazards.in_place_models import NUM, Normed, fit, made, through_a_file, update


# ------------------------------------------------------------------------------- their kinds


def _of_kind(place, optimizer_of, *, num=24):
    model = mlp(place)
    optimizer = place.capture(optimizer_of(model.parameters()))
    return fit(place, model, optimizer, num), state(model, optimizer)


@in_place_case("Fused AdamW.")
def fused_adamw(place):
    return _of_kind(place, lambda weights: torch.optim.AdamW(weights, lr=1e-2, fused=True))


@in_place_case("L-BFGS with a closure.", expect=either("LBFGS|closure"))
def lbfgs(place):
    model = place.capture(mlp(place))
    optimizer = place.capture(torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=3))
    losses = []
    for x, y in batches(place, 6):

        def closure(x=x, y=y):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        losses.append(optimizer.step(closure).item())
    return losses, state(model, optimizer)


@in_place_case(
    "SGD with a closure, as Lightning calls it; the loss comes from step().",
    expect=either("closure"),
)
def step_with_a_closure(place):
    model = place.capture(mlp(place, dropout=0.1))
    optimizer, counted, losses = place.capture(sgd(model)), [], []
    for x, y in batches(place, NUM):

        def closure(x=x, y=y):
            counted.append(len(counted))
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        losses.append(optimizer.step(closure).item())
    return losses, counted, state(model, optimizer)


# ---------------------------------------------------------------------------------- schedules


def _scheduled(place, schedule, *, before, num=24):
    model = place.capture(mlp(place))
    optimizer = sgd(model, momentum=0.9)
    if before:
        scheduler = schedule(optimizer)
        place.capture(optimizer)
    else:
        place.capture(optimizer)
        scheduler = schedule(optimizer)
    losses, rates = [], []
    for number, (x, y) in enumerate(batches(place, num)):
        losses.append(update(optimizer, F.cross_entropy(model(x), y)))
        if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau):
            scheduler.step(losses[-1])
        elif not isinstance(scheduler, lr_scheduler.StepLR) or number % 6 == 5:
            scheduler.step()
        rates.append((scheduler.get_last_lr(), optimizer.param_groups[0]["momentum"]))
    return losses, rates, scheduler.state_dict()["last_epoch"], state(model, optimizer)


@in_place_case(
    "A cosine, made after the capture, sets another rate in every step.", expect=captured("model")
)
def scheduler_made_after(place):
    return _scheduled(place, lambda one: lr_scheduler.CosineAnnealingLR(one, 24), before=False)


# -------------------------------------------------------------------- groups, state, hooks


@in_place_case("The body is unfrozen after a while: add_param_group.")
def group_is_added(place):
    model = made(place, Headed)
    model.body.requires_grad_(False)
    place.capture(model)
    optimizer = place.capture(torch.optim.SGD(model.head.parameters(), lr=0.1, momentum=0.9))
    losses = fit(place, model, optimizer, 14)
    model.body.requires_grad_(True)
    optimizer.add_param_group({"params": model.body.parameters(), "lr": 0.01})
    losses += fit(place, model, optimizer, 20)
    return losses, state(model, optimizer)


@in_place_case("A checkpoint of model and optimizer is saved and loaded back in the loop.")
def checkpoint_is_loaded(place):
    model = place.capture(made(place, Normed))
    optimizer = place.capture(torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True))
    losses = fit(place, model, optimizer, 12)
    saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 1}
    loaded = through_a_file(saved)
    losses += fit(place, model, optimizer, 12, start=12)
    model.load_state_dict(loaded["model"])
    optimizer.load_state_dict(loaded["optimizer"])
    losses += fit(place, model, optimizer, 16, start=12)
    return losses, list(loaded["model"]), state(model, optimizer)


@in_place_case(
    "Hooks before and after each step: a norm is logged, and weights are clamped.",
    expect=either("hook"),
)
def step_hooks(place):
    model = mlp(place)
    optimizer, norms = place.capture(sgd(model)), []

    def log(optimizer, args, kwargs):
        norms.append(model[0].weight.grad.norm().item())

    def clamp(optimizer, args, kwargs):
        with torch.no_grad():
            for one in model.parameters():
                one.clamp_(-0.3, 0.3)

    optimizer.register_step_pre_hook(log)
    handle = optimizer.register_step_post_hook(clamp)
    losses = fit(place, model, optimizer, 14)
    handle.remove()
    losses += fit(place, model, optimizer, 14)
    return losses, norms, state(model, optimizer)
