"""Gradients of captured models: kept, added up, read, changed, hooked, and taken twice."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from hazards.captured_models import batches, kept, mlp, sgd, state
from hazards.in_place_harness import either, in_place_case
from hazards.in_place_models import NUM, floats, made, update


# ------------------------------------------------------------------------------ added up


def _accumulated(place, every, *, set_to_none, num=24, captures_the_optimizer=False):
    model = place.capture(mlp(place, dropout=0.1))
    optimizer = sgd(model, momentum=0.9)
    if captures_the_optimizer:
        place.capture(optimizer)
    losses, seen = [], []
    for number, (x, y) in enumerate(batches(place, num)):
        loss = F.cross_entropy(model(x), y) / every
        loss.backward()
        losses.append(loss.item())
        if number % every == every - 1:
            seen.append([kept(one.grad) for one in model.parameters()])
            optimizer.step()
            optimizer.zero_grad(set_to_none=set_to_none)
    return losses, seen, state(model, optimizer)


@in_place_case("Gradients of four batches are added up, and then set to None.")
def accumulated_and_set_to_none(place):
    return _accumulated(place, 4, set_to_none=True)


# -------------------------------------------------------------------------------------- hooks


@in_place_case(
    "Each weight is updated when its gradient is there: post-accumulate hooks.",
    expect=either("hook"),
)
def update_in_post_accumulate_hooks(place):
    model = place.capture(mlp(place))
    optimizers, order = {}, []

    def update_one(weight):
        order.append(tuple(weight.shape))
        optimizers[weight].step()
        optimizers[weight].zero_grad()

    for one in model.parameters():
        optimizers[one] = torch.optim.SGD([one], lr=0.1)
        one.register_post_accumulate_grad_hook(update_one)
    losses = []
    for x, y in batches(place, NUM):
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        losses.append(loss.item())
    return losses, order, state(model)


# ------------------------------------------------------------------------- taken otherwise


@in_place_case(
    "autograd.grad gives the gradients, and the update is written by hand.",
    expect=either("autograd.grad|backward|hand"),
)
def autograd_grad(place):
    model = place.capture(mlp(place))
    losses = []
    for x, y in batches(place, NUM):
        loss = F.cross_entropy(model(x), y)
        grads = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for one, grad in zip(model.parameters(), grads, strict=True):
                one -= 0.1 * grad
        losses.append(loss.item())
    return losses, state(model)


@in_place_case(
    "Two losses of one forward go backward one after the other: retain_graph.",
    expect=either("retain_graph|second backward"),
)
def two_backwards_of_one_forward(place):
    model = place.capture(mlp(place, dropout=0.2))
    optimizer, losses = sgd(model), []
    for x, y in batches(place, NUM):
        scores = model(x)
        first, second = F.cross_entropy(scores, y), scores.square().mean()
        optimizer.zero_grad()
        first.backward(retain_graph=True)
        losses.append(kept(model[0].weight.grad))
        second.backward()
        optimizer.step()
        losses.append((first.item(), second.item()))
    return losses, state(model, optimizer)


@in_place_case(
    "A penalty on the slope of the critic between real and fake: WGAN-GP.",
    expect=either("create_graph|forward"),
)
def gradient_penalty(place):
    critic = made(place, nn.Sequential, nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    place.capture(critic)
    optimizer, losses = sgd(critic, lr=0.01), []
    for number in range(NUM):
        real, fake = floats(place, number, 6, 8), floats(place, 100 + number, 6, 8)
        between = torch.lerp(real, fake, torch.rand(6, 1, device=real.device)).requires_grad_()
        (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
        penalty = (slope.norm(dim=1) - 1).square().mean()
        loss = critic(fake).mean() - critic(real).mean() + 10 * penalty
        losses.append((update(optimizer, loss), penalty.item()))
    return losses, state(critic, optimizer)
