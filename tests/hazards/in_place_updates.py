"""Captured optimizers: their kinds, their schedulers, their state, and who else writes the weights."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_
from torch.optim import lr_scheduler
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn

from hazards.captured_models import Headed, batch, batches, kept, mlp, sgd, state
from hazards.harness import CPU, GPU
from hazards.in_place_harness import captured, either, in_place_case, refused
from hazards.in_place_models import NUM, Normed, fit, made, through_a_file, tokens, update


# ------------------------------------------------------------------------------- their kinds


def _of_kind(place, optimizer_of, *, num=24):
    model = mlp(place)
    optimizer = place.capture(optimizer_of(model.parameters()))
    return fit(place, model, optimizer, num), state(model, optimizer)


@in_place_case("SGD with Nesterov momentum, weight decay and dampened groups.")
def sgd_of_all_kinds(place):
    model = made(place, Headed)
    groups = [
        {"params": model.body.parameters(), "momentum": 0.9, "nesterov": True},
        {"params": model.head.parameters(), "lr": 0.2, "weight_decay": 0.01},
    ]
    optimizer = place.capture(torch.optim.SGD(groups, lr=0.1))
    return fit(place, model, optimizer), state(model, optimizer)


@in_place_case("Fused AdamW.")
def fused_adamw(place):
    return _of_kind(place, lambda weights: torch.optim.AdamW(weights, lr=1e-2, fused=True))


@in_place_case("Fused Adam with amsgrad and weight decay.")
def fused_adam_with_amsgrad(place):
    return _of_kind(
        place,
        lambda weights: torch.optim.Adam(weights, amsgrad=True, weight_decay=0.01, fused=True),
    )


@in_place_case(
    "AdamW as people make it, with no word of fused or capturable.", expect=either("fused")
)
def adamw_as_people_make_it(place):
    return _of_kind(place, lambda weights: torch.optim.AdamW(weights, lr=1e-2))


@in_place_case("Adam with a tensor rate and capturable=True.", devices=(GPU,))
def capturable_adam(place):
    rate = torch.tensor(1e-2, device=place.torch_device)
    return _of_kind(place, lambda weights: torch.optim.Adam(weights, lr=rate, capturable=True))


@in_place_case("RMSprop, centered, with momentum.", expect=either("RMSprop"))
def rmsprop(place):
    return _of_kind(
        place, lambda weights: torch.optim.RMSprop(weights, momentum=0.5, centered=True)
    )


@in_place_case("Adagrad, whose rate falls by a count of steps.", expect=either("Adagrad"))
def adagrad(place):
    return _of_kind(place, lambda weights: torch.optim.Adagrad(weights, lr_decay=0.1))


@in_place_case("SGD without foreach, one weight after the other.", expect=either())
def sgd_without_foreach(place):
    return _of_kind(
        place, lambda weights: torch.optim.SGD(weights, lr=0.1, momentum=0.9, foreach=False)
    )


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


class SignDescent(torch.optim.Optimizer):
    """Descends by the sign of a running mean, and warms up over ten steps: Lion, by hand."""

    def __init__(self, params, lr=0.01):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                known = self.state[weight]
                mean = known.setdefault("mean", torch.zeros_like(weight))
                mean.lerp_(weight.grad, 0.1)
                weight.add_(mean.sign(), alpha=-group["lr"])


class CountingDescent(SignDescent):
    """Warms up by a Python count of its own."""

    def step(self, closure=None):
        for group in self.param_groups:
            group["count"] = group.get("count", 0) + 1  # a host write of every step
            group["lr"] = 0.01 * min(1.0, group["count"] / 10)
        return super().step(closure)


@in_place_case("A user's own optimizer, whose state is tensors alone.")
def own_optimizer(place):
    return _of_kind(place, SignDescent)


@in_place_case(
    "A user's own optimizer, which counts its steps in Python and warms up by them.",
    expect=refused("count", at='group["count"] = group.get("count", 0) + 1'),
)
def own_optimizer_that_counts(place):
    return _of_kind(place, CountingDescent)


@in_place_case(
    "An embedding gives sparse gradients, to SparseAdam.",
    expect=either("sparse"),
    devices=(CPU, GPU),
)
def sparse_gradients(place):
    model = place.capture(made(place, nn.EmbeddingBag, 11, 4, mode="sum", sparse=True))
    optimizer = place.capture(torch.optim.SparseAdam(model.parameters(), lr=0.05))
    losses = []
    for number in range(NUM):
        ids, y = tokens(place, number, 6, 3), batch(place, number)[1]
        losses.append(update(optimizer, F.cross_entropy(model(ids), y)))
    return losses, model.weight.grad.coalesce(), model.weight, optimizer.state_dict()


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


@in_place_case("StepLR, made before the capture, steps at the end of each epoch.")
def scheduler_made_before(place):
    return _scheduled(
        place, lambda one: lr_scheduler.StepLR(one, 1, gamma=0.5), before=True, num=48
    )


@in_place_case(
    "A cosine, made after the capture, sets another rate in every step.", expect=captured("model")
)
def scheduler_made_after(place):
    return _scheduled(place, lambda one: lr_scheduler.CosineAnnealingLR(one, 24), before=False)


@in_place_case("OneCycle moves rate and momentum in every step.", expect=captured("model"))
def one_cycle(place):
    def schedule(optimizer):
        return lr_scheduler.OneCycleLR(optimizer, max_lr=0.3, total_steps=30)

    return _scheduled(place, schedule, before=True)


@in_place_case("A warm-up and a plateau read the loss.", expect=captured("model"))
def plateau(place):
    def schedule(optimizer):
        return lr_scheduler.ReduceLROnPlateau(optimizer, patience=1, factor=0.5)

    return _scheduled(place, schedule, before=False)


@in_place_case(
    "A scheduler that steps before the optimizer warns, as written.", expect=captured("model")
)
def scheduler_steps_first(place):
    model = place.capture(mlp(place))
    optimizer = place.capture(sgd(model))
    scheduler = lr_scheduler.LambdaLR(optimizer, lambda epoch: 1 / (1 + epoch // 10))
    losses = []
    for number in range(4):
        scheduler.step()
        losses += fit(place, model, optimizer, 6, start=6 * number)
    return losses, scheduler.get_last_lr(), state(model, optimizer)


@in_place_case(
    "The loop writes the rate of a group by hand, a warm-up and then steps.",
    expect=captured("model"),
)
def rate_by_hand(place):
    model = place.capture(mlp(place))
    optimizer = place.capture(torch.optim.AdamW(model.parameters(), lr=0.0, fused=True))
    losses = []
    for number, (x, y) in enumerate(batches(place, 36)):
        for group in optimizer.param_groups:
            group["lr"] = 0.01 * min(1.0, (number + 1) / 8)
            group["weight_decay"] = 0.1 if number < 24 else 0.0
        losses.append(update(optimizer, F.cross_entropy(model(x), y)))
    return losses, state(model, optimizer)


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


@in_place_case("The optimizer's state is read while training: norms of momenta.")
def state_is_read(place):
    model = mlp(place)
    optimizer = place.capture(torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True))
    losses, seen = [], []
    for x, y in batches(place, NUM):
        losses.append(update(optimizer, F.cross_entropy(model(x), y)))
        known = [optimizer.state[one] for one in model.parameters()]
        seen.append([(one["step"].item(), one["exp_avg"].norm().item()) for one in known])
    return losses, seen, state(model, optimizer)


@in_place_case("The optimizer's state is changed by hand, and thrown away in the middle.")
def state_is_changed(place):
    model = mlp(place)
    optimizer = place.capture(sgd(model, momentum=0.9))
    losses = fit(place, model, optimizer, 14)
    for known in optimizer.state.values():
        known["momentum_buffer"].mul_(0.1)
    losses += fit(place, model, optimizer, 10)
    optimizer.state.clear()
    losses += fit(place, model, optimizer, 14)
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


@in_place_case("state_dict is kept without a copy: its tensors go on changing.")
def state_dict_is_kept(place):
    model = mlp(place)
    optimizer = place.capture(sgd(model, momentum=0.9))
    losses = fit(place, model, optimizer, 10)
    early = optimizer.state_dict(), copy.deepcopy(optimizer.state_dict())
    losses += fit(place, model, optimizer, 10)
    return losses, early, state(model, optimizer)


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


@in_place_case("Some steps are skipped, and some weights have no gradient in some steps.")
def some_without_gradients(place):
    model = made(place, Headed)
    optimizer = place.capture(sgd(model, momentum=0.9, weight_decay=0.1))
    losses = []
    for number, (x, y) in enumerate(batches(place, 36)):
        optimizer.zero_grad()
        hidden = F.relu(model.body(x))
        loss = F.cross_entropy(model.head(hidden.detach() if number % 3 == 1 else hidden), y)
        loss.backward()
        if number % 9 != 8:
            optimizer.step()
        losses.append(loss.item())
    return losses, state(model, optimizer)


@in_place_case("Two optimizers of one model step in turns, and two on disjoint parts at once.")
def several_optimizers(place):
    model = place.capture(made(place, Headed))
    body = place.capture(sgd(model.body, momentum=0.9), name="body's optimizer")
    head = place.capture(
        torch.optim.AdamW(model.head.parameters(), lr=1e-2, fused=True), name="head's optimizer"
    )
    whole = place.capture(sgd(model, lr=0.01), name="whole optimizer")
    losses = []
    for number, (x, y) in enumerate(batches(place, 40)):
        model.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        if number % 2:
            whole.step()
        else:
            body.step()
            head.step()
        losses.append(loss.item())
    return losses, state(model, body, head, whole)


# ----------------------------------------------------------------- others who write weights


@in_place_case("An average of the weights follows by deepcopy and lerp, and is evaluated.")
def average_by_lerp(place):
    model = place.capture(made(place, Normed))
    optimizer = place.capture(sgd(model))
    average, losses, scores = copy.deepcopy(model).eval().requires_grad_(False), [], []
    for number in range(24):
        losses += fit(place, model, optimizer, 1, start=number)
        with torch.no_grad():
            for one, other in zip(average.parameters(), model.parameters(), strict=True):
                one.lerp_(other.detach(), 0.1)
            for one, other in zip(average.buffers(), model.buffers(), strict=True):
                one.copy_(other)
            if number % 4 == 3:
                scores.append(average(batch(place, 90)[0]))
    return losses, scores, state(average), state(model, optimizer)


@in_place_case("torch's AveragedModel is made of a captured model, and its batch norm updated.")
def averaged_model(place):
    model = place.capture(made(place, Normed))
    optimizer = place.capture(sgd(model))
    average, losses = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9)), []
    for number in range(24):
        losses += fit(place, model, optimizer, 1, start=number)
        average.update_parameters(model)
    update_bn([batch(place, 60 + number)[0] for number in range(3)], average)
    return losses, state(average), state(model, optimizer)


@in_place_case("Weight decay by hand, under no_grad, before every step, and a max-norm after it.")
def weights_are_changed_by_hand(place):
    model = place.capture(mlp(place))
    optimizer = place.capture(sgd(model))
    losses = []
    for x, y in batches(place, NUM):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        with torch.no_grad():
            for one in model.parameters():
                one.mul_(1 - 0.01)
        optimizer.step()
        with torch.no_grad():
            model[0].weight.copy_(torch.renorm(model[0].weight, 2, 0, 0.8))
        losses.append(loss.item())
    return losses, state(model, optimizer)


@in_place_case(
    "Weights are moved between forward and backward, which torch refuses.", expect=either()
)
def weights_are_changed_between_forward_and_backward(place):
    model = place.capture(mlp(place))
    optimizer, found = sgd(model), []
    for number, (x, y) in enumerate(batches(place, 24)):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        if number % 6 == 5:
            with torch.no_grad():
                model[3].weight.mul_(0.99)
        try:
            loss.backward()
            optimizer.step()
        except RuntimeError as error:
            found.append("modified by an inplace operation" in str(error))
        found.append(loss.item())
    return found, state(model, optimizer)


@in_place_case("SAM: weights climb, a second forward and backward, back, and the step.")
def sharpness_aware(place):
    model = place.capture(mlp(place))
    optimizer = place.capture(sgd(model))
    losses = []
    for x, y in batches(place, NUM):
        optimizer.zero_grad()
        first = F.cross_entropy(model(x), y)
        first.backward()
        norm = clip_grad_norm_(model.parameters(), 1e9)
        climbs = [0.05 * one.grad / norm for one in model.parameters()]
        with torch.no_grad():
            for one, climb in zip(model.parameters(), climbs, strict=True):
                one.add_(climb)
        optimizer.zero_grad()
        second = F.cross_entropy(model(x), y)
        second.backward()
        with torch.no_grad():
            for one, climb in zip(model.parameters(), climbs, strict=True):
                one.sub_(climb)
        optimizer.step()
        losses.append((first.item(), second.item()))
    return losses, state(model, optimizer)


@in_place_case("zero_grad of all kinds, and gradients looked at after it.")
def zero_grad_of_all_kinds(place):
    model = place.capture(mlp(place))
    optimizer = place.capture(sgd(model, momentum=0.9))
    losses, seen = [], []
    for number, (x, y) in enumerate(batches(place, 36)):
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        if number % 3 == 0:
            optimizer.zero_grad(set_to_none=True)
        elif number % 3 == 1:
            optimizer.zero_grad(set_to_none=False)
        else:
            for one in model.parameters():
                one.grad = None
        seen.append(
            [one.grad if one.grad is None else kept(one.grad) for one in model.parameters()]
        )
        losses.append(loss.item())
    return losses, seen, state(model, optimizer)
