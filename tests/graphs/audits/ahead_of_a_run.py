"""A step that writes beside its weights, captured ahead of its run."""

from __future__ import annotations

import copy
import random

import torch

from gapless.loop.train_loop import TrainLoop
from graphs.audits.harness import Place, batch, values


CALLS = 8


class Training:
    """A step that may write beside weights and optimizer state, on the device."""

    changes_no_other_objects = True

    def __init__(self, place, writes):
        self.model = torch.nn.Sequential(place.linear(), torch.nn.Dropout(0.5))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.average = copy.deepcopy(self.model)
        self.norm = torch.nn.BatchNorm1d(1).to(place.device.torch_device)
        self.seen, self.queue = place.on([0.0]), place.on([0.0] * 8)
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
        tensors = [*self.model.parameters(), *self.average.parameters(), *self.norm.buffers()]
        tensors += [self.seen, self.queue]
        for weight in self.model.parameters():
            tensors.append(torch.zeros_like(weight) if weight.grad is None else weight.grad)
        return values(tensors)


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


def statistics(training, x, loss):
    """Running averages of a module that nobody gave to `capture_ahead`."""
    training.norm(x.unsqueeze(1))


def buffer(training, x, loss):
    """A part of a buffer, by a view."""
    training.queue[2:4].copy_(x[:2])


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


WRITES = [nothing, average, count, statistics, buffer, its_batch, gradients_kept, noise]


def ahead(loop, training, examples):
    """Capture ahead of a run; return the report."""
    return loop.capture_ahead(
        examples, training.step, model=training.model, optimizer=training.optimizer
    )


def wrong_ahead(writes, folder):
    """Return what is wrong with a capture ahead of a run, in words; nothing if it changes nothing.

    Neither what the step writes may change, nor the examples, nor the state of any random generator, and a run
    behind it has to train as written.
    """

    def state():
        return (
            training.written(),
            values(examples),
            random.getstate(),
            values(torch.get_rng_state()),
        )

    wrong, found = [], []
    with Place(folder) as place, TrainLoop(plan="captured", device=place.device) as loop:
        training, examples = Training(place, writes), [batch(place, 1)]
        before = state()
        if not ahead(loop, training, examples).num_graphs:
            wrong.append("nothing is captured")
        if state() != before:
            wrong.append("something is written")
    for plan in ("gapless", "captured"):
        with Place(folder) as place, TrainLoop(plan=plan, device=place.device) as loop:
            training = Training(place, writes)
            if plan == "captured":
                ahead(loop, training, [batch(place, 1)])
            batches = [batch(place, number) for number in range(CALLS)]
            losses = loop.run_epoch(batches, training.step).losses
            found.append((losses, training.written()))
    return wrong + ["a run behind it differs"] * (found[0] != found[1])
