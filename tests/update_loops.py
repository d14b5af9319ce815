"""Loops that train as written or by graphs whose updates `Updates` has captured or cut out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from gapless.graphs.update_outside import Updates
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


def train(device, make, *, captured, rates="exact", between=None, num=9, kind=Trainee):
    """Train for some steps; return what came of it.

    Args:
        device: where to train; the current stream must not be the default one.
        make: takes the weights; returns the optimizer.
        captured: capture the step after its warm-up.
        rates: as of `Updates`.
        between: called with the trainee and the number of the step before each.
        num: number of steps.
        kind: of trainee.
    """
    trainee = kind(device, make)
    updates, graph, outcome, losses = Updates(device, rates=rates), None, Outcome([]), []
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
                    updates.number_changed(change.optimizer)
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


def halve_the_rate(trainee, number):
    """Change the rate of all groups, from the fifth step on."""
    if number >= 4:
        for group in trainee.optimizer.param_groups:
            group["lr"] *= 0.9
