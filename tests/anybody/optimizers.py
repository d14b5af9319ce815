"""Optimizers as frameworks make them: not fused, under a schedule; and some written by hand."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, Adadelta, Adagrad, Adam, AdamW, NAdam, RAdam, RMSprop
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, OneCycleLR, StepLR

from anybody.harness import Cases, or_told, replayed
from hazards.captured_models import batch, kept, state
from hazards.in_place_models import made


if TYPE_CHECKING:
    from collections.abc import Callable


case = Cases("optimizers")

NUM = 200
MOST_LAUNCHES = 10

# Of these calls launches are counted.
LATE = range(NUM // 2, NUM, 20)

# Of the graphs of a step, of its batch and of its result.
OF_GRAPHS = 3


# ------------------------------------------------------------------------------ written by hand


class Lion(torch.optim.Optimizer):
    """The sign of an average of gradients, one weight after the other."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.99), weight_decay=0.01):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        loss = closure() if closure is not None else None
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                p.data.mul_(1 - group["lr"] * group["weight_decay"])
                state = self.state[p]
                if len(state) == 0:
                    state["exp_avg"] = torch.zeros_like(p)
                exp_avg = state["exp_avg"]
                update = exp_avg * beta1 + p.grad * (1 - beta1)
                p.add_(update.sign_(), alpha=-group["lr"])
                exp_avg.mul_(beta2).add_(p.grad, alpha=1 - beta2)
        return loss


def orthogonalized(gradient, steps=5):
    a, b, c = 3.4445, -4.7750, 2.0315
    x = gradient / (gradient.norm() + 1e-7)
    x = x.T if gradient.size(0) > gradient.size(1) else x
    for _ in range(steps):
        s = x @ x.T
        x = a * x + (b * s + c * s @ s) @ x
    return x.T if gradient.size(0) > gradient.size(1) else x


class Muon(torch.optim.Optimizer):
    """Momentum made orthogonal for matrices; plain momentum for all else."""

    def __init__(self, params, lr=0.02, momentum=0.95, nesterov=True):
        super().__init__(params, {"lr": lr, "momentum": momentum, "nesterov": nesterov})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            momentum = group["momentum"]
            for p in group["params"]:
                g, state = p.grad, self.state[p]
                if "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(g)
                buffer = state["momentum_buffer"]
                buffer.lerp_(g, 1 - momentum)
                g = g.lerp(buffer, momentum) if group["nesterov"] else buffer
                if g.dim() == 2:
                    g = orthogonalized(g) * max(1, g.size(0) / g.size(1)) ** 0.5
                p.add_(g, alpha=-group["lr"])


class CountingAdam(torch.optim.Optimizer):
    """Adam as people write it, with an int that counts and its corrections as Python numbers."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["step"], state["m"], state["v"] = (
                        0,
                        torch.zeros_like(p),
                        torch.zeros_like(p),
                    )
                state["step"] += 1
                state["m"].mul_(beta1).add_(p.grad, alpha=1 - beta1)
                state["v"].mul_(beta2).addcmul_(p.grad, p.grad, value=1 - beta2)
                size = group["lr"] * math.sqrt(1 - beta2 ** state["step"])
                size /= 1 - beta1 ** state["step"]
                p.addcdiv_(state["m"], state["v"].sqrt().add_(group["eps"]), value=-size)


# ------------------------------------------------------------------------------------ schedules


def cosine(optimizer):
    return CosineAnnealingLR(optimizer, NUM)


def warmup(optimizer):
    return LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 40) / math.sqrt(step + 1))


def one_cycle(optimizer):
    return OneCycleLR(optimizer, max_lr=0.05, total_steps=NUM + 1)


def by_epochs(optimizer):
    return StepLR(optimizer, 60, gamma=0.7)


class ByHand:
    """Sets the rate as nanoGPT does, and with it the decay."""

    def __init__(self, optimizer):
        self.optimizer, self.number = optimizer, 0

    def step(self):
        self.number += 1
        for group in self.optimizer.param_groups:
            group["lr"] = 0.01 * (0.1 + 0.45 * (1 + math.cos(math.pi * self.number / NUM)))


# ---------------------------------------------------------------------------------------- forms


@dataclass(frozen=True)
class Form:
    """An optimizer under a schedule.

    Attributes:
        step: what is expected of the whole step; None if that is not asked.
        few: whether an update in place must take few launches.
    """

    name: str
    make: Callable[..., torch.optim.Optimizer]
    schedule: Callable[[Any], Any]
    step: Any = None
    few: bool = True

    def __str__(self):
        return self.name


def each(make, **options):
    """Return an optimizer as a GPU makes it where nothing is said: over all weights at once."""
    return partial(make, foreach=True, **options)


# Whatever its optimizer is, the model is captured; or one line says how.
IN_PLACE_HELPS = or_told(r"gapless\.capture\((model|module)|capture the (model|module)")

FORMS = [
    Form("adam", partial(Adam, lr=0.01), cosine, IN_PLACE_HELPS, few=False),
    Form("sgd_momentum", partial(SGD, lr=0.05, momentum=0.9), cosine, IN_PLACE_HELPS, few=False),
    Form("adadelta", partial(Adadelta, lr=1.0), by_epochs, IN_PLACE_HELPS, few=False),
    Form("adam_foreach", each(Adam, lr=0.01), cosine, IN_PLACE_HELPS),
    Form("adam_by_epochs", each(Adam, lr=0.01), by_epochs),
    Form("adam_amsgrad", each(Adam, lr=0.01, amsgrad=True, weight_decay=0.01), warmup),
    Form("adamw", each(AdamW, lr=0.01), one_cycle, IN_PLACE_HELPS),
    Form("adamw_by_hand", each(AdamW, lr=0.01, betas=(0.9, 0.95), weight_decay=0.1), ByHand),
    Form("sgd", each(SGD, lr=0.05), cosine, replayed("step")),
    Form("sgd_momentum_foreach", each(SGD, lr=0.05, momentum=0.9), cosine, IN_PLACE_HELPS),
    Form(
        "sgd_nesterov", each(SGD, lr=0.05, momentum=0.9, nesterov=True, weight_decay=5e-4), warmup
    ),
    Form("adadelta_by_epochs", each(Adadelta, lr=1.0), by_epochs, IN_PLACE_HELPS),
    Form("adadelta_each_step", each(Adadelta, lr=1.0), cosine),
    Form("rmsprop", each(RMSprop, lr=0.005), cosine, IN_PLACE_HELPS),
    Form("rmsprop_centered", each(RMSprop, lr=0.005, centered=True, momentum=0.9), warmup),
    Form("adagrad", each(Adagrad, lr=0.05, lr_decay=0.01), cosine, IN_PLACE_HELPS),
    Form("nadam", each(NAdam, lr=0.005), cosine, IN_PLACE_HELPS),
    Form("radam", each(RAdam, lr=0.005), cosine),
    Form("lion", partial(Lion, lr=0.002), cosine, IN_PLACE_HELPS, few=False),
    Form("muon", partial(Muon, lr=0.02), cosine, IN_PLACE_HELPS, few=False),
    Form("muon_constant", partial(Muon, lr=0.02), by_epochs, few=False),
    Form("counting_adam", partial(CountingAdam, lr=0.01), warmup, IN_PLACE_HELPS, few=False),
    Form("fused_adam", partial(Adam, lr=0.01, fused=True), cosine, replayed("step")),
    Form("fused_adamw", partial(AdamW, lr=0.01, fused=True), one_cycle, replayed("step")),
    Form("fused_adamw_by_hand", partial(AdamW, lr=0.01, fused=True), ByHand, replayed("step")),
]


def _model():
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))


def in_place(place, form, *, num=NUM):
    """Train with model and optimizer captured in place; return losses, state, launches of updates."""
    model = made(place, _model)
    optimizer = form.make(model.parameters())
    place.capture(model, optimizer)
    schedule, losses, launches = form.schedule(optimizer), [], []
    for number in range(num):
        x, y = batch(place, number % 7)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        if number in LATE:
            launches.append(place.launched(optimizer.step)[1])
        else:
            optimizer.step()
        schedule.step()
        losses.append(kept(loss))
    return (losses, state(model, optimizer)), launches


def as_step(place, form, *, num=NUM):
    """Train by a captured step; the schedule is stepped outside. Return launches of the steps, too."""
    model = made(place, _model)
    optimizer = form.make(model.parameters())

    def step(batch):
        x, y = batch
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    step, schedule, losses, launches = place.capture(step), form.schedule(optimizer), [], []
    for number in range(num):
        pair = batch(place, number % 7)
        if number in LATE:
            loss, num = place.launched(partial(step, pair))
            launches.append(num)
        else:
            loss = step(pair)
        losses.append(kept(loss))
        schedule.step()
    return (losses, state(model, optimizer)), launches


def _loop(form, train, most):
    def loop(place):
        found, launches = train(place, form)
        if form.few and not place.is_plain:
            usual = median(launches)
            assert usual <= most, f"{usual:.0f} launches"
        return found

    return loop


for _form in FORMS:
    case.register(
        f"{_form.name}-in_place",
        "Two hundred updates in place, whose rate a schedule changes.",
        _loop(_form, in_place, MOST_LAUNCHES),
        replayed("model"),
    )
    if _form.step is not None:
        case.register(
            f"{_form.name}-step",
            "Two hundred captured steps, whose rate a schedule changes.",
            _loop(_form, as_step, MOST_LAUNCHES + OF_GRAPHS),
            _form.step,
        )
