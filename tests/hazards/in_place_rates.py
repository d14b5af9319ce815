"""Captured optimizers whose numbers change from step to step, and what else changes meanwhile.

Fused and foreach optimizers are named as such: torch takes foreach by default, but on a GPU alone.
"""

from __future__ import annotations

import copy

import torch
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_
from torch.optim import lr_scheduler

from hazards.captured_models import Headed, batch, batches, kept, mlp, state
from hazards.harness import GPU
from hazards.in_place_harness import either, in_place_case
from hazards.in_place_models import Normed, fit, made, through_a_file, update


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


@in_place_case("Fused Adam with amsgrad, weight decay and maximize, a cosine.")
def adam_with_all_settings(place):
    def adam(model):
        return torch.optim.Adam(
            model.parameters(), weight_decay=0.1, amsgrad=True, maximize=True, fused=True
        )

    return _scheduled(place, adam, lambda one: lr_scheduler.CosineAnnealingLR(one, NUM))


@in_place_case("AdamW with foreach, which counts on the host.")
def foreach_adamw(place):
    return _scheduled(place, lambda model: _adamw(model, fused=None, foreach=True))


@in_place_case("Adam with foreach, amsgrad, weight decay and maximize, one rate.")
def foreach_adam_at_one_rate(place):
    settings = {"amsgrad": True, "weight_decay": 0.1, "maximize": True, "foreach": True}
    model = made(place, Headed)
    optimizer = place.capture(torch.optim.Adam(model.parameters(), **settings))
    return fit(place, model, optimizer, NUM), state(model, optimizer)


@in_place_case("AdamW as people make it, with a rate for each step.", expect=AS_WRITTEN)
def adamw_by_default(place):
    return _scheduled(place, lambda model: _adamw(model, fused=None))


@in_place_case("SGD as people make it, with a rate for each step.", expect=AS_WRITTEN)
def sgd_by_default(place):
    return _scheduled(place, lambda model: _sgd(model, foreach=None))


@in_place_case("Plain SGD with a polynomial.")
def plain_sgd(place):
    return _scheduled(place, _sgd, lambda one: lr_scheduler.PolynomialLR(one, NUM, power=2.0))


@in_place_case("SGD with Nesterov momentum, weight decay and maximize.")
def sgd_with_nesterov(place):
    settings = {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01, "maximize": True}
    return _scheduled(place, lambda model: _sgd(model, **settings))


@in_place_case("SGD with dampened momentum and weight decay.")
def sgd_with_dampening(place):
    settings = {"momentum": 0.9, "dampening": 0.3, "weight_decay": 0.01}
    return _scheduled(place, lambda model: _sgd(model, **settings))


@in_place_case("Fused SGD with momentum.")
def fused_sgd(place):
    settings = {"momentum": 0.9, "foreach": None, "fused": True, "weight_decay": 0.01}
    return _scheduled(place, lambda model: _sgd(model, **settings))


@in_place_case("OneCycle moves the rate and the momentum of SGD.")
def one_cycle_of_sgd(place):
    def schedule(optimizer):
        return lr_scheduler.OneCycleLR(optimizer, max_lr=0.3, total_steps=NUM + 1)

    return _scheduled(place, lambda model: _sgd(model, momentum=0.9), schedule)


@in_place_case("OneCycle moves the rate and the first beta of AdamW.")
def one_cycle_of_adamw(place):
    def schedule(optimizer):
        return lr_scheduler.OneCycleLR(optimizer, max_lr=0.03, total_steps=NUM + 1)

    return _scheduled(place, _adamw, schedule)


@in_place_case("A cycle that ends with a momentum of zero, and starts again.")
def momentum_of_zero(place):
    def move(model, optimizer, number):
        optimizer.param_groups[0]["momentum"] = (0.9, 0.5, 0.0)[number // 4 % 3]

    return _scheduled(place, lambda model: _sgd(model, momentum=0.9), between=move)


@in_place_case("A momentum that sets in after some steps.")
def momentum_sets_in(place):
    def move(model, optimizer, number):
        optimizer.param_groups[0]["momentum"] = 0.9 if number >= 10 else 0.0

    return _scheduled(place, _sgd, between=move)


@in_place_case("Weight decay that comes and goes.")
def weight_decay_of_zero(place):
    def move(model, optimizer, number):
        optimizer.param_groups[0]["weight_decay"] = 0.1 if number // 10 % 2 else 0.0

    return _scheduled(place, lambda model: _sgd(model, momentum=0.9), between=move)


@in_place_case("A warm-up of eight steps, then one rate.")
def warm_up_alone(place):
    def schedule(optimizer):
        return lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=8)

    return _scheduled(place, _adamw, schedule)


@in_place_case("A warm-up and a cosine, chained.")
def warm_up_and_cosine(place):
    def schedule(optimizer):
        parts = [
            lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=6),
            lr_scheduler.CosineAnnealingLR(optimizer, NUM - 6),
        ]
        return lr_scheduler.SequentialLR(optimizer, parts, milestones=[6])

    return _scheduled(place, _adamw, schedule)


@in_place_case("A plateau reads the loss, and lowers the rate now and then.")
def plateau(place):
    model = mlp(place)
    optimizer = place.capture(_sgd(model, momentum=0.9))
    scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, patience=1, factor=0.5)
    losses = []
    for x, y in batches(place, NUM):
        losses.append(update(optimizer, F.cross_entropy(model(x), y)))
        scheduler.step(losses[-1])
    return losses, scheduler.get_last_lr(), state(model, optimizer)


@in_place_case("Rates that are numpy's numbers, and whole ones.")
def rates_of_other_types(place):
    def schedule(optimizer):
        rates = torch.linspace(0.5, 0.1, NUM + 1, dtype=torch.float64).numpy()
        return lr_scheduler.LambdaLR(optimizer, lambda number: rates[number] if number % 5 else 1)

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


@in_place_case("The rate becomes a tensor in the middle of training.", expect=either())
def rate_becomes_a_tensor(place):
    model = made(place, Headed)
    optimizer = place.capture(_adamw(model))
    losses = []
    for number, (x, y) in enumerate(batches(place, NUM)):
        rate = 0.01 / (1 + number)
        (group,) = optimizer.param_groups
        is_number = number % 20 < 10
        group["lr"] = rate if is_number else torch.tensor(rate, device=place.torch_device)
        losses.append(update(optimizer, F.cross_entropy(model(x), y)))
    return losses, state(model, optimizer)


# ------------------------------------------------------------------------------------- groups


def _two_groups(model, kind=torch.optim.AdamW, **settings):
    groups = [
        {"params": model.body.parameters(), "weight_decay": 0.1},
        {"params": model.head.parameters(), "lr": 0.02, "weight_decay": 0.0},
    ]
    return kind(groups, **{"lr": 1e-2, **settings})


@in_place_case("Two groups with rates of their own.")
def two_groups(place):
    def schedule(optimizer):
        return lr_scheduler.LambdaLR(optimizer, [lambda n: 0.9**n, lambda n: 1.0 / (1 + n)])

    return _scheduled(place, lambda model: _two_groups(model, fused=True), schedule)


@in_place_case("Two groups, of which one is fused and the other is not.", expect=either())
def two_groups_of_two_kinds(place):
    def optimizer_of(model):
        groups = [
            {"params": model.body.parameters(), "fused": True},
            {"params": model.head.parameters(), "foreach": True},
        ]
        return torch.optim.AdamW(groups, lr=1e-2)

    return _scheduled(place, optimizer_of)


@in_place_case("A group is added in the middle.")
def group_is_added(place):
    def optimizer_of(model):
        return torch.optim.SGD(model.head.parameters(), lr=0.1, momentum=0.9, foreach=True)

    def add(model, optimizer, number):
        if number == 12:
            optimizer.add_param_group({"params": model.body.parameters(), "lr": 0.01})

    return _scheduled(place, optimizer_of, _ByHand, between=add)


@in_place_case("Groups are made anew before each step.", expect=either("as written|too often"))
def groups_are_made_anew(place):
    def make(model, optimizer, number):
        optimizer.param_groups = [dict(group) for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["params"] = list(group["params"])

    return _scheduled(place, _adamw, between=make)


@in_place_case("The order of the weights changes in the middle.")
def order_of_weights(place):
    def turn(model, optimizer, number):
        if number == 12:
            optimizer.param_groups[0]["params"].reverse()

    return _scheduled(place, _adamw, between=turn)


@in_place_case("A weight is taken out of the group's own list, and comes back.")
def weight_is_taken_out(place):
    taken = []

    def take(model, optimizer, number):
        weights = optimizer.param_groups[0]["params"]
        if number == 10:
            taken.append(weights.pop())
        if number == 16:
            weights.append(taken.pop())

    return _scheduled(place, lambda model: _sgd(model, momentum=0.9), between=take)


@in_place_case("Weights of two dtypes in one group.")
def two_dtypes(place):
    model = made(place, Headed)
    model.head.double()
    optimizer = place.capture(_adamw(model))
    scheduler, losses = _decayed(optimizer), []
    for x, y in batches(place, NUM):
        loss = F.cross_entropy(model.head(F.relu(model.body(x)).double()), y)
        losses.append(update(optimizer, loss))
        scheduler.step()
    return losses, state(model, optimizer)


# ---------------------------------------------------------------------------------- gradients


@in_place_case("The body is frozen in the middle, and is thawed again.")
def frozen_meanwhile(place):
    def freeze(model, optimizer, number):
        if number in (10, 20):
            model.body.requires_grad_(number == 20)
            optimizer.zero_grad()

    return _scheduled(place, _adamw, between=freeze)


@in_place_case("Some weights have no gradient in some steps.")
def some_without_gradients(place):
    model = made(place, Headed)
    optimizer = place.capture(_sgd(model, momentum=0.9, weight_decay=0.1))
    scheduler, losses = _decayed(optimizer), []
    for number, (x, y) in enumerate(batches(place, 36)):
        hidden = F.relu(model.body(x))
        loss = F.cross_entropy(model.head(hidden.detach() if number % 3 == 1 else hidden), y)
        losses.append(update(optimizer, loss))
        scheduler.step()
    return losses, state(model, optimizer)


@in_place_case("A weight that never has a gradient, and has no state.")
def never_a_gradient(place):
    model = made(place, Headed)
    model.unused = torch.nn.Linear(4, 4).to(place.torch_device)
    optimizer = place.capture(_adamw(model))
    scheduler, losses = _decayed(optimizer), []
    for x, y in batches(place, NUM):
        losses.append(update(optimizer, F.cross_entropy(model(x), y)))
        scheduler.step()
    return losses, state(model.body, optimizer), state(model.head)


@in_place_case("No weight has a gradient in some steps.")
def steps_without_any_gradient(place):
    model = made(place, Headed)
    optimizer = place.capture(_adamw(model))
    scheduler, losses = _decayed(optimizer), []
    for number, (x, y) in enumerate(batches(place, NUM)):
        losses.append(update(optimizer, F.cross_entropy(model(x), y)))
        if number % 4 == 3:
            optimizer.zero_grad()
            optimizer.step()
        scheduler.step()
    return losses, state(model, optimizer)


@in_place_case("zero_grad(set_to_none=False): gradients stay the same tensors.")
def gradients_stay(place):
    model = mlp(place)
    optimizer = place.capture(_adamw(model))
    scheduler, losses = _decayed(optimizer), []
    for x, y in batches(place, NUM):
        optimizer.zero_grad(set_to_none=False)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    return losses, state(model, optimizer)


@in_place_case("Gradients with other strides in some steps.")
def gradients_of_other_strides(place):
    model = mlp(place)
    optimizer = place.capture(_sgd(model, momentum=0.9))
    scheduler, losses = _decayed(optimizer), []
    for number, (x, y) in enumerate(batches(place, NUM)):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        if number % 3 == 2:
            weight = model[0].weight
            weight.grad = weight.grad.t().contiguous().t()
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    return losses, state(model, optimizer)


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


@in_place_case("Gradients are clipped, and kept from step to step.")
def gradients_are_clipped_and_kept(place):
    model = mlp(place)
    optimizer = place.capture(_adamw(model))
    scheduler, norms, seen = _decayed(optimizer), [], []
    for x, y in batches(place, NUM):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        norms.append(clip_grad_norm_(model.parameters(), 0.5).item())
        seen.append([one.grad for one in model.parameters()])
        optimizer.step()
        scheduler.step()
    return norms, seen, state(model, optimizer)


@in_place_case("A sparse gradient in some steps.", expect=either("sparse|as written"))
def sparse_in_some_steps(place):
    model = made(place, torch.nn.EmbeddingBag, 11, 4, mode="sum")
    optimizer = place.capture(_sgd(model))
    scheduler, losses = _decayed(optimizer), []
    for number in range(24):
        draw = torch.Generator().manual_seed(number)
        ids = place.moved(torch.randint(0, 11, (6, 3), generator=draw))
        model.sparse = place.torch_device.type != "cpu" and number in (10, 11)
        losses.append(update(optimizer, F.cross_entropy(model(ids), batch(place, number)[1])))
        scheduler.step()
    return losses, kept(model.weight)


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


@in_place_case("Its own state_dict is loaded back, without a copy.")
def own_state_is_loaded(place):
    def load(model, optimizer, number):
        if number in (10, 20):
            optimizer.load_state_dict(optimizer.state_dict())

    return _scheduled(place, _adamw, between=load)


@in_place_case("Momenta are scaled, replaced, and thrown away.")
def state_is_changed(place):
    def change(model, optimizer, number):
        for known in optimizer.state.values():
            if number == 8:
                known["momentum_buffer"].mul_(0.1)
            if number == 12:
                known["momentum_buffer"] = known["momentum_buffer"].clone()
            if number == 16:
                known["momentum_buffer"].data = known["momentum_buffer"] * 2.0
        if number == 20:
            optimizer.state.clear()
        if number == 24:
            optimizer.state[model.head.weight] = {}

    return _scheduled(place, lambda model: _sgd(model, momentum=0.9), between=change)


@in_place_case("The count of steps is set back by hand.")
def count_of_steps_is_set_back(place):
    def set_back(model, optimizer, number):
        if number in (8, 16):
            for known in optimizer.state.values():
                known["step"].fill_(2.0) if number == 8 else known.update(step=known["step"] + 5)

    return _scheduled(
        place, lambda model: _adamw(model, fused=None, foreach=True), between=set_back
    )


@in_place_case("The states of two weights are exchanged.")
def states_are_exchanged(place):
    def exchange(model, optimizer, number):
        if number == 12:
            one, other = model[0].weight, model[1].weight
            known = optimizer.state
            known[one], known[other] = known[other], known[one]

    model = made(place, torch.nn.Sequential, torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    optimizer = place.capture(_adamw(model))
    scheduler, losses = _decayed(optimizer), []
    for number, (x, _) in enumerate(batches(place, NUM)):
        exchange(model, optimizer, number)
        losses.append(update(optimizer, model(x).square().mean()))
        scheduler.step()
    return losses, state(model, optimizer)


@in_place_case("Something else is kept in the optimizer's state, and changes.", expect=either())
def more_in_the_state(place):
    def keep(model, optimizer, number):
        for known in optimizer.state.values():
            known["seen"] = number

    return _scheduled(place, _adamw, between=keep)


@in_place_case("State and count of steps are read while training.")
def state_is_read(place):
    seen = []

    def read(model, optimizer, number):
        known = [optimizer.state[one] for one in model.parameters() if one in optimizer.state]
        seen.append([(one["step"].item(), one["exp_avg"].norm().item()) for one in known])

    return _scheduled(place, _adamw, between=read), seen


# ------------------------------------------------------------------------------------ weights


@in_place_case("A weight of the group is another one from a step on.")
def weight_is_replaced(place):
    def replace(model, optimizer, number):
        if number == 12:
            before = model.head.weight
            model.head.weight = torch.nn.Parameter(before.detach() * 0.5)
            weights = optimizer.param_groups[0]["params"]
            weights[[one is before for one in weights].index(True)] = model.head.weight
            optimizer.state[model.head.weight] = optimizer.state.pop(before)

    return _scheduled(place, lambda model: _sgd(model, momentum=0.9), between=replace)


@in_place_case("Weights move to other memory, and are written by hand.")
def weights_are_moved(place):
    def move(model, optimizer, number):
        with torch.no_grad():
            if number == 10:
                model.head.weight.data = model.head.weight.data * 0.5
            model.body.weight.mul_(0.999)

    return _scheduled(place, _adamw, between=move)


@in_place_case("Weights and state become double in the middle.")
def weights_become_double(place):
    model = made(place, Headed)
    optimizer = place.capture(_sgd(model, momentum=0.9))
    scheduler, losses = _decayed(optimizer), []
    for number, (x, y) in enumerate(batches(place, NUM)):
        if number == 12:
            model.double()
            optimizer.load_state_dict(optimizer.state_dict())
        x = x.double() if number >= 12 else x
        losses.append(update(optimizer, F.cross_entropy(model(x), y)))
        scheduler.step()
    return losses, state(model, optimizer)


@in_place_case("Statistics and dropout in a captured model, and its optimizer.")
def captured_model_too(place):
    model = place.capture(made(place, Normed))
    optimizer = place.capture(_adamw(model))
    scheduler, losses = _decayed(optimizer), []
    for number in range(NUM):
        losses += fit(place, model, optimizer, 1, start=number)
        scheduler.step()
    return losses, state(model, optimizer)


# --------------------------------------------------------------- settings, hooks, other calls


@in_place_case("Settings are changed by hand: maximize, amsgrad, the fused kernel.")
def settings_are_changed(place):
    def change(model, optimizer, number):
        (group,) = optimizer.param_groups
        group["maximize"] = number // 8 % 2 == 1
        group["nesterov"] = number >= 20

    return _scheduled(place, lambda model: _sgd(model, momentum=0.9), between=change)


@in_place_case("The kernel is changed by hand, to the fused one and back.")
def kernel_is_changed(place):
    def change(model, optimizer, number):
        is_fused = 8 <= number < 16
        optimizer.param_groups[0].update(fused=is_fused, foreach=not is_fused)

    return _scheduled(place, lambda model: _sgd(model, momentum=0.9), between=change)


@in_place_case("Hooks come and go.", expect=either("hook"))
def hooks_come_and_go(place):
    handles, seen = [], []

    def hook(model, optimizer, number):
        if number == 8:
            handles.append(optimizer.register_step_pre_hook(lambda *_: seen.append("before")))
            handles.append(optimizer.register_step_post_hook(lambda *_: seen.append("after")))
        if number == 12:
            while handles:
                handles.pop().remove()

    return _scheduled(place, _adamw, between=hook), seen


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


@in_place_case("A closure that raises now and then.")
def closure_raises(place):
    model = made(place, Headed)
    optimizer = place.capture(_adamw(model))
    scheduler, losses = _decayed(optimizer), []
    for number, (x, y) in enumerate(batches(place, NUM)):

        def closure(x=x, y=y, number=number):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            if number % 7 == 5:
                raise ArithmeticError(number)
            return loss

        try:
            losses.append(optimizer.step(closure).item())
        except ArithmeticError as error:
            losses.append(str(error))
        scheduler.step()
    return losses, state(model, optimizer)


class Halved(torch.optim.AdamW):
    """A user's class, whose rate is half of what the groups say."""

    def step(self, closure=None):
        for group in self.param_groups:
            group["lr"] *= 0.5
        out = super().step(closure)
        for group in self.param_groups:
            group["lr"] *= 2.0
        return out


@in_place_case("A class of the user's on top of AdamW.", expect=AS_WRITTEN)
def a_class_of_the_users(place):
    return _scheduled(place, lambda model: Halved(model.parameters(), lr=1e-2, fused=True))


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


@in_place_case("The loop wraps a captured step, at one rate.")
def captured_step_is_wrapped_at_one_rate(place):
    return _wrapped(place, captures_first=True, rate_of=lambda number: 0.01)


@in_place_case("The loop wraps a captured step of SGD without foreach.", expect=either())
def captured_step_of_sgd_is_wrapped(place):
    return _wrapped(
        place,
        captures_first=True,
        rate_of=lambda number: 0.01 / (1 + number // 8),
        optimizer_of=lambda model: _sgd(model, momentum=0.9, foreach=False),
    )


@in_place_case("A step that the loop has wrapped is captured.", expect=either())
def wrapped_step_is_captured(place):
    return _wrapped(place, captures_first=False, rate_of=lambda number: 0.01 / (1 + number))


@in_place_case("Torch's class gets another step in the middle.", expect=either())
def class_is_patched(place):
    kind = torch.optim.AdamW
    as_written = kind.step

    def step(self, closure=None):
        with torch.no_grad():
            for group in self.param_groups:
                for weight in group["params"]:
                    weight.mul_(0.5)
        return as_written(self, closure)

    def patch(model, optimizer, number):
        if number in (12, 16):
            kind.step = step if number == 12 else as_written

    try:
        return _scheduled(place, _adamw, _ByHand, between=patch)
    finally:
        kind.step = as_written


@in_place_case("Steps within inference mode, and with gradients switched off.")
def steps_in_other_modes(place):
    model = made(place, Headed)
    optimizer = place.capture(_adamw(model))
    scheduler, losses = _decayed(optimizer), []
    for number, (x, y) in enumerate(batches(place, NUM)):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        with torch.set_grad_enabled(number % 3 != 1):
            optimizer.step()
            losses.append(torch.is_grad_enabled())
        scheduler.step()
        losses.append(loss.item())
    return losses, state(model, optimizer)


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


@in_place_case("A GradScaler with a fused AdamW; two batches overflow.")
def scaler_with_fused_adamw(place):
    return _scaled(place, _adamw)


@in_place_case("A GradScaler, clipping and a fused SGD.")
def scaler_with_fused_sgd(place):
    return _scaled(
        place, lambda model: _sgd(model, momentum=0.9, foreach=None, fused=True), clips=True
    )


@in_place_case("A GradScaler with SGD, which it asks the device for.")
def scaler_with_foreach_sgd(place):
    return _scaled(place, lambda model: _sgd(model, momentum=0.9), clips=True)


@in_place_case("A GradScaler for some steps, and none for others.")
def scaler_for_some_steps(place):
    model = made(place, Headed)
    optimizer = place.capture(_adamw(model))
    scaler = torch.amp.GradScaler(place.torch_device.type, init_scale=2.0**6, growth_interval=5)
    scheduler, losses = _decayed(optimizer), []
    for number, (x, y) in enumerate(batches(place, NUM)):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        if number // 5 % 2:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            loss.backward()
            optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    return losses, scaler.state_dict(), state(model, optimizer)


# -------------------------------------------------------------------------------- the object


@in_place_case("A copy of the optimizer goes its own way in the middle.")
def a_copy_is_made(place):
    model = made(place, Headed)
    optimizer = place.capture(_adamw(model))
    scheduler, losses, others = _decayed(optimizer), [], []
    for number, (x, y) in enumerate(batches(place, NUM)):
        losses.append(update(optimizer, F.cross_entropy(model(x), y)))
        scheduler.step()
        if number == 14:
            others += [copy.deepcopy((model, optimizer))]
        for its_model, its_optimizer in others:
            losses.append(update(its_optimizer, F.cross_entropy(its_model(x), y)))
    return losses, state(model, optimizer), [state(*pair) for pair in others]


@in_place_case("It is released in the middle, and captured again.", expect=either())
def released_and_captured_again(place):
    model = made(place, Headed)
    optimizer = place.capture(_adamw(model))
    scheduler, losses = _decayed(optimizer), []
    for number, (x, y) in enumerate(batches(place, NUM)):
        if number == 10:
            place.release(optimizer)
        if number == 16:
            place.capture(optimizer)
        losses.append(update(optimizer, F.cross_entropy(model(x), y)))
        scheduler.step()
    return losses, state(model, optimizer)


@in_place_case("Rates change for a while, stay for a while, and change again.")
def rates_change_now_and_then(place):
    model = mlp(place)
    optimizer = place.capture(_adamw(model))
    losses = []
    for number, (x, y) in enumerate(batches(place, 60)):
        if number < 5 or 20 <= number < 25 or number in (40, 50):
            optimizer.param_groups[0]["lr"] = 0.01 / (1 + number)
        losses.append(update(optimizer, F.cross_entropy(model(x), y)))
    return losses, state(model, optimizer)


@in_place_case("Another stream writes gradients, which the update waits for.", devices=(GPU,))
def gradients_of_another_stream(place):
    side, model = torch.Stream(place.torch_device), mlp(place)
    optimizer = place.capture(_adamw(model))
    scheduler, losses = _decayed(optimizer), []
    for x, y in batches(place, NUM):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        here = torch.accelerator.current_stream()
        side.wait_stream(here)
        with side:
            for one in model.parameters():
                one.grad.mul_(0.5)
        here.wait_stream(side)
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    return losses, state(model, optimizer)
