"""Loops in which rates and other numbers of the update change, and optimizers of all kinds."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import lr_scheduler

from hazards.captured_harness import CAPTURED, captured_case, refused
from hazards.captured_models import batches, kept, mlp, run, sgd, state, training_step


def trained(place, make_optimizer, *, num=16, change=None, model=None):
    """Train a small model; call `change(optimizer, number)` before each step."""
    model = mlp(place) if model is None else model
    optimizer = make_optimizer(model.parameters())
    step = place.capture(training_step(model, optimizer))
    losses = []
    for number, one in enumerate(batches(place, num)):
        if change is not None:
            change(optimizer, number)
        losses += run(step, [one])
    return losses, state(model, optimizer)


# --------------------------------------------------------- optimizers as people make them


@captured_case("Adam as people make it.", expect=CAPTURED)
def adam(place):
    return trained(place, lambda parameters: torch.optim.Adam(parameters, lr=3e-3), num=30)


@captured_case("L-BFGS with a closure, which decides on the host.", expect=refused())
def lbfgs(place):
    model = mlp(place)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)

    def train(one):
        x, y = one

        def closure():
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        return optimizer.step(closure)

    losses = run(place.capture(train), batches(place, 12))
    return losses, state(model, optimizer)


@captured_case("SGD gets a closure, which it calls once.", expect=CAPTURED)
def sgd_with_a_closure(place):
    model = mlp(place)
    optimizer = sgd(model, momentum=0.9)

    def train(one):
        x, y = one

        def closure():
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        return optimizer.step(closure)

    losses = run(place.capture(train), batches(place, 16))
    return losses, state(model, optimizer)


# ------------------------------------------------------------------------------- schedules


def scheduled(place, make_optimizer, make_scheduler, *, num=30):
    """Train with a scheduler that steps after each captured step."""
    model = mlp(place)
    optimizer = make_optimizer(model.parameters())
    scheduler = make_scheduler(optimizer)
    step = place.capture(training_step(model, optimizer))
    losses, rates = [], []
    for one in batches(place, num):
        losses += run(step, [one])
        scheduler.step()
        rates.append(scheduler.get_last_lr())
    return losses, rates, state(model, optimizer)


@captured_case("Warm-up and cosine by LambdaLR, with plain SGD.", expect=CAPTURED)
def warm_up_and_cosine(place):
    def factor(number):
        return number / 7 if number < 7 else 0.5 * (1 + math.cos(math.pi * number / 30))

    return scheduled(
        place,
        lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=1e-4),
        lambda optimizer: lr_scheduler.LambdaLR(optimizer, factor),
    )


@captured_case(
    "`group['lr']` is set before every step, a digit apart in double only.", expect=CAPTURED
)
def rates_that_differ_in_double_only(place):
    def change(optimizer, number):
        optimizer.param_groups[0]["lr"] = 0.1 + number * 1e-12

    model = nn.Linear(8, 4).double().to(place.torch_device)
    optimizer = sgd(model)
    step = place.capture(training_step(model, optimizer))
    losses = []
    for number, (x, y) in enumerate(batches(place, 24)):
        change(optimizer, number)
        losses += run(step, [(x.double(), y)])
    return losses, state(model, optimizer)


@captured_case("The rate is a tensor on the device, filled outside.", expect=CAPTURED)
def rate_tensor_filled_outside(place):
    rate = torch.tensor(0.1).to(place.torch_device)
    return trained(
        place,
        lambda parameters: torch.optim.SGD(parameters, lr=rate, momentum=0.9),
        change=lambda optimizer, number: rate.fill_(0.1 / (1 + number)),
    )


# ------------------------------------------------------------- scaling, clipping, averaging


def _scaled(place, make_optimizer, *, clip=False):
    model = mlp(place)
    optimizer = make_optimizer(model.parameters())
    kind = place.torch_device.type
    scaler = torch.amp.GradScaler(kind, init_scale=2.0**6, growth_interval=5)

    def train(one):
        x, y = one
        optimizer.zero_grad()
        with torch.autocast(kind, dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        if clip:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        return loss

    step = place.capture(train)
    losses, scales = [], []
    for number, (x, y) in enumerate(batches(place, 18)):
        losses += run(step, [(x * (1e38 if number == 9 else 1), y)])
        scales.append(scaler.get_scale())
    return losses, scales, scaler.state_dict(), state(model, optimizer)


@captured_case(
    "Mixed precision with a GradScaler and a fused AdamW; one batch overflows.", expect=CAPTURED
)
def grad_scaler_with_a_fused_optimizer(place):
    return _scaled(place, lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, fused=True))


@captured_case(
    "Mixed precision with a GradScaler and AdamW as people make it.",
    expect=refused("fused=True"),
)
def grad_scaler_with_an_unfused_optimizer(place):
    return _scaled(place, lambda parameters: torch.optim.AdamW(parameters, lr=1e-2))


@captured_case("Gradients are unscaled and clipped before a fused SGD.", expect=CAPTURED)
def grad_scaler_and_clipping(place):
    return _scaled(
        place, lambda parameters: torch.optim.SGD(parameters, lr=0.1, fused=True), clip=True
    )


def _clipped(place, clip, *, optimizer_of=sgd):
    model = mlp(place)
    optimizer = optimizer_of(model)

    def train(one):
        x, y = one
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        norm = clip(list(model.parameters()))
        optimizer.step()
        return loss.detach(), norm

    step = place.capture(train)
    results = []
    for number, (x, y) in enumerate(batches(place, 18)):
        results.append(step((x * (1 + 5 * (number % 3)), y)))
    return results, state(model, optimizer)


@captured_case("Gradients are clipped by their norm, which is returned.", expect=CAPTURED)
def clipping_by_norm(place):
    return _clipped(place, lambda parameters: nn.utils.clip_grad_norm_(parameters, 0.5))


@captured_case(
    "Clipping must raise on gradients that are no numbers: a read in each step.", expect=refused()
)
def clipping_that_checks(place):
    return _clipped(
        place,
        lambda parameters: nn.utils.clip_grad_norm_(parameters, 0.5, error_if_nonfinite=True),
    )


@captured_case("Gradients of four micro-batches are accumulated within the step.", expect=CAPTURED)
def accumulation_within(place):
    model = mlp(place)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def train(micro_batches):
        optimizer.zero_grad()
        total = 0
        for x, y in micro_batches:
            loss = F.cross_entropy(model(x), y) / len(micro_batches)
            loss.backward()
            total = total + loss.detach()
        optimizer.step()
        return total

    step = place.capture(train)
    losses = []
    for number in range(18):
        losses.append(kept(step(list(batches(place, 4 + 4 * number))[-4:])))
    return losses, state(model, optimizer)
