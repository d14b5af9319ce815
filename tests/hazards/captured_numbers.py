"""Loops in which rates and other numbers of the update change, and optimizers of all kinds."""

from __future__ import annotations

import copy
import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import lr_scheduler, swa_utils

from hazards.captured_harness import CAPTURED, EITHER, GPU, captured_case, refused
from hazards.captured_models import Headed, batches, kept, mlp, run, sgd, state, training_step


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


@captured_case("SGD.", expect=CAPTURED)
def plain_sgd(place):
    return trained(place, lambda parameters: torch.optim.SGD(parameters, lr=0.1))


@captured_case("SGD with Nesterov momentum, dampening of none, and weight decay.", expect=CAPTURED)
def nesterov(place):
    return trained(
        place,
        lambda parameters: torch.optim.SGD(
            parameters, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-3
        ),
    )


@captured_case("SGD with dampening, whose first update differs from all others.", expect=CAPTURED)
def dampened_momentum(place):
    return trained(
        place,
        lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, dampening=0.5),
    )


@captured_case("SGD with a fused kernel.", expect=CAPTURED)
def fused_sgd(place):
    return trained(
        place, lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, fused=True)
    )


@captured_case("Adam as people make it.", expect=CAPTURED)
def adam(place):
    return trained(place, lambda parameters: torch.optim.Adam(parameters, lr=3e-3), num=30)


@captured_case("AdamW as people make it, with betas of a language model.", expect=CAPTURED)
def adamw(place):
    return trained(
        place,
        lambda parameters: torch.optim.AdamW(
            parameters, lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1
        ),
        num=30,
    )


@captured_case("Adam with L2 decay, one tensor at a time.", expect=CAPTURED)
def adam_of_single_tensors(place):
    return trained(
        place,
        lambda parameters: torch.optim.Adam(parameters, lr=3e-3, weight_decay=1e-2, foreach=False),
        num=24,
    )


@captured_case("AdamW with a fused kernel.", expect=CAPTURED)
def fused_adamw(place):
    return trained(place, lambda parameters: torch.optim.AdamW(parameters, fused=True), num=24)


@captured_case("Adam with capturable=True.", expect=CAPTURED, devices=(GPU,))
def capturable_adam(place):
    return trained(place, lambda parameters: torch.optim.Adam(parameters, capturable=True))


@captured_case(
    "AdamW with capturable=True, a rate tensor filled outside.", expect=CAPTURED, devices=(GPU,)
)
def capturable_adamw_with_a_rate_tensor(place):
    rate = torch.tensor(1e-3, device=place.torch_device)
    return trained(
        place,
        lambda parameters: torch.optim.AdamW(parameters, lr=rate, capturable=True),
        change=lambda optimizer, number: rate.fill_(1e-3 / (1 + number)),
    )


@captured_case("AMSGrad with maximize.", expect=CAPTURED)
def amsgrad_that_maximizes(place):
    return trained(
        place,
        lambda parameters: torch.optim.AdamW(parameters, amsgrad=True, maximize=True),
        num=24,
    )


@captured_case("Centered RMSprop with momentum.", expect=CAPTURED)
def rmsprop(place):
    return trained(
        place,
        lambda parameters: torch.optim.RMSprop(parameters, lr=1e-3, centered=True, momentum=0.9),
    )


@captured_case("Adagrad with lr_decay, whose rate falls with its own count.", expect=EITHER)
def adagrad(place):
    return trained(
        place, lambda parameters: torch.optim.Adagrad(parameters, lr=0.1, lr_decay=0.1), num=24
    )


@captured_case("NAdam, whose product of momenta is a number of its own.", expect=EITHER)
def nadam(place):
    return trained(place, lambda parameters: torch.optim.NAdam(parameters, lr=1e-2), num=24)


@captured_case("RAdam, whose formula changes after some steps.", expect=EITHER)
def radam(place):
    return trained(place, lambda parameters: torch.optim.RAdam(parameters, lr=1e-2), num=24)


@captured_case("Adadelta.", expect=EITHER)
def adadelta(place):
    return trained(place, torch.optim.Adadelta, num=24)


@captured_case("Adamax.", expect=EITHER)
def adamax(place):
    return trained(place, torch.optim.Adamax, num=24)


@captured_case("ASGD, which averages from a step on that it counts itself.", expect=EITHER)
def averaged_sgd(place):
    return trained(place, lambda parameters: torch.optim.ASGD(parameters, t0=9), num=24)


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


@captured_case("Cosine annealing of Adam as people make it.", expect=CAPTURED)
def cosine_of_adam(place):
    return scheduled(
        place,
        lambda parameters: torch.optim.Adam(parameters, lr=1e-2),
        lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, T_max=30),
    )


@captured_case("A linear warm-up, then a cosine, of AdamW with a fused kernel.", expect=CAPTURED)
def sequence_of_schedules(place):
    def make_scheduler(optimizer):
        return lr_scheduler.SequentialLR(
            optimizer,
            [
                lr_scheduler.LinearLR(optimizer, start_factor=1 / 3, total_iters=10),
                lr_scheduler.CosineAnnealingLR(optimizer, T_max=20),
            ],
            milestones=[10],
        )

    return scheduled(
        place, lambda parameters: torch.optim.AdamW(parameters, fused=True), make_scheduler
    )


@captured_case("One cycle, which moves the rate and the momentum.", expect=CAPTURED)
def one_cycle_of_sgd(place):
    return scheduled(
        place,
        lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        lambda optimizer: lr_scheduler.OneCycleLR(optimizer, max_lr=0.2, total_steps=40),
    )


@captured_case("One cycle, which moves the rate and beta1 of AdamW.", expect=CAPTURED)
def one_cycle_of_adamw(place):
    return scheduled(
        place,
        lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
        lambda optimizer: lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=40),
    )


@captured_case("The rate falls by ten at two milestones.", expect=CAPTURED)
def milestones(place):
    return scheduled(
        place,
        lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        lambda optimizer: lr_scheduler.MultiStepLR(optimizer, milestones=[12, 22]),
    )


@captured_case("The rate falls when the loss stands still, which the loop reads.", expect=CAPTURED)
def rate_falls_on_a_plateau(place):
    model = mlp(place)
    optimizer = sgd(model)
    scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, patience=2, factor=0.3)
    step = place.capture(training_step(model, optimizer))
    losses, rates = [], []
    for one in batches(place, 30):
        losses.append(step(one).item())
        scheduler.step(losses[-1])
        rates.append(optimizer.param_groups[0]["lr"])
    return losses, rates, state(model, optimizer)


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


@captured_case("Each group's rate is set before every step: layer-wise decay.", expect=CAPTURED)
def rates_of_groups(place):
    model = Headed().to(place.torch_device)
    groups = [
        {"params": model.body.parameters(), "scale": 0.1},
        {"params": model.head.parameters(), "scale": 1.0, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, weight_decay=0.1)
    step = place.capture(training_step(model, optimizer))
    losses = []
    for number, one in enumerate(batches(place, 30)):
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * group["scale"] * min(1.0, (number + 1) / 10)
        losses += run(step, [one])
    return losses, state(model, optimizer)


@captured_case("Weight decay follows a cosine, as in self-distillation.", expect=CAPTURED)
def weight_decay_is_scheduled(place):
    def change(optimizer, number):
        for group in optimizer.param_groups:
            group["weight_decay"] = 0.4 - 0.36 * math.cos(math.pi * number / 30)

    return trained(
        place,
        lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, fused=True),
        change=change,
        num=30,
    )


@captured_case("Momentum is warmed up from 0.5 to 0.95.", expect=CAPTURED)
def momentum_is_scheduled(place):
    def change(optimizer, number):
        optimizer.param_groups[0]["momentum"] = min(0.95, 0.5 + 0.02 * number)

    return trained(
        place,
        lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.5),
        change=change,
        num=30,
    )


@captured_case("Betas change once in the middle of training.", expect=CAPTURED)
def betas_change(place):
    def change(optimizer, number):
        if number == 20:
            optimizer.param_groups[0]["betas"] = (0.8, 0.99)

    return trained(place, torch.optim.Adam, change=change, num=40)


@captured_case("The rate is zero for some steps, then what it was.", expect=CAPTURED)
def rate_is_zero_for_a_while(place):
    def change(optimizer, number):
        optimizer.param_groups[0]["lr"] = 0.0 if 8 <= number < 12 else 0.1

    return trained(
        place,
        lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        change=change,
        num=30,
    )


@captured_case("The rate is a tensor on the device, filled outside.", expect=CAPTURED)
def rate_tensor_filled_outside(place):
    rate = torch.tensor(0.1).to(place.torch_device)
    return trained(
        place,
        lambda parameters: torch.optim.SGD(parameters, lr=rate, momentum=0.9),
        change=lambda optimizer, number: rate.fill_(0.1 / (1 + number)),
    )


@captured_case("The rate is a tensor on the host, filled outside.", expect=EITHER)
def rate_tensor_on_the_host(place):
    rate = torch.tensor(0.1)
    return trained(
        place,
        lambda parameters: torch.optim.SGD(parameters, lr=rate),
        change=lambda optimizer, number: rate.fill_(0.1 / (1 + number)),
    )


@captured_case("The rate is a tensor that a schedule replaces by another.", expect=EITHER)
def rate_tensor_is_replaced(place):
    def change(optimizer, number):
        rate = torch.tensor(0.1 / (1 + number)).to(place.torch_device)
        optimizer.param_groups[0]["lr"] = rate

    return trained(
        place, lambda parameters: torch.optim.SGD(parameters, lr=0.1), change=change, num=20
    )


@captured_case(
    "The rate tensor is filled inside the step from a count of the loop.", expect=EITHER
)
def rate_tensor_filled_inside(place):
    model = mlp(place)
    rate = torch.tensor(0.1).to(place.torch_device)
    optimizer = sgd(model, lr=rate)
    number = 0

    def train(one):
        rate.fill_(0.1 / (1 + number))
        x, y = one
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    step = place.capture(train)
    losses = []
    for number, one in enumerate(batches(place, 18)):  # noqa: B007  # the step reads it
        losses += run(step, [one])
    return losses, rate, state(model, optimizer)


# ------------------------------------------------------------------------ updates by hand


LEARNING_RATE = 0.1


@captured_case("Weights are updated by hand with a global rate that halves once.", expect=CAPTURED)
def update_by_hand_with_a_global_rate(place):
    global LEARNING_RATE
    model = mlp(place)

    def train(one):
        x, y = one
        loss = F.cross_entropy(model(x), y)
        grads = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for parameter, grad in zip(model.parameters(), grads, strict=True):
                parameter -= LEARNING_RATE * grad
        return loss

    step = place.capture(train)
    LEARNING_RATE = 0.1
    losses = run(step, batches(place, 20))
    LEARNING_RATE = 0.05
    losses += run(step, batches(place, 20))
    return losses, state(model)


@captured_case(
    "`p.data.add_(p.grad, alpha=-lr)` with a rate that falls every step.", expect=EITHER
)
def update_by_hand_with_a_falling_rate(place):
    model = mlp(place)
    settings = {"lr": 0.1}

    def train(one):
        x, y = one
        model.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        for parameter in model.parameters():
            parameter.data.add_(parameter.grad.data, alpha=-settings["lr"])
        return loss

    step = place.capture(train)
    losses = []
    for one in batches(place, 18):
        losses += run(step, [one])
        settings["lr"] *= 0.95
    return losses, state(model)


class Lion(torch.optim.Optimizer):
    """The sign of a momentum, as people copy it into their project."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        del closure
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["average"] = torch.zeros_like(parameter)
                average, (beta1, beta2) = state["average"], group["betas"]
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                update = average.mul(beta1).add_(parameter.grad, alpha=1 - beta1).sign_()
                parameter.add_(update, alpha=-group["lr"])
                average.mul_(beta2).add_(parameter.grad, alpha=1 - beta2)


@captured_case("An optimizer of the project: Lion.", expect=CAPTURED)
def optimizer_of_the_project(place):
    return trained(place, lambda parameters: Lion(parameters, lr=1e-3, weight_decay=0.1))


@captured_case("An optimizer of the project under a cosine schedule.", expect=EITHER)
def optimizer_of_the_project_with_a_schedule(place):
    return scheduled(
        place, Lion, lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, T_max=30)
    )


class CountingAdam(torch.optim.Optimizer):
    """Adam that counts in its state, in Python, as many repositories have it."""

    def __init__(self, params, lr=1e-2):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        del closure
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["step"] = 0
                    state["square"] = torch.zeros_like(parameter)
                state["step"] += 1
                square = (
                    state["square"].mul_(0.99).addcmul_(parameter.grad, parameter.grad, value=0.01)
                )
                correction = 1 - 0.99 ** state["step"]
                denominator = (square / correction).sqrt_().add_(1e-8)
                parameter.addcdiv_(parameter.grad, denominator, value=-group["lr"])


@captured_case("An optimizer of the project counts its steps in Python.", expect=EITHER)
def optimizer_of_the_project_that_counts(place):
    return trained(place, CountingAdam, num=24)


class Lookahead:
    """Slow weights that follow the fast ones every k steps."""

    def __init__(self, optimizer, k=3, alpha=0.5):
        self.optimizer, self.k, self.alpha, self.counter = optimizer, k, alpha, 0
        self.slow = [
            parameter.detach().clone()
            for group in optimizer.param_groups
            for parameter in group["params"]
        ]

    def zero_grad(self):
        self.optimizer.zero_grad()

    def step(self):
        self.optimizer.step()
        self.counter += 1
        if self.counter % self.k == 0:
            self.follow()

    @torch.no_grad()
    def follow(self):
        fast = [one for group in self.optimizer.param_groups for one in group["params"]]
        for slow, parameter in zip(self.slow, fast, strict=True):
            slow.add_(parameter - slow, alpha=self.alpha)
            parameter.copy_(slow)


@captured_case(
    "Lookahead by hand counts in the step and copies every third time.",
    expect=refused("counter", at="self.counter += 1"),
)
def lookahead_inside(place):
    model = mlp(place)
    optimizer = Lookahead(sgd(model, momentum=0.9))
    step = place.capture(training_step(model, optimizer))
    losses = run(step, batches(place, 18))
    return losses, optimizer.slow, optimizer.counter, state(model, optimizer.optimizer)


@captured_case("Lookahead follows outside the step.", expect=CAPTURED)
def lookahead_outside(place):
    model = mlp(place)
    lookahead = Lookahead(sgd(model, momentum=0.9))
    step = place.capture(training_step(model, lookahead.optimizer))
    losses = []
    for number, one in enumerate(batches(place, 18)):
        losses += run(step, [one])
        if number % 3 == 2:
            lookahead.follow()
    return losses, lookahead.slow, state(model, lookahead.optimizer)


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


@captured_case("Gradients are clipped by value.", expect=CAPTURED)
def clipping_by_value(place):
    return _clipped(place, lambda parameters: nn.utils.clip_grad_value_(parameters, 0.05))


@captured_case(
    "Clipping must raise on gradients that are no numbers: a read in each step.", expect=refused()
)
def clipping_that_checks(place):
    return _clipped(
        place,
        lambda parameters: nn.utils.clip_grad_norm_(parameters, 0.5, error_if_nonfinite=True),
    )


@captured_case(
    "The largest norm is an attribute of the configuration that changes once.", expect=CAPTURED
)
def clipping_norm_changes(place):
    class Config:
        max_norm = 0.5

    model, config = mlp(place), Config()
    optimizer = sgd(model)

    def train(one):
        x, y = one
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), config.max_norm)
        optimizer.step()
        return loss

    step = place.capture(train)
    losses = run(step, batches(place, 20))
    config.max_norm = 0.05
    losses += run(step, batches(place, 20))
    return losses, state(model, optimizer)


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


@captured_case("Gradients accumulate; a flag in the batch says when to update.", expect=CAPTURED)
def accumulation_by_a_flag(place):
    model = mlp(place)
    optimizer = sgd(model, momentum=0.9)

    def train(one):
        loss = F.cross_entropy(model(one["x"]), one["y"]) / 3
        loss.backward()
        if one["last"]:
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
        return loss

    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    step = place.capture(train)
    losses = []
    for number, (x, y) in enumerate(batches(place, 45)):
        losses.append(kept(step({"x": x, "y": y, "last": number % 3 == 2})))
    return losses, state(model, optimizer)


@captured_case(
    "Gradients accumulate; the step counts by itself when to update.",
    expect=refused("num_seen", at="self.num_seen += 1"),
)
def accumulation_by_a_count(place):
    class Trainer:
        def __init__(self):
            self.model = mlp(place)
            self.optimizer = sgd(self.model)
            self.num_seen = 0

        def train(self, one):
            x, y = one
            loss = F.cross_entropy(self.model(x), y) / 4
            loss.backward()
            self.num_seen += 1
            if self.num_seen % 4 == 0:
                self.optimizer.step()
                self.optimizer.zero_grad()
            return loss

    trainer = Trainer()
    losses = run(place.capture(trainer.train), batches(place, 24))
    return losses, trainer.num_seen, state(trainer.model, trainer.optimizer)


@captured_case("An average of the weights is kept within the step.", expect=CAPTURED)
def average_within(place):
    model = mlp(place)
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = sgd(model)

    def train(one):
        x, y = one
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(average.parameters(), model.parameters(), strict=True):
                slow.lerp_(fast, 0.01)
        return loss

    losses = run(place.capture(train), batches(place, 16))
    return losses, state(average), state(model, optimizer)


@captured_case(
    "torch's AveragedModel is updated outside, and used for the evaluation.", expect=CAPTURED
)
def averaged_model_outside(place):
    model = mlp(place)
    average = swa_utils.AveragedModel(model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    step = place.capture(training_step(model, optimizer))
    losses, scores = [], []
    for number, one in enumerate(batches(place, 18)):
        losses += run(step, [one])
        average.update_parameters(model)
        if number % 6 == 5:
            with torch.no_grad():
                scores.append(average(one[0]))
    return losses, scores, state(average), state(model, optimizer)


@captured_case("torch's AveragedModel is updated within the step.", expect=EITHER)
def averaged_model_within(place):
    model = mlp(place)
    average = swa_utils.AveragedModel(model)
    optimizer = sgd(model)

    def train(one):
        x, y = one
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        average.update_parameters(model)
        return loss

    losses = run(place.capture(train), batches(place, 18))
    return losses, state(average), state(model, optimizer)


@captured_case("Stochastic weight averaging at the end, with its own schedule.", expect=CAPTURED)
def stochastic_weight_averaging(place):
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 4))
    model.to(place.torch_device)
    average = swa_utils.AveragedModel(model)
    optimizer = sgd(model, momentum=0.9)
    schedule = swa_utils.SWALR(optimizer, swa_lr=0.05, anneal_epochs=3)
    step = place.capture(training_step(model, optimizer))
    losses = []
    for epoch in range(4):
        losses += run(step, batches(place, 8))
        if epoch > 1:
            average.update_parameters(model)
            schedule.step()
    swa_utils.update_bn([x for x, _ in batches(place, 4)], average)
    return losses, state(average), state(model, optimizer)


# ----------------------------------------------------------- the optimizer's state by hand


@captured_case("Momentum is zeroed in place at the start of each epoch.", expect=CAPTURED)
def momentum_is_zeroed(place):
    def change(optimizer, number):
        if number % 6 == 5:
            for state_of_one in optimizer.state.values():
                state_of_one["momentum_buffer"].zero_()

    return trained(
        place,
        lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
        change=change,
        num=18,
    )


@captured_case("Momentum is replaced by new tensors of zeros.", expect=CAPTURED)
def momentum_is_replaced(place):
    def change(optimizer, number):
        if number == 20:
            for state_of_one in optimizer.state.values():
                old = state_of_one["momentum_buffer"]
                state_of_one["momentum_buffer"] = torch.zeros_like(old)
                old.fill_(1e9)

    return trained(
        place,
        lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
        change=change,
        num=40,
    )


@captured_case("The optimizer's state is cleared: Adam begins again at step 1.", expect=EITHER)
def optimizer_state_is_cleared(place):
    def change(optimizer, number):
        if number in (14, 28):
            optimizer.state.clear()

    return trained(
        place, lambda parameters: torch.optim.Adam(parameters, lr=1e-2), change=change, num=42
    )


@captured_case("The optimizer is rolled back by load_state_dict.", expect=CAPTURED)
def optimizer_is_rolled_back(place):
    saved = {}

    def change(optimizer, number):
        if number == 14:
            saved.update(copy.deepcopy(optimizer.state_dict()))
        if number == 20:
            optimizer.load_state_dict(saved)

    return trained(
        place, lambda parameters: torch.optim.AdamW(parameters, lr=1e-2), change=change, num=40
    )


@captured_case("The count of Adam is set by hand.", expect=EITHER)
def count_of_adam_is_set(place):
    def change(optimizer, number):
        if number == 14:
            for state_of_one in optimizer.state.values():
                state_of_one["step"].fill_(1000.0)

    return trained(
        place, lambda parameters: torch.optim.Adam(parameters, lr=1e-2), change=change, num=30
    )


@captured_case("Two optimizers: one for weights, one for biases.", expect=CAPTURED)
def two_optimizers(place):
    model = mlp(place)
    weights = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    biases = [parameter for parameter in model.parameters() if parameter.ndim == 1]
    first = torch.optim.AdamW(weights, lr=1e-2)
    second = torch.optim.SGD(biases, lr=0.1, momentum=0.9)

    def train(one):
        x, y = one
        first.zero_grad()
        second.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        first.step()
        second.step()
        return loss

    losses = run(place.capture(train), batches(place, 18))
    return losses, state(model, first, second)


@captured_case(
    "A hook of the optimizer counts its steps.", expect=refused("calls", at="calls.append")
)
def hook_of_the_optimizer(place):
    model, calls = mlp(place), []
    optimizer = sgd(model)
    optimizer.register_step_post_hook(lambda *told: calls.append(len(told)))
    step = place.capture(training_step(model, optimizer))
    return run(step, batches(place, 14)), calls, state(model, optimizer)


@captured_case("The weight of a loss is annealed before every step.", expect=EITHER)
def weight_of_a_loss_is_annealed(place):
    class Annealed:
        beta = 0.0

        def __init__(self):
            self.model = mlp(place)
            self.optimizer = sgd(self.model)

        def train(self, one):
            x, y = one
            self.optimizer.zero_grad()
            scores = self.model(x)
            loss = F.cross_entropy(scores, y) + self.beta * scores.square().mean()
            loss.backward()
            self.optimizer.step()
            return loss

    annealed = Annealed()
    step = place.capture(annealed.train)
    losses = []
    for number, one in enumerate(batches(place, 24)):
        annealed.beta = min(1.0, number / 10)
        losses += run(step, [one])
    return losses, state(annealed.model, annealed.optimizer)


@captured_case("A falling rate over forty calls without a wait.", expect=EITHER, waits=False)
def falling_rate_without_a_wait(place):
    model = mlp(place)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    schedule = lr_scheduler.ExponentialLR(optimizer, gamma=0.97)
    step = place.capture(training_step(model, optimizer))
    losses = []
    for one in batches(place, 44):
        losses.append(step(one).detach())
        schedule.step()
    return losses, state(model, optimizer)


@captured_case(
    "A cosine of SGD over sixty calls, the loss read every tenth.", expect=CAPTURED, waits=False
)
def cosine_with_a_read_every_tenth(place):
    model = mlp(place)
    optimizer = sgd(model, momentum=0.9)
    schedule = lr_scheduler.CosineAnnealingLR(optimizer, T_max=60)
    step = place.capture(training_step(model, optimizer))
    losses = []
    for number, one in enumerate(batches(place, 60)):
        loss = step(one)
        schedule.step()
        if number % 10 == 0:
            losses.append(loss.item())
    return losses, state(model, optimizer)
