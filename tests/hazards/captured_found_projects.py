"""Loops that look like code of whole projects: trainers, registries, configs, phases and strategies."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from types import SimpleNamespace

import torch
from torch.nn import functional as F

from hazards.captured_harness import CAPTURED, EITHER, captured_case, refused
from hazards.captured_models import batches, kept, losses_of, mlp, sgd, state, updated


NUM = 40


def at(number_of_change, change):
    """Return a function of the step's number that calls `change()` once."""

    def before(number):
        if number == number_of_change:
            change()

    return before


# ------------------------------------------------------------------------ trainers and plugins


class Callback:
    """What a trainer calls at its events."""

    def on_forward(self, trainer, outputs):
        pass

    def on_loss(self, trainer, loss):
        return loss

    def on_step_end(self, trainer, loss):
        pass


class LabelPenalty(Callback):
    """Adds a penalty of its own weight to the loss."""

    def __init__(self, weight):
        self.weight = weight

    def on_loss(self, trainer, loss):
        return loss + self.weight * trainer.outputs.pow(2).mean()


class EventTrainer:
    """A trainer with callbacks that are called by name."""

    def __init__(self, place, callbacks=()):
        self.model = mlp(place)
        self.optimizer = sgd(self.model, momentum=0.9)
        self.callbacks = list(callbacks)
        self.outputs = None

    def fire(self, event, *args):
        return [getattr(callback, f"on_{event}")(self, *args) for callback in self.callbacks]

    def train_step(self, pair):
        x, y = pair
        self.outputs = self.model(x)
        self.fire("forward", self.outputs)
        loss = F.cross_entropy(self.outputs, y)
        for callback in self.callbacks:
            loss = callback.on_loss(self, loss)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.fire("step_end", loss.detach())
        return loss


@captured_case(
    "A callback is added to a trainer in mid-run, and its weight changes later.", expect=CAPTURED
)
def callbacks_of_a_trainer(place):
    trainer = EventTrainer(place, [Callback()])
    step = place.capture(trainer.train_step)
    penalty = LabelPenalty(0.1)

    def before(number):
        if number == 12:
            trainer.callbacks.append(penalty)
        if number == 26:
            penalty.weight = 0.5

    return losses_of(place, step, NUM, before=before), state(trainer.model, trainer.optimizer)


@captured_case(
    "A context is handed from stage to stage; the last stage keeps it for the loop.",
    expect=EITHER,
)
def context_is_kept_for_the_loop(place):
    @dataclass
    class Context:
        x: torch.Tensor
        y: torch.Tensor
        loss: torch.Tensor | None = None
        extras: dict = field(default_factory=dict)

    model = mlp(place)
    optimizer = sgd(model)
    holder = SimpleNamespace(last=None)

    def forward(context):
        context.extras["out"] = model(context.x)
        return context

    def objective(context):
        context.loss = F.cross_entropy(context.extras["out"], context.y)
        return context

    def finish(context):
        updated(optimizer, context.loss)
        holder.last = context
        return context

    stages = [forward, objective, finish]

    def train(pair):
        context = functools.reduce(lambda value, stage: stage(value), stages, Context(*pair))
        return context.loss.detach()

    step = place.capture(train)
    found = []
    for pair in batches(place, NUM):
        found.append(kept(step(pair)))
        found.append(kept(holder.last.extras["out"]))
        found.append(kept(holder.last.x))
    return found


# --------------------------------------------------------------- averages, teachers, metrics


class DeviceMeter:
    """A mean that is kept on the device."""

    def __init__(self, place):
        self.total = torch.zeros((), device=place.torch_device)
        self.count = torch.zeros((), device=place.torch_device)

    def update(self, value, num):
        self.total += value.detach() * num
        self.count += num

    def compute(self):
        return self.total / self.count

    def reset(self):
        self.total = torch.zeros_like(self.total)
        self.count = torch.zeros_like(self.count)


@captured_case(
    "Metrics on the device also count samples in a Python number.", expect=refused("samples")
)
def metrics_with_host_state(place):
    class Meter(DeviceMeter):
        samples = 0

        def update(self, value, num):
            super().update(value, num)
            self.samples += num

    model, meter = mlp(place), Meter(place)
    optimizer = sgd(model)

    def train(pair):
        loss = updated(optimizer, F.cross_entropy(model(pair[0]), pair[1]))
        meter.update(loss, pair[0].shape[0])
        return loss

    step = place.capture(train)
    return losses_of(place, step, 24), meter.samples, meter.compute()


# ------------------------------------------------------------------------ kinds of models


@captured_case(
    "A detector's targets are a list of dicts, and its losses a dict that is summed by weight.",
    expect=CAPTURED,
)
def targets_are_dicts(place):
    class Criterion:
        weights = {"boxes": 1.0, "labels": 0.5}  # noqa: RUF012  # as people write it

        def __init__(self):
            self.parts = {"boxes": self.boxes, "labels": self.labels}

        def boxes(self, outputs, targets):
            goal = torch.stack([target["box"] for target in targets])
            return {"l1": F.l1_loss(outputs[:, :4], goal)}

        def labels(self, outputs, targets):
            goal = torch.stack([target["label"] for target in targets])
            return {"ce": F.cross_entropy(outputs[:, 4:], goal)}

        def __call__(self, outputs, targets):
            return {
                f"{name}_{key}": self.weights[name] * value
                for name, part in self.parts.items()
                for key, value in part(outputs, targets).items()
            }

    model, criterion = mlp(place, num_out=8), Criterion()
    optimizer = sgd(model)

    def train(samples):
        inputs, targets = zip(*samples, strict=True)
        losses = criterion(model(torch.stack(inputs)), targets)
        updated(optimizer, sum(losses.values()))
        return {name: value.detach() for name, value in losses.items()}

    def before(number):
        if number == 14:
            criterion.parts.pop("boxes")
        if number == 26:
            Criterion.weights = {"boxes": 1.0, "labels": 2.0}

    step = place.capture(train)
    found = []
    for number, (x, y) in enumerate(batches(place, NUM)):
        before(number)
        samples = [
            (row, {"box": row[:4], "label": label}) for row, label in zip(x, y, strict=True)
        ]
        found.append({name: kept(value) for name, value in step(samples).items()})
    return found, state(model)


# ------------------------------------------------------- found while the first cases were mended


@captured_case("A settings namespace is handed to a function of a library.", expect=CAPTURED)
def settings_are_handed_on(place):
    settings = SimpleNamespace(loss=SimpleNamespace(weight=1.0))
    model = mlp(place)
    optimizer = sgd(model)

    def penalty(out, part):
        return part.weight * out.pow(2).mean()

    def train(pair):
        out = model(pair[0])
        extra = sum(map(functools.partial(penalty, out), vars(settings).values()))
        return updated(optimizer, F.cross_entropy(out, pair[1]) + extra)

    step = place.capture(train)
    change = functools.partial(setattr, settings.loss, "weight", 0.2)
    return losses_of(place, step, 30, before=at(15, change)), state(model)
