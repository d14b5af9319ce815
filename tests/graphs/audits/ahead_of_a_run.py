"""A step that writes beside its weights, captured ahead of its run."""

from __future__ import annotations

import copy
import random

import numpy as np
import torch

import gapless
from graphs.audits.harness import Place, batch, values


CALLS = 8


class Training:
    """A step that may write beside weights and optimizer state."""

    def __init__(self, place, writes):
        self.model = torch.nn.Sequential(place.linear(), torch.nn.Dropout(0.5))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.average = copy.deepcopy(self.model)
        self.seen, self.last, self.held = place.on([0.0]), place.on([0.0]), {}
        self.writes = writes

    def step(self, x):
        loss = self.model(x).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.writes(self, x, loss.detach())
        return loss.detach()

    def written(self):
        """Return all that the step writes beside the optimizer's state; gradients may be zeros, or none."""
        tensors = [*self.model.parameters(), *self.average.parameters(), self.seen, self.last]
        for weight in self.model.parameters():
            tensors.append(torch.zeros_like(weight) if weight.grad is None else weight.grad)
        return values([*tensors, *self.held.values()])


def nothing(training, x, loss):
    """The plain step."""


def average(training, x, loss):
    """An average of the weights."""
    with torch.no_grad():
        for mean, weight in zip(
            training.average.parameters(), training.model.parameters(), strict=True
        ):
            mean.lerp_(weight, 0.1)


def count(training, x, loss):
    """A count on the device."""
    training.seen.add_(1.0)


def new_tensor(training, x, loss):
    """An attribute that is a new tensor in each call."""
    training.last = training.last * 0.9 + loss


def entry(training, x, loss):
    """An entry that the first call makes."""
    training.held["loss"] = training.held["loss"] + loss if training.held else loss.clone()


def its_batch(training, x, loss):
    """The batch itself."""
    x.mul_(0.5)


def gradients_kept(training, x, loss):
    """Gradients that stay until the next call."""
    for weight in training.model.parameters():
        weight.grad.mul_(2.0)


def noise(training, x, loss):
    """Random numbers of the device."""
    training.seen.add_(torch.rand_like(training.seen))


WRITES = [nothing, average, count, new_tensor, entry, its_batch, gradients_kept, noise]


def ahead(training, place, examples):
    return gapless.capture(
        training.step,
        device=place.device,
        example_inputs=examples,
        model=training.model,
        optimizer=training.optimizer,
    )


def wrong_ahead(writes, folder):
    """Return what is wrong with a capture ahead of a run, in words; nothing if it changes nothing.

    Neither what the step writes may change, nor the examples, nor the state of any random generator, and a run
    behind it has to train as written.
    """

    def state():
        drawn = np.random.get_state()[2]  # noqa: NPY002
        return (
            training.written(),
            values(examples),
            random.getstate(),
            drawn,
            values(torch.get_rng_state()),
        )

    wrong, found = [], []
    with Place(folder) as place:
        training, examples = Training(place, writes), [batch(place, 1)]
        before = state()
        ahead(training, place, examples)
        if state() != before:
            wrong.append("something is written")
    for is_ahead in (False, True):
        with Place(folder) as place:
            training = Training(place, writes)
            step = ahead(training, place, [batch(place, 1)]) if is_ahead else training.step
            losses = [values(step(batch(place, number))) for number in range(CALLS)]
            found.append((losses, training.written()))
    return wrong + ["a run behind it differs"] * (found[0] != found[1])
