"""Loops over micro-batches: their gradients, who keeps them, and what updates read.

Each takes the device and a function that captures a step, or leaves it as it is, and returns all that it
leaves, call by call.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F


OPTIMIZERS = {
    "sgd": lambda weights: torch.optim.SGD(weights, lr=0.05, momentum=0.9),
    "fused sgd": lambda weights: torch.optim.SGD(weights, lr=0.05, fused=True),
    "adam": lambda weights: torch.optim.Adam(weights, lr=0.01),
    "fused adam": lambda weights: torch.optim.Adam(weights, lr=0.01, fused=True),
    "rmsprop": lambda weights: torch.optim.RMSprop(weights, lr=0.01),
}

NUM_CALLS = 26


def bits(value):
    """Return a value with its tensors as they are now."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: bits(one) for key, one in value.items()}
    return [bits(one) for one in value] if isinstance(value, list | tuple) else value


def are_equal(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(are_equal(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(are_equal, one, other))
    return one == other


def differing(expected, found):
    """Return the numbers of the calls that left something else."""
    pairs = zip(expected, found, strict=True)
    return [number for number, pair in enumerate(pairs) if not are_equal(*pair)]


def batches_of(device, sizes):
    for number, size in enumerate(sizes):
        generator = torch.Generator().manual_seed(number)
        x = torch.randn(size, 4, generator=generator)
        y = torch.randint(0, 3, (size,), generator=generator)
        yield x.to(device), y.to(device)


def one_step(capture, micro, _):
    return capture(micro)


def two_steps(capture, micro, _):
    steps = [capture(partial(micro, is_last=False)), capture(partial(micro, is_last=True))]
    return lambda x, y, is_last: steps[is_last](x, y)


def optimizer_in_place(capture, micro, optimizer):
    backward = capture(partial(micro, is_last=False))
    capture(optimizer)

    def step(x, y, is_last):
        loss = backward(x, y)
        if is_last:
            optimizer.step()
            optimizer.zero_grad()
        return loss

    return step


HOW = {
    "one step": one_step,
    "two steps": two_steps,
    "optimizer in place": optimizer_in_place,
}


def accumulation(name, pattern, how):
    """The last micro-batch updates weights by an update that may run between two segments."""

    def loop(device, capture):
        torch.manual_seed(5)
        model = nn.Linear(4, 3).to(device)
        optimizer = OPTIMIZERS[name](model.parameters())

        def micro(x, y, is_last):
            loss = F.cross_entropy(model(x), y) / 3
            loss.backward()
            if is_last:
                optimizer.step()
                optimizer.zero_grad()
            return loss

        step = HOW[how](capture, micro, optimizer)
        left = []
        for number, batch in enumerate(batches_of(device, [6] * 2 * NUM_CALLS)):
            loss = step(*batch, pattern[number % len(pattern)] == "T")
            left.append(bits([loss, list(model.parameters())]))
        return [*left, bits(optimizer.state_dict())]

    return loop


def two_heads(device, capture):
    """A head comes later, and the graph that was captured before knows nothing of it."""
    torch.manual_seed(5)
    trunk, heads = nn.Linear(4, 8).to(device), nn.ModuleList([nn.Linear(8, 3), nn.Linear(8, 3)])
    heads.to(device)
    optimizer = torch.optim.SGD([*trunk.parameters(), *heads.parameters()], lr=0.1)

    def backward(x, y, task):
        hidden = torch.tanh(trunk(x)).exp().log().sin()
        loss = F.cross_entropy(heads[task](hidden), y)
        loss.backward()
        return loss

    step, left = capture(backward), []
    for number, batch in enumerate(batches_of(device, [6] * NUM_CALLS)):
        tasks = [0] if number < 6 else [1, 0]
        losses = [step(*batch, task) for task in tasks]
        left.append(bits([losses, [head.weight.grad for head in heads]]))
        optimizer.step()
        optimizer.zero_grad()
        left.append(bits([*trunk.parameters(), *heads.parameters()]))
    return left


def gradients_of_another(device, capture):
    """A second model takes over gradients of the first, as workers do that share weights."""
    torch.manual_seed(5)
    model, shared = nn.Linear(4, 3).to(device), nn.Linear(4, 3).to(device)
    optimizer = torch.optim.SGD(shared.parameters(), lr=0.1)

    def backward(x, y):
        model.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    step, left = capture(backward), []
    for number, batch in enumerate(batches_of(device, [6, 6, 9] * NUM_CALLS)):
        loss = step(*batch)
        if number % 4 == 0:
            for ours, theirs in zip(shared.parameters(), model.parameters(), strict=True):
                ours.grad = theirs.grad
            model.zero_grad()
        left.append(bits([loss, [weight.grad for weight in shared.parameters()]]))
        if number % 4 == 3:
            optimizer.step()
    return left


def gradients_in_a_backward_pass_to_come(device, capture):
    """The loop computes with gradients, and differentiates that when the next step is done."""
    torch.manual_seed(5)
    model, factor = nn.Linear(4, 3).to(device), nn.Parameter(torch.ones(3, 4).to(device))

    def backward(x, y):
        model.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    step, left, pending = capture(backward), [], None
    for batch in batches_of(device, [6, 6, 9] * NUM_CALLS):
        loss = step(*batch)
        if pending is not None:
            pending.backward()
        pending = (factor * model.weight.grad).sum()
        left.append(bits([loss, factor.grad]))
    return left


def cosines(keep):
    """Of gradients with those of the step before, which had more rows or fewer."""

    def loop(device, capture):
        torch.manual_seed(5)
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def train(x, y):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            return loss

        step, left, former = capture(train), [], []
        for batch in batches_of(device, [8, 8, 8, 5] * 8):
            step(*batch)
            grads = [keep(weight.grad) for weight in model.parameters()]
            pairs = zip(grads, former, strict=False)
            left.append(bits([torch.sum(new * old) for new, old in pairs]))
            former = grads
        return left

    return loop


@dataclass
class Program:
    """What a micro-step does, and what the loop does with the gradients that it finds.

    Attributes:
        names: of the optimizers: of both layers, or one for each.
        zero: where gradients are let go of.
        to_none: whether they are None then.
        clips: the last micro-batch clips gradients.
        updates_outside: the loop updates weights, not the step.
        pattern: of first and last micro-batches.
        keep: what the loop does with gradients, every so many calls.
        every: how many.
        returned: what the step returns.
    """

    names: list[str]
    zero: str
    to_none: bool
    clips: bool
    updates_outside: bool
    pattern: str
    keep: str | None
    every: int
    returned: str

    @classmethod
    def of(cls, seed):
        choose = random.Random(seed).choice
        return cls(
            names=[choose(list(OPTIMIZERS)) for _ in range(choose([1, 1, 1, 2]))],
            zero=choose(["begin", "end", "end if last", "begin if first", "outside"]),
            to_none=choose([True, True, False]),
            clips=choose([True, False, False]),
            updates_outside=choose([True, False, False, False]),
            pattern=choose(["FFT", "FT", "T", "FFTFT", "FFFT", "FFTT"]),
            keep=choose([None, None, "gradients", "views", "halve", "set to none", "fill"]),
            every=choose([1, 3, 5]),
            returned=choose(["loss", "gradients", "nothing"]),
        )

    def loop(self, device, capture):
        torch.manual_seed(5)
        model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).to(device)
        parts = [model] if len(self.names) == 1 else [model[0], model[2]]
        optimizers = [
            OPTIMIZERS[name](part.parameters())
            for name, part in zip(self.names, parts, strict=True)
        ]
        step = capture(partial(self.micro, model, optimizers))
        left, kept, before = [], [], "T"
        for number, batch in enumerate(batches_of(device, [6] * NUM_CALLS)):
            now = self.pattern[number % len(self.pattern)]
            out = step(*batch, before == "T", now == "T")
            before = now
            if self.updates_outside and now == "T":
                update(optimizers)
            if self.keep is not None and number % self.every == 0:
                weights = [weight for weight in model.parameters() if weight.grad is not None]
                kept += [one for one in map(KEEP[self.keep], weights) if one is not None]
            del kept[:-8]
            weights = list(model.parameters())
            left.append(bits([out, weights, [weight.grad for weight in weights], kept]))
            if self.zero == "outside" and now == "T":
                self.let_go(optimizers)
        return [*left, bits([optimizer.state_dict() for optimizer in optimizers])]

    def micro(self, model, optimizers, x, y, is_first, is_last):
        if self.zero == "begin" or (self.zero == "begin if first" and is_first):
            self.let_go(optimizers)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        if self.clips and is_last:
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        if is_last and not self.updates_outside:
            update(optimizers)
        if self.zero == "end" or (self.zero == "end if last" and is_last):
            self.let_go(optimizers)
        gradients = (loss, model[0].weight.grad)
        return {"loss": loss, "gradients": gradients, "nothing": None}[self.returned]

    def let_go(self, optimizers):
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=self.to_none)


def update(optimizers):
    for optimizer in optimizers:
        optimizer.step()


def halve(weight):
    weight.grad.mul_(0.5)


def fill(weight):
    weight.grad.zero_()


def set_to_none(weight):
    weight.grad = None


KEEP = {
    "gradients": lambda weight: weight.grad,
    "views": lambda weight: weight.grad.detach(),
    "halve": halve,
    "set to none": set_to_none,
    "fill": fill,
}
