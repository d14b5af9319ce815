"""Loops that train as written or by graphs whose updates `Updates` has captured or cut out."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch.optim.lr_scheduler import ExponentialLR

from gapless.graphs.updates.update_outside import Updates
from toy_steps import on


NUM_WARM_UP = 2


class Trainee:
    """A small model, its optimizer, and a step on a static batch.

    Args:
        device: where it trains.
        make: takes the weights; returns the optimizer, or several.
    """

    def __init__(self, device, make):
        torch.manual_seed(0)
        self.device = device
        self.model = torch.nn.Sequential(
            torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)
        )
        for weight in self.model.parameters():
            weight.data = on(device, weight.data)
        self.x = on(device, torch.zeros(5, 3))
        self.loss = on(device, torch.zeros(()))
        self.average = [on(device, weight.detach()) for weight in self.model.parameters()]
        self.optimizer = make(list(self.model.parameters()))

    def step(self):
        """Train; note the loss, and after the update an average of the weights."""
        self.optimizer.zero_grad()
        loss = self.model(self.x).square().mean()
        loss.backward()
        self.optimizer.step()
        with torch.no_grad():
            self.loss.copy_(loss)
            torch._foreach_lerp_(self.average, list(self.model.parameters()), 0.5)


class Scheduled(Trainee):
    """A trainee whose rate a scheduler sets, after the step."""

    def __init__(self, device, make):
        super().__init__(device, make)
        self.scheduler = ExponentialLR(self.optimizer, 0.8)


class WithClosure(Trainee):
    """A step that leaves the backward pass to a closure."""

    def step(self):
        def closure():
            self.optimizer.zero_grad()
            loss = self.model(self.x).square().mean()
            loss.backward()
            return loss

        loss = self.optimizer.step(closure)
        with torch.no_grad():
            self.loss.copy_(loss)


class Adversaries(Trainee):
    """Two models whose optimizers are called in one step, the first one twice."""

    def __init__(self, device, make):
        super().__init__(device, make)
        self.critic = torch.nn.Linear(1, 1)
        for weight in self.critic.parameters():
            weight.data = on(device, weight.data)
        self.other = torch.optim.Adam(self.critic.parameters(), lr=0.1)

    def step(self):
        for _ in range(2):
            self.other.zero_grad()
            self.critic(self.model(self.x).detach()).square().mean().backward()
            self.other.step()
        self.optimizer.zero_grad()
        loss = self.critic(self.model(self.x)).mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        with torch.no_grad():
            self.loss.copy_(loss)


@dataclass
class Outcome:
    """What a loop has computed.

    Attributes:
        values: losses, weights, averages and state, as lists of numbers.
        captured: what was captured, one for each graph.
        trainee: what was trained.
    """

    values: list[Any]
    captured: list[Any] = field(default_factory=list)
    trainee: Any = None


def values_of(trainee):
    """Return the numbers of the optimizer's state, in order."""
    return [
        part.tolist() if isinstance(part, torch.Tensor) else part
        for state in trainee.optimizer.state.values()
        for part in state.values()
    ]


def train(device, make, *, captured, between=None, num=9, kind=Trainee):
    """Train for some steps; return what came of it.

    Args:
        device: where to train; the current stream must not be the default one.
        make: takes the weights; returns the optimizer.
        captured: capture the step after its warm-up.
        between: called with the trainee and the number of the step before each.
        num: number of steps.
        kind: of trainee.
    """
    trainee = kind(device, make)
    updates, graph, outcome, losses = Updates(device), None, Outcome([]), []
    gradients = []

    def capture():
        def work(cut):
            with updates.during_capture(cut) as found:
                trainee.step()
            outcome.captured.append(found)

        graph = device.capture(work)
        gradients[:] = [(weight, weight.grad) for weight in trainee.model.parameters()]
        return graph

    for number in range(num):
        generator = torch.Generator().manual_seed(number)
        trainee.x.copy_(on(device, torch.randn(5, 3, generator=generator)))
        if between is not None:
            between(trainee, number)
        if not captured:
            trainee.step()
        elif number < NUM_WARM_UP:
            with updates.watch():
                trainee.step()
            assert updates.objection() is None
        else:
            if graph is not None and (change := outcome.captured[-1].changed()) is not None:
                if change.is_number:
                    updates.number_changed(change.optimizer, change.name)
                graph = None
            graph = graph or capture()
            outcome.captured[-1].before_replay()
            graph.replay()
            for weight, gradient in gradients:
                weight.grad = gradient
        losses.append(trainee.loss.tolist())
    outcome.values = [
        losses,
        [weight.detach().tolist() for weight in trainee.model.parameters()],
        [weight.tolist() for weight in trainee.average],
        values_of(trainee),
    ]
    outcome.trainee = trainee
    return outcome


def train_both_ways(device, make, **how):
    """Train as written and with the step captured; return what came of both."""
    return [train(device, make, captured=captured, **how) for captured in (False, True)]


def halve_the_rate(trainee, number):
    """Change the rate of all groups, from the fifth step on."""
    if number >= 4:
        for group in trainee.optimizer.param_groups:
            group["lr"] *= 0.9


# --- optimizers ---


class OwnSGD(torch.optim.SGD):
    """A subclass, which may do anything in its step."""


class CountsItself(torch.optim.Optimizer):
    """An optimizer of others that uses a new Python number at every step."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})
        self.num_steps = 0

    @torch.no_grad()
    def step(self, closure=None):
        self.num_steps += 1
        for group in self.param_groups:
            for weight in group["params"]:
                weight.sub_(weight.grad, alpha=group["lr"] / self.num_steps)


def two_groups(params, kind, **options):
    return kind([{"params": params[:2]}, {"params": params[2:], "lr": 0.02}], lr=0.1, **options)


optim = torch.optim
# On a GPU and on the simulated device: what is captured inside a graph, and what is cut out.
INSIDE = {
    "SGD": partial(optim.SGD, lr=0.1),
    "SGD with all options": partial(
        optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=True, maximize=True
    ),
    "SGD, foreach": partial(optim.SGD, lr=0.1, momentum=0.9, dampening=0.1, foreach=True),
    "SGD, loop": partial(optim.SGD, lr=0.1, momentum=0.9, foreach=False),
    "SGD, fused": partial(optim.SGD, lr=0.1, momentum=0.9, fused=True),
    "SGD, two groups": partial(two_groups, kind=optim.SGD, momentum=0.9),
    "Adam, fused": partial(optim.Adam, lr=0.1, fused=True),
    "AdamW, fused": partial(optim.AdamW, lr=0.1, amsgrad=True, fused=True),
    "AdamW, fused, two groups": partial(two_groups, kind=optim.AdamW, fused=True),
}
# Inside, but for the operations that take the rate.
BUT_RATES = {
    "RMSprop": partial(optim.RMSprop, lr=0.01, momentum=0.9, centered=True),
    "RMSprop, foreach": partial(optim.RMSprop, lr=0.01, weight_decay=0.1, foreach=True),
    "RMSprop, loop": partial(optim.RMSprop, lr=0.01, maximize=True, foreach=False),
    "Adadelta": partial(optim.Adadelta, lr=1),
    "Adadelta, foreach": partial(optim.Adadelta, lr=0.1, maximize=True, foreach=True),
    "Adadelta, two groups": partial(two_groups, kind=optim.Adadelta, foreach=True),
    # 1 - lr * weight_decay is beta2: one is of the rate, the other is not.
    "AdamW, foreach": partial(optim.AdamW, lr=0.1, weight_decay=0.01, foreach=True),
    "Adam, foreach": partial(
        optim.Adam, lr=0.1, amsgrad=True, maximize=True, weight_decay=0.1, foreach=True
    ),
    "AdamW, two groups": partial(two_groups, kind=optim.AdamW, foreach=True),
}
OUTSIDE = {
    "Adam": partial(optim.Adam, lr=0.1),
    "Adam, two groups": partial(two_groups, kind=optim.Adam),
    "AdamW, loop": partial(optim.AdamW, lr=0.1, foreach=False),
    "Adagrad": partial(optim.Adagrad, lr=0.1, lr_decay=0.1),
    "Rprop": partial(optim.Rprop, lr=0.01),
    "Adamax": partial(optim.Adamax, lr=0.1),
    "NAdam": partial(optim.NAdam, lr=0.1),
    "RAdam": partial(optim.RAdam, lr=0.1),
    "a subclass": partial(OwnSGD, lr=0.1, momentum=0.9),
    "of others": CountsItself,
}
