"""Captured optimizers whose numbers change from step to step, and what else changes meanwhile.

Fused and foreach optimizers are named as such: torch takes foreach by default, but on a GPU alone.
"""

from __future__ import annotations

import torch
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_
from torch.optim import lr_scheduler

from hazards.captured_models import Headed, batches, kept, mlp, state
from hazards.in_place_harness import either, in_place_case
from hazards.in_place_models import made, through_a_file, update


NUM = 26

# What the reports say of updates that nothing replaces.
AS_WRITTEN = either("as written|counts its steps on the host|changes so far")


def _adamw(model, **settings):
    return torch.optim.AdamW(model.parameters(), **{"lr": 1e-2, "fused": True, **settings})


def _sgd(model, **settings):
    return torch.optim.SGD(model.parameters(), **{"lr": 0.1, "foreach": True, **settings})


def _decayed(optimizer):
    return lr_scheduler.LambdaLR(optimizer, lambda number: 1.0 / (1 + 0.1 * number))


class _ByHand:
    """What a loop may do instead of a scheduler, which keeps the step that it has found.

    Args:
        optimizer: whose rates fall.
    """

    def __init__(self, optimizer):
        self._optimizer = optimizer

    def step(self):
        for group in self._optimizer.param_groups:
            group["lr"] *= 0.97


def _scheduled(place, optimizer_of, schedule_of=_decayed, *, num=NUM, between=None):
    """Train with another rate in each step; call `between` with model, optimizer and number."""
    model = made(place, Headed)
    optimizer = place.capture(optimizer_of(model))
    scheduler = schedule_of(optimizer)
    losses, rates = [], []
    for number, (x, y) in enumerate(batches(place, num)):
        if between is not None:
            between(model, optimizer, number)
        losses.append(update(optimizer, F.cross_entropy(model(x), y)))
        scheduler.step()
        rates.append([group["lr"] for group in optimizer.param_groups])
    return losses, rates, state(model, optimizer)


# ---------------------------------------------------------------------- optimizers, schedules


@in_place_case("Fused AdamW with LambdaLR in each step.")
def adamw_with_lambda(place):
    return _scheduled(place, _adamw)


@in_place_case("AdamW with foreach, which counts on the host.")
def foreach_adamw(place):
    return _scheduled(place, lambda model: _adamw(model, fused=None, foreach=True))


@in_place_case("SGD as people make it, with a rate for each step.", expect=AS_WRITTEN)
def sgd_by_default(place):
    return _scheduled(place, lambda model: _sgd(model, foreach=None))


@in_place_case("OneCycle moves the rate and the first beta of AdamW.")
def one_cycle_of_adamw(place):
    def schedule(optimizer):
        return lr_scheduler.OneCycleLR(optimizer, max_lr=0.03, total_steps=NUM + 1)

    return _scheduled(place, _adamw, schedule)


@in_place_case("The rate is a tensor on the device, filled anew for each step.", expect=either())
def rate_is_a_tensor(place):
    model = made(place, Headed)
    rate = torch.tensor(1e-2, device=place.torch_device)
    optimizer = place.capture(_adamw(model, lr=rate))
    losses = []
    for number, (x, y) in enumerate(batches(place, NUM)):
        rate.fill_(0.01 / (1 + number))
        losses.append(update(optimizer, F.cross_entropy(model(x), y)))
    return losses, state(model, optimizer)


# ------------------------------------------------------------------------------------- groups


@in_place_case("A group is added in the middle.")
def group_is_added(place):
    def optimizer_of(model):
        return torch.optim.SGD(model.head.parameters(), lr=0.1, momentum=0.9, foreach=True)

    def add(model, optimizer, number):
        if number == 12:
            optimizer.add_param_group({"params": model.body.parameters(), "lr": 0.01})

    return _scheduled(place, optimizer_of, _ByHand, between=add)


# ---------------------------------------------------------------------------------- gradients


@in_place_case("Gradients of create_graph=True, which require gradients themselves.")
def gradients_with_a_graph(place):
    model = mlp(place)
    optimizer = place.capture(_sgd(model, momentum=0.9))
    scheduler, losses = _decayed(optimizer), []
    for number, (x, y) in enumerate(batches(place, 24)):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        weights = list(model.parameters())
        gradients = torch.autograd.grad(loss, weights, create_graph=number in (8, 9))
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.grad = gradient
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    return losses, [kept(one) for one in model.parameters()]


# -------------------------------------------------------------------------------------- state


@in_place_case("The state of the optimizer is loaded in the middle.")
def state_is_loaded(place):
    saved = []

    def load(model, optimizer, number):
        if number == 8:
            saved.append(through_a_file(optimizer.state_dict()))
        if number == 16:
            optimizer.load_state_dict(saved.pop())

    return _scheduled(place, _adamw, between=load)


# --------------------------------------------------------------- settings, hooks, other calls


@in_place_case("Steps with a closure, which counts.")
def closures(place):
    model = made(place, Headed)
    optimizer = place.capture(_adamw(model))
    scheduler, losses, counted = _decayed(optimizer), [], []
    for x, y in batches(place, NUM):

        def closure(x=x, y=y):
            counted.append(torch.is_grad_enabled())
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        losses.append(optimizer.step(closure).item())
        scheduler.step()
    return losses, counted, state(model, optimizer)


def _wrapped(place, *, captures_first, rate_of, optimizer_of=_adamw):
    """Train by a step that the loop has wrapped: weights decay before it, and calls are counted."""
    model, counted, losses = made(place, Headed), [], []
    optimizer = optimizer_of(model)
    if captures_first:
        place.capture(optimizer)
    inner = optimizer.step

    def step(*args, **kwargs):
        counted.append(len(counted))
        with torch.no_grad():
            for one in model.parameters():
                one.mul_(0.99)
        return inner(*args, **kwargs)

    optimizer.step = step
    if not captures_first:
        place.capture(optimizer)
    for number, (x, y) in enumerate(batches(place, NUM)):
        optimizer.param_groups[0]["lr"] = rate_of(number)
        losses.append(update(optimizer, F.cross_entropy(model(x), y)))
    return losses, counted, state(model, optimizer)


@in_place_case("The loop wraps a captured step, at a rate for each step.")
def captured_step_is_wrapped(place):
    return _wrapped(place, captures_first=True, rate_of=lambda number: 0.01 / (1 + number))


# ---------------------------------------------------------------------------- gradient scalers


def _scaled(place, optimizer_of, *, clips=False):
    model = made(place, Headed)
    optimizer = place.capture(optimizer_of(model))
    scaler = torch.amp.GradScaler(place.torch_device.type, init_scale=2.0**6, growth_interval=5)
    scheduler, losses, scales = _decayed(optimizer), [], []
    for number, (x, y) in enumerate(batches(place, NUM)):
        x = x * (1e38 if number in (1, 13) else 1)
        with torch.autocast(place.torch_device.type, dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        if clips:
            scaler.unscale_(optimizer)
            clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        losses.append(loss.item())
        scales.append((scaler.get_scale(), optimizer.param_groups[0]["lr"]))
    return losses, scales, scaler.state_dict(), state(model, optimizer)


@in_place_case("A GradScaler with SGD, which it asks the device for.")
def scaler_with_foreach_sgd(place):
    return _scaled(place, lambda model: _sgd(model, momentum=0.9), clips=True)
