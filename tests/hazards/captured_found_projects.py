"""Loops that look like code of whole projects: trainers, registries, configs, phases and strategies."""

from __future__ import annotations

import abc
import collections
import contextlib
import copy
import enum
import functools
import itertools
import math
import operator
import random
import time
import weakref
from dataclasses import dataclass, field
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from hazards.captured_harness import CAPTURED, EITHER, captured_case, refused, snapshot
from hazards.captured_models import batch, batches, kept, losses_of, mlp, sgd, state, updated


NUM = 40


def at(number_of_change, change):
    """Return a function of the step's number that calls `change()` once."""

    def before(number):
        if number == number_of_change:
            change()

    return before


def images(place, number, *, rows=6):
    """Return features only."""
    return batch(place, number, rows=rows)[0]


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
    "A callback that logs every tenth step is registered in mid-run.", expect=refused("steps")
)
def logging_callback_is_registered(place):
    class Logger(Callback):
        def __init__(self):
            self.steps, self.log = 0, []

        def on_step_end(self, trainer, loss):
            self.steps += 1
            if self.steps % 10 == 0:
                self.log.append(loss.clone())

    trainer, logger = EventTrainer(place), Logger()
    step = place.capture(trainer.train_step)
    losses = losses_of(place, step, NUM, before=at(14, lambda: trainer.callbacks.append(logger)))
    return losses, logger.steps, logger.log, kept(trainer.outputs)


@captured_case(
    "Listeners of an event bus are weak references; one of them dies in mid-run.", expect=CAPTURED
)
def event_bus_of_weak_listeners(place):
    class Bus:
        def __init__(self):
            self.listeners = collections.defaultdict(list)

        def subscribe(self, event, method):
            self.listeners[event].append(weakref.WeakMethod(method))

        def emit(self, event, value):
            for reference in self.listeners[event]:
                if (method := reference()) is not None:
                    value = method(value)
            return value

    class Scale:
        def __init__(self, factor):
            self.factor = factor

        def apply(self, loss):
            return loss * self.factor

    model, bus, scales = mlp(place), Bus(), {"a": Scale(0.5), "b": Scale(1.5)}
    optimizer = sgd(model)
    for scale in scales.values():
        bus.subscribe("loss", scale.apply)
    del scale

    def train(pair):
        return updated(optimizer, bus.emit("loss", F.cross_entropy(model(pair[0]), pair[1])))

    step = place.capture(train)
    return losses_of(place, step, NUM, before=at(15, lambda: scales.pop("a"))), state(model)


LOSSES: dict[str, Any] = {}


def register_loss(name, **defaults):
    """Register a class of losses under a name."""

    def add(cls):
        LOSSES[name] = functools.partial(cls, **defaults)
        return cls

    return add


@register_loss("ce", smoothing=0.1)
class Smoothed:
    def __init__(self, smoothing=0.0):
        self.smoothing = smoothing

    def __call__(self, out, y):
        return F.cross_entropy(out, y, label_smoothing=self.smoothing)


@register_loss("margin")
class Margin:
    def __init__(self, margin=1.0):
        self.margin = margin

    def __call__(self, out, y):
        return F.multi_margin_loss(out, y, margin=self.margin)


def build_loss(config):
    """Make a loss from a config of the form {"type": ..., **arguments}."""
    arguments = dict(config)
    return LOSSES[arguments.pop("type")](**arguments)


@captured_case(
    "A loss is built from a nested config in each step, and the config changes.", expect=CAPTURED
)
def loss_is_built_in_each_step(place):
    config = {"loss": {"type": "ce", "smoothing": 0.2}, "optimizer": {"lr": 0.1}}
    model = mlp(place)
    optimizer = sgd(model, **config["optimizer"])

    def train(pair):
        x, y = pair
        return updated(optimizer, build_loss(config["loss"])(model(x), y))

    def before(number):
        if number == 12:
            config["loss"]["smoothing"] = 0.4
        if number == 25:
            config["loss"] = {"type": "ce"}

    step = place.capture(train)
    return losses_of(place, step, NUM, before=before), state(model)


@captured_case("Another class is registered under the same name in mid-run.", expect=CAPTURED)
def registry_entry_is_replaced(place):
    table = dict(LOSSES)
    model = mlp(place)
    optimizer = sgd(model)

    class Harder(Smoothed):
        def __call__(self, out, y):
            return super().__call__(out * 2, y)

    def train(pair):
        x, y = pair
        return updated(optimizer, table["ce"](smoothing=0.1)(model(x), y))

    step = place.capture(train)
    return losses_of(place, step, NUM, before=at(13, lambda: table.update(ce=Harder))), state(
        model
    )


class Strategy(abc.ABC):
    """How a loss becomes an update."""

    def __init__(self, config):
        self.config = config

    @abc.abstractmethod
    def backward(self, loss):
        """Fill the gradients."""


class Plain(Strategy):
    def backward(self, loss):
        loss.backward()


class Scaled(Strategy):
    def backward(self, loss):
        (loss * self.config.scale).backward()


@captured_case(
    "A strategy is made in each step by a factory that looks at a config.", expect=CAPTURED
)
def strategy_made_in_each_step(place):
    @dataclass
    class Config:
        strategy: str = "plain"
        scale: float = 2.0
        kinds: dict = field(default_factory=lambda: {"plain": Plain, "scaled": Scaled})

    config, model = Config(), mlp(place)
    optimizer = sgd(model)

    def train(pair):
        x, y = pair
        strategy = config.kinds[config.strategy](config)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        strategy.backward(loss)
        optimizer.step()
        return loss

    def before(number):
        if number == 12:
            config.strategy = "scaled"
        if number == 25:
            config.scale = 0.5

    step = place.capture(train)
    return losses_of(place, step, NUM, before=before), state(model)


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


class Node:
    """A config of dotted names whose children are made when they are asked for."""

    def __init__(self, content):
        self._content = content

    def __getattr__(self, name):
        try:
            value = self._content[name]
        except KeyError:
            raise AttributeError(name) from None
        return Node(value) if isinstance(value, dict) else value


@captured_case(
    "A config makes its nodes on the way, with defaults by `getattr` and `hasattr`.",
    expect=CAPTURED,
)
def tree_of_config_nodes(place):
    content = {"train": {"loss": {"weights": [1.0, 0.5]}, "clip": None}}
    config, model = Node(content), mlp(place)
    optimizer = sgd(model)

    def train(pair):
        x, y = pair
        out = model(x)
        first, second = config.train.loss.weights
        loss = first * F.cross_entropy(out, y) + second * out.abs().mean()
        if hasattr(config.train.loss, "entropy"):
            loss = loss - config.train.loss.entropy * torch.special.entr(out.softmax(1)).mean()
        optimizer.zero_grad()
        loss.backward()
        if (clip := getattr(config.train, "clip", None)) is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        return loss

    def before(number):
        if number == 10:
            content["train"]["loss"]["weights"][1] = 0.1
        if number == 19:
            content["train"]["loss"]["entropy"] = 0.3
        if number == 28:
            content["train"]["clip"] = 0.05

    step = place.capture(train)
    return losses_of(place, step, 54, before=before), state(model)


@captured_case("Mixins call each other by super(), and one is switched off.", expect=CAPTURED)
def mixins_in_a_row(place):
    class Base:
        def compute(self, x, y):
            return F.cross_entropy(self.model(x), y)

    class SparsityMixin:
        sparsity = 0.01

        def compute(self, x, y):
            loss = super().compute(x, y)
            return loss + self.sparsity * sum(p.abs().sum() for p in self.model.parameters())

    class NoiseMixin:
        noise = 0.0

        def compute(self, x, y):
            if self.noise:
                x = x + self.noise * torch.randn_like(x)
            return super().compute(x, y)

    class Trainer(NoiseMixin, SparsityMixin, Base):
        def __init__(self):
            self.model = mlp(place)
            self.optimizer = sgd(self.model)

        def train(self, pair):
            return updated(self.optimizer, self.compute(*pair))

    trainer = Trainer()

    def before(number):
        if number == 12:
            SparsityMixin.sparsity = 0.0
        if number == 24:
            trainer.noise = 0.1

    step = place.capture(trainer.train)
    return losses_of(place, step, NUM, before=before), state(trainer.model)


class Phase(enum.Enum):
    WARM = "warm"
    MAIN = "main"
    FINE = "fine"


@captured_case("Phases of an enum choose among methods in a dict of lambdas.", expect=CAPTURED)
def enum_chooses_a_lambda(place):
    class Trainer:
        def __init__(self):
            self.model, self.phase = mlp(place), Phase.WARM
            self.optimizer = sgd(self.model)
            self.ways = {
                Phase.WARM: lambda out, y: F.cross_entropy(out, y),
                Phase.MAIN: lambda out, y: self.mixed(out, y, share=0.3),
                Phase.FINE: lambda out, y: self.mixed(out, y, share=0.8),
            }

        def mixed(self, out, y, *, share):
            return (1 - share) * F.cross_entropy(out, y) + share * out.logsumexp(1).mean()

        def train(self, pair):
            return updated(self.optimizer, self.ways[self.phase](self.model(pair[0]), pair[1]))

    trainer = Trainer()
    phases = {12: Phase.MAIN, 24: Phase.FINE, 33: Phase.WARM}

    def before(number):
        trainer.phase = phases.get(number, trainer.phase)

    step = place.capture(trainer.train)
    return losses_of(place, step, NUM, before=before), state(trainer.model)


# -------------------------------------------------------------------- timers, retries, caches


@captured_case(
    "A timer of the user's counts seconds and calls of each part.", expect=refused("totals")
)
def timer_of_the_user(place):
    class Timer:
        def __init__(self):
            self.totals = collections.defaultdict(float)
            self.counts = collections.Counter()

        @contextlib.contextmanager
        def __call__(self, name):
            start = time.perf_counter()
            try:
                yield
            finally:
                self.totals[name] += time.perf_counter() - start
                self.counts[name] += 1

    model, timer = mlp(place), Timer()
    optimizer = sgd(model)

    def train(pair):
        with timer("forward"):
            loss = F.cross_entropy(model(pair[0]), pair[1])
        with timer("update"):
            updated(optimizer, loss)
        return loss

    step = place.capture(train)
    return losses_of(place, step, 20), timer.counts, sorted(timer.totals)


@captured_case("A decorator @timed is switched on in mid-run.", expect=refused("num_timed"))
def timed_later(place):
    settings = SimpleNamespace(times=False, num_timed=0)

    def timed(function):
        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            if not settings.times:
                return function(*args, **kwargs)
            settings.num_timed += 1
            return function(*args, **kwargs)

        return wrapper

    model = mlp(place)
    optimizer = sgd(model)

    @timed
    def forward(x):
        return model(x)

    def train(pair):
        return updated(optimizer, F.cross_entropy(forward(pair[0]), pair[1]))

    step = place.capture(train)
    losses = losses_of(place, step, NUM, before=at(15, lambda: setattr(settings, "times", True)))
    return losses, settings.num_timed


@captured_case("A decorator tries a part again with another precision.", expect=CAPTURED)
def retried_part(place):
    settings = SimpleNamespace(attempts=("double", "plain"), broken={"double"})

    def retry(function):
        @functools.wraps(function)
        def wrapper(*args):
            for attempt in settings.attempts:
                try:
                    return function(*args, attempt)
                except ValueError:
                    if attempt == settings.attempts[-1]:
                        raise
            return None

        return wrapper

    model = mlp(place)
    optimizer = sgd(model)

    @retry
    def loss_of(out, y, attempt):
        if attempt in settings.broken:
            raise ValueError(attempt)
        return F.cross_entropy(out.double() if attempt == "double" else out, y).float()

    def train(pair):
        return updated(optimizer, loss_of(model(pair[0]), pair[1]))

    step = place.capture(train)
    return losses_of(place, step, NUM, before=at(15, settings.broken.clear)), state(model)


@captured_case(
    "An optional part raises, the error is caught, and failures are counted.",
    expect=refused("failures"),
)
def failures_are_counted(place):
    class Trainer:
        def __init__(self):
            self.model, self.failures = mlp(place), 0
            self.optimizer, self.auxiliary = sgd(self.model), {}

        def extra(self, out):
            return self.auxiliary["head"](out).mean()

        def train(self, pair):
            out = self.model(pair[0])
            loss = F.cross_entropy(out, pair[1])
            try:
                loss = loss + self.extra(out)
            except KeyError:
                self.failures += 1
            return updated(self.optimizer, loss)

    trainer = Trainer()
    change = functools.partial(operator.setitem, trainer.auxiliary, "head", torch.abs)
    step = place.capture(trainer.train)
    return losses_of(place, step, NUM, before=at(20, change)), trainer.failures


@captured_case(
    "A property caches a mask and is told to forget it when a setting is set.", expect=EITHER
)
def property_with_a_cache(place):
    class Masked:
        __slots__ = ("_keep", "_mask", "device", "model", "optimizer")

        def __init__(self):
            self.model, self.device = mlp(place), place.torch_device
            self.optimizer = sgd(self.model)
            self._keep, self._mask = 8, None

        @property
        def keep(self):
            return self._keep

        @keep.setter
        def keep(self, value):
            self._keep, self._mask = value, None

        @property
        def mask(self):
            if self._mask is None:
                self._mask = (torch.arange(8, device=self.device) < self._keep).float()
            return self._mask

        def train(self, pair):
            x, y = pair
            return updated(self.optimizer, F.cross_entropy(self.model(x * self.mask), y))

    trainer = Masked()
    step = place.capture(trainer.train)

    def before(number):
        if number in {15, 28}:
            trainer.keep -= 3

    return losses_of(place, step, NUM, before=before), state(trainer.model), kept(trainer.mask)


@captured_case("A singleton is asked by its class, and is made anew by the loop.", expect=CAPTURED)
def singleton_is_reset(place):
    class Settings:
        _instance = None

        def __init__(self, temperature):
            self.temperature = temperature

        @classmethod
        def get(cls):
            if cls._instance is None:
                cls._instance = cls(1.0)
            return cls._instance

    model = mlp(place)
    optimizer = sgd(model)

    def train(pair):
        out = model(pair[0]) / Settings.get().temperature
        return updated(optimizer, F.cross_entropy(out, pair[1]))

    step = place.capture(train)
    Settings.get()
    change = functools.partial(lambda: setattr(Settings, "_instance", Settings(3.0)))
    return losses_of(place, step, NUM, before=at(15, change)), state(model)


# ------------------------------------------------------------- losses, weights and gradients


@captured_case(
    "A container of losses multiplies each by a weight that a schedule changes by epoch.",
    expect=CAPTURED,
)
def weighted_losses(place):
    class Weighted(nn.Module):
        def __init__(self, **losses):
            super().__init__()
            self.losses, self.weights = losses, dict.fromkeys(losses, 1.0)
            self.last = {}

        def forward(self, out, y):
            parts = {name: loss(out, y) for name, loss in self.losses.items()}
            self.last = {name: part.detach() for name, part in parts.items()}
            return sum(self.weights[name] * part for name, part in parts.items())

    model = mlp(place)
    optimizer = sgd(model)
    criterion = Weighted(ce=F.cross_entropy, size=lambda out, y: out.pow(2).mean())

    def train(pair):
        return updated(optimizer, criterion(model(pair[0]), pair[1]))

    step = place.capture(train)
    found = []
    for epoch in range(3):
        criterion.weights["size"] = 0.5**epoch
        for pair in batches(place, 16):
            found.append(kept(step(pair)))
            found.append({name: kept(part) for name, part in criterion.last.items()})
    return found, state(model)


@captured_case(
    "Learned weights of tasks balance the losses, and one task is dropped.", expect=CAPTURED
)
def uncertainty_weights(place):
    heads = nn.ModuleDict({name: nn.Linear(16, 4) for name in ("a", "b")})
    log_variances = nn.ParameterDict({name: torch.zeros(()) for name in heads})
    body = nn.Linear(8, 16)
    everything = nn.ModuleList([body, heads, log_variances]).to(place.torch_device)
    optimizer = torch.optim.SGD(everything.parameters(), lr=0.1, momentum=0.9)
    active = ["a", "b"]

    def train(pair):
        x, y = pair
        hidden, total = F.relu(body(x)), 0.0
        for name in active:
            loss = F.cross_entropy(heads[name](hidden), y if name == "a" else y.flip(0))
            total = total + (-log_variances[name]).exp() * loss + log_variances[name]
        return updated(optimizer, total)

    step = place.capture(train)
    return losses_of(place, step, NUM, before=at(18, lambda: active.remove("b"))), state(
        everything, optimizer
    )


@captured_case(
    "Gradients of two tasks are projected on each other, in an order that Python shuffles.",
    expect=refused("random"),
)
def gradient_surgery_with_shuffles(place):
    model = mlp(place)
    optimizer = sgd(model)
    parameters = list(model.parameters())

    def flat(loss):
        gradients = torch.autograd.grad(loss, parameters, retain_graph=True)
        return torch.cat([gradient.reshape(-1) for gradient in gradients])

    def train(pair):
        out = model(pair[0])
        losses = [F.cross_entropy(out, pair[1]), out.pow(2).mean()]
        gradients = [flat(loss) for loss in losses]
        order = [0, 1]
        random.shuffle(order)
        total = torch.zeros_like(gradients[0])
        for own in order:
            dot = gradients[own] @ gradients[1 - own]
            scale = dot.clamp(max=0) / gradients[1 - own].pow(2).sum()
            total += gradients[own] - scale * gradients[1 - own]
        nn.utils.vector_to_parameters(nn.utils.parameters_to_vector(parameters), parameters)
        for parameter, part in zip(
            parameters, total.split([p.numel() for p in parameters]), strict=True
        ):
            parameter.grad = part.view_as(parameter)
        optimizer.step()
        return sum(losses).detach()

    random.seed(3)
    return losses_of(place, place.capture(train), 24), state(model)


@captured_case(
    "The same surgery without a shuffle; gradients are set as views of one flat tensor.",
    expect=CAPTURED,
)
def gradient_surgery(place):
    model = mlp(place)
    optimizer = sgd(model, momentum=0.9)
    parameters = list(model.parameters())
    settings = SimpleNamespace(projects=True)

    def flat(loss):
        gradients = torch.autograd.grad(loss, parameters, retain_graph=True)
        return torch.cat([gradient.reshape(-1) for gradient in gradients])

    def project(one, other):
        return one - ((one @ other).clamp(max=0) / other.pow(2).sum()) * other

    def train(pair):
        out = model(pair[0])
        one, other = flat(F.cross_entropy(out, pair[1])), flat(out.pow(2).mean())
        total = project(one, other) + project(other, one) if settings.projects else one + other
        offset = 0
        for parameter in parameters:
            parameter.grad = total[offset : offset + parameter.numel()].view_as(parameter)
            offset += parameter.numel()
        optimizer.step()
        return total.norm()

    step = place.capture(train)
    found = []
    for number, pair in enumerate(batches(place, NUM)):
        if number == 18:
            settings.projects = False
        found.append(kept(step(pair)))
        if number % 7 == 0:
            found.append([kept(parameter.grad) for parameter in parameters])
    return found, state(model, optimizer)


@captured_case(
    "Norms of gradients by layer are kept for logging, and the loop reads them now and then.",
    expect=CAPTURED,
)
def norms_by_layer(place):
    class Trainer:
        def __init__(self):
            self.model = mlp(place)
            self.optimizer = sgd(self.model)
            self.norms = {}

        def train(self, pair):
            self.optimizer.zero_grad()
            loss = F.cross_entropy(self.model(pair[0]), pair[1])
            loss.backward()
            self.norms = {
                name: parameter.grad.norm()
                for name, parameter in self.model.named_parameters()
                if parameter.grad is not None
            }
            self.optimizer.step()
            return loss

    trainer = Trainer()
    step = place.capture(trainer.train)
    found, history = [], []
    for number, pair in enumerate(batches(place, NUM)):
        found.append(kept(step(pair)))
        if number % 6 == 0:
            history.append({name: norm.item() for name, norm in trainer.norms.items()})
    return found, history


@captured_case(
    "The noise scale of gradients is estimated from two halves, smoothed on the device.",
    expect=CAPTURED,
)
def noise_scale(place):
    model = mlp(place)
    optimizer = sgd(model)
    parameters = list(model.parameters())
    smoothed = torch.zeros(2, device=place.torch_device)
    settings = {"decay": 0.9}

    def norm_of(gradients):
        return torch.stack([gradient.pow(2).sum() for gradient in gradients]).sum()

    def train(pair):
        x, y = pair
        halves = []
        for half in (slice(0, 3), slice(3, 6)):
            loss = F.cross_entropy(model(x[half]), y[half])
            halves.append(torch.autograd.grad(loss, parameters))
        mean = [(one + other) / 2 for one, other in zip(*halves, strict=True)]
        small = (norm_of(halves[0]) + norm_of(halves[1])) / 2
        with torch.no_grad():
            smoothed.mul_(settings["decay"])
            smoothed.add_(torch.stack([small, norm_of(mean)]), alpha=1 - settings["decay"])
        for parameter, gradient in zip(parameters, mean, strict=True):
            parameter.grad = gradient
        optimizer.step()
        return smoothed[0] / smoothed[1]

    step = place.capture(train)
    change = functools.partial(settings.update, decay=0.5)
    return losses_of(place, step, NUM, before=at(20, change)), smoothed, state(model)


@captured_case(
    "Rates by layer and exclusions from weight decay come from a factory; groups are scaled.",
    expect=CAPTURED,
)
def groups_from_a_factory(place):
    model = mlp(place)

    def groups(base, decay):
        for depth, layer in enumerate(m for m in model if isinstance(m, nn.Linear)):
            for name, parameter in layer.named_parameters():
                weight_decay = 0.0 if name == "bias" else decay
                rate = base * 0.5**depth
                yield {
                    "params": [parameter],
                    "lr": rate,
                    "initial_lr": rate,
                    "weight_decay": weight_decay,
                    "name": name,
                }

    optimizer = torch.optim.AdamW(groups(0.01, 0.1))

    def train(pair):
        for group in optimizer.param_groups:
            if group["name"] == "bias":
                nn.utils.clip_grad_norm_(group["params"], 1.0)
        return updated(optimizer, F.cross_entropy(model(pair[0]), pair[1]))

    def before(number):
        if number == 20:
            for group in optimizer.param_groups:
                group["lr"] = 0.1 * group["initial_lr"]

    step = place.capture(train)
    return losses_of(place, step, NUM, before=before), state(model, optimizer)


@captured_case(
    "A freeze schedule walks the tree of modules; what is frozen loses its gradients.",
    expect=CAPTURED,
)
def freeze_schedule(place):
    model = nn.Sequential(mlp(place, num_out=8), mlp(place))
    optimizer = sgd(model, momentum=0.9)

    def walk(module, depth=0):
        yield depth, module
        for child in module.children():
            yield from walk(child, depth + 1)

    def set_frozen(frozen):
        for parameter in model[0].parameters():
            parameter.requires_grad_(not frozen)
            if frozen:
                parameter.grad = None

    def train(pair):
        total = sum(
            0.01 / (1 + depth) * module.weight.pow(2).sum()
            for depth, module in walk(model)
            if isinstance(module, nn.Linear) and module.weight.requires_grad
        )
        return updated(optimizer, F.cross_entropy(model(pair[0]), pair[1]) + total)

    def before(number):
        if number in {12, 26}:
            set_frozen(number == 12)

    step = place.capture(train)
    return losses_of(place, step, NUM, before=before), state(model, optimizer)


# --------------------------------------------------------------- averages, teachers, metrics


@captured_case(
    "An average of weights and buffers whose decay warms up by a count in Python.",
    expect=refused("updates"),
)
def average_with_a_warm_up(place):
    class Average:
        def __init__(self, model):
            self.shadow, self.updates = copy.deepcopy(model).eval(), 0

        @torch.no_grad()
        def update(self, model):
            self.updates += 1
            decay = min(0.99, (1 + self.updates) / (10 + self.updates))
            own, others = self.shadow.state_dict(), model.state_dict()
            for name, value in own.items():
                if value.dtype.is_floating_point:
                    value.mul_(decay).add_(others[name], alpha=1 - decay)

    model = nn.Sequential(mlp(place, num_out=8), nn.BatchNorm1d(8).to(place.torch_device))
    optimizer, average = sgd(model), None
    average = Average(model)

    def train(pair):
        loss = updated(optimizer, F.cross_entropy(model(pair[0]), pair[1]))
        average.update(model)
        return loss

    return losses_of(place, place.capture(train), 24), average.shadow.state_dict()


@captured_case(
    "A teacher follows by an average in the step, and the loop synchronises it at times.",
    expect=CAPTURED,
)
def mean_teacher(place):
    student = mlp(place, dropout=0.2)
    teacher = copy.deepcopy(student).eval().requires_grad_(False)
    optimizer = sgd(student, momentum=0.9)
    settings = {"decay": 0.9, "consistency": 0.5}

    def consistency(x, out):
        with torch.no_grad():
            target = teacher(x + 0.1 * torch.randn_like(x)).softmax(1)
        return F.mse_loss(out.softmax(1), target)

    def train(pair):
        x, y = pair
        out = student(x)
        loss = F.cross_entropy(out, y) + settings["consistency"] * consistency(x, out)
        updated(optimizer, loss)
        with torch.no_grad():
            ours, theirs = list(teacher.parameters()), list(student.parameters())
            torch._foreach_lerp_(ours, theirs, 1 - settings["decay"])
        return loss

    def before(number):
        if number == 12:
            settings["consistency"] = 1.0
        if number == 20:
            teacher.load_state_dict(student.state_dict())
        if number == 28:
            teacher.train()

    step = place.capture(train)
    return losses_of(place, step, NUM, before=before), state(student, optimizer), state(teacher)


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
    "Metrics on the device are updated in the step, read and replaced by the loop.",
    expect=CAPTURED,
)
def metrics_on_the_device(place):
    model = mlp(place)
    optimizer = sgd(model)
    meters = {"loss": DeviceMeter(place), "accuracy": DeviceMeter(place)}

    def train(pair):
        x, y = pair
        out = model(x)
        loss = updated(optimizer, F.cross_entropy(out, y))
        meters["loss"].update(loss, len(y))
        meters["accuracy"].update((out.argmax(1) == y).float().mean(), len(y))
        return loss

    step = place.capture(train)
    found = []
    for number, pair in enumerate(batches(place, NUM)):
        step(pair)
        if number in {13, 33}:
            found.append({name: kept(meter.compute()) for name, meter in meters.items()})
            for meter in meters.values():
                meter.reset()
    return found, [(meter.total, meter.count) for meter in meters.values()]


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


@captured_case(
    "A tracker of losses keeps the last results in a deque and a running tensor.", expect=EITHER
)
def tracker_of_losses(place):
    class Tracker:
        def __init__(self):
            self.recent, self.running = collections.deque(maxlen=3), None

        def __iadd__(self, loss):
            self.recent.append(loss)
            self.running = loss if self.running is None else 0.9 * self.running + 0.1 * loss
            return self

    class Trainer:
        def __init__(self):
            self.model = mlp(place)
            self.optimizer, self.tracker = sgd(self.model), Tracker()

        def train(self, pair):
            loss = updated(self.optimizer, F.cross_entropy(self.model(pair[0]), pair[1]))
            self.tracker += loss.detach()
            return loss

    trainer = Trainer()
    step = place.capture(trainer.train)
    found = []
    for number, pair in enumerate(batches(place, 30)):
        step(pair)
        if number % 4 == 3:
            found.append([kept(trainer.tracker.running), *map(kept, trainer.tracker.recent)])
    return found


# -------------------------------------------------------- augmentation, curricula and annealing


@captured_case(
    "Augmentations draw on the device; their list is changed and one is switched off.",
    expect=CAPTURED,
)
def augmentations_on_the_device(place):
    class Augment:
        def __init__(self, strength, enabled=True):
            self.strength, self.enabled = strength, enabled

        def __call__(self, x):
            return self.apply(x) if self.enabled else x

    class Noise(Augment):
        def apply(self, x):
            return x + self.strength * torch.randn_like(x)

    class Erase(Augment):
        def apply(self, x):
            return x * (torch.rand_like(x) > self.strength)

    model, pipeline = mlp(place), [Noise(0.1), Erase(0.2)]
    optimizer = sgd(model)

    def train(pair):
        x = functools.reduce(lambda x, augment: augment(x), pipeline, pair[0])
        return updated(optimizer, F.cross_entropy(model(x), pair[1]))

    def before(number):
        if number == 12:
            pipeline[0].enabled = False
        if number == 26:
            pipeline.insert(0, Noise(0.05))

    step = place.capture(train)
    return losses_of(place, step, NUM, before=before), state(model)


@captured_case(
    "Mixup draws its share from numpy, once the curriculum reaches it.", expect=refused("numpy")
)
def mixup_begins_late(place):
    model, curriculum = mlp(place), {"mixup": 0.0}
    optimizer = sgd(model)

    def mixed(x, y):
        share = np.random.beta(curriculum["mixup"], curriculum["mixup"])  # noqa: NPY002
        return share * x + (1 - share) * x.flip(0), (y, y.flip(0), share)

    def train(pair):
        x, y = pair
        if not curriculum["mixup"]:
            return updated(optimizer, F.cross_entropy(model(x), y))
        x, (one, other, share) = mixed(x, y)
        out = model(x)
        loss = share * F.cross_entropy(out, one) + (1 - share) * F.cross_entropy(out, other)
        return updated(optimizer, loss)

    step = place.capture(train)
    change = functools.partial(curriculum.update, mixup=0.4)
    return losses_of(place, step, NUM, before=at(15, change)), state(model)


@captured_case("A temperature is annealed by the loop each epoch, with a floor.", expect=CAPTURED)
def gumbel_temperature(place):
    class Quantizer(nn.Module):
        def __init__(self):
            super().__init__()
            self.encode, self.codes = nn.Linear(8, 6), nn.Parameter(torch.randn(6, 8))
            self.temperature = 2.0

        def anneal(self, epoch):
            self.temperature = max(0.5, 2.0 * math.exp(-0.7 * epoch))

        def forward(self, x):
            share = F.gumbel_softmax(self.encode(x), tau=self.temperature, dim=-1)
            return share @ self.codes

    model = Quantizer().to(place.torch_device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def train(x):
        return updated(optimizer, F.mse_loss(model(x), x))

    step = place.capture(train)
    losses = []
    for epoch in range(5):
        model.anneal(epoch)
        losses += [kept(step(images(place, number))) for number in range(12)]
    return losses, state(model, optimizer)


@captured_case(
    "A variational autoencoder whose weight of the divergence ramps up to one and stays.",
    expect=EITHER,
)
def divergence_ramps_up(place):
    @dataclass
    class Output:
        mean: torch.Tensor
        log_variance: torch.Tensor
        features: torch.Tensor

    class Autoencoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.decoder = nn.Linear(8, 8), nn.Linear(4, 8)

        def forward(self, x):
            mean, log_variance = self.encoder(x).chunk(2, dim=1)
            code = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
            return Output(mean, log_variance, self.decoder(code))

    class Ramp:
        def __init__(self, num):
            self.num, self.now = num, 0

        def __float__(self):
            return min(1.0, self.now / self.num)

    model, ramp = Autoencoder().to(place.torch_device), Ramp(6)
    optimizer = sgd(model)

    def train(x):
        out = model(x)
        divergence = 1 + out.log_variance - out.mean.pow(2) - out.log_variance.exp()
        loss = F.mse_loss(out.features, x) - 0.5 * float(ramp) * divergence.mean()
        return updated(optimizer, loss)

    step = place.capture(train)
    losses = []
    for number in range(48):
        ramp.now = min(ramp.now + 1, 6)
        losses.append(kept(step(images(place, number))))
    return losses, state(model)


# ------------------------------------------------------------------------ kinds of models


@captured_case(
    "A batch names its task, and a task's head is replaced in mid-run.", expect=CAPTURED
)
def head_by_a_field_of_the_batch(place):
    class MultiTask(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Linear(8, 16)
            self.heads = nn.ModuleDict({"class": nn.Linear(16, 4), "value": nn.Linear(16, 1)})

        def loss(self, x, y, task):
            out = self.heads[task](F.relu(self.body(x)))
            match task:
                case "class":
                    return F.cross_entropy(out, y)
                case "value":
                    return F.mse_loss(out.squeeze(1), y.float())
                case _:
                    raise KeyError(task)

    model = MultiTask().to(place.torch_device)
    optimizer = sgd(model)

    def train(batch):
        return updated(optimizer, model.loss(batch["x"], batch["y"], batch["task"]))

    step = place.capture(train)
    losses = []
    for number, (x, y) in enumerate(batches(place, 60)):
        if number == 30:
            model.heads["class"] = nn.Linear(16, 4).to(place.torch_device)
            optimizer = sgd(model)
        task = ("class", "value")[number % 2]
        losses.append(kept(step({"x": x, "y": y, "task": task})))
    return losses, state(model, optimizer)


@captured_case(
    "A mixture of experts keeps its balance loss and usage in attributes of its layers.",
    expect=CAPTURED,
)
def mixture_of_experts(place):
    class Experts(nn.Module):
        def __init__(self, num=3, top=2):
            super().__init__()
            self.router = nn.Linear(8, num)
            self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(num))
            self.top, self.balance = top, None
            self.register_buffer("usage", torch.zeros(num))

        def forward(self, x):
            shares = self.router(x).softmax(-1)
            values, chosen = shares.topk(self.top, dim=-1)
            gates = torch.zeros_like(shares).scatter(1, chosen, values)
            self.balance = shares.mean(0).pow(2).sum() * len(self.experts)
            self.usage += (gates > 0).sum(0).detach()
            return sum(gates[:, i : i + 1] * expert(x) for i, expert in enumerate(self.experts))

    layers = nn.Sequential(Experts(), nn.ReLU(), Experts(), nn.Linear(8, 4))
    model = layers.to(place.torch_device)
    optimizer = sgd(model)

    def train(pair):
        loss = F.cross_entropy(model(pair[0]), pair[1])
        balances = [m.balance for m in model.modules() if hasattr(m, "balance")]
        return updated(optimizer, loss + 0.01 * sum(balances))

    step = place.capture(train)
    losses = losses_of(place, step, NUM, before=at(18, lambda: setattr(model[0], "top", 1)))
    return losses, state(model), [kept(model[i].balance) for i in (0, 2)]


@captured_case(
    "A bank of features is written at the batch's indices, and neighbours are read from it.",
    expect=CAPTURED,
)
def memory_bank(place):
    class Bank(nn.Module):
        def __init__(self, num, size, momentum=0.5):
            super().__init__()
            self.register_buffer("rows", F.normalize(torch.randn(num, size), dim=1))
            self.momentum = momentum

        @torch.no_grad()
        def update(self, index, features):
            mixed = self.momentum * self.rows[index] + (1 - self.momentum) * features
            self.rows[index] = F.normalize(mixed, dim=1)

        def forward(self, features, index):
            return F.cross_entropy(features @ self.rows.T / 0.1, index)

    model, bank = mlp(place), Bank(20, 4).to(place.torch_device)
    optimizer = sgd(model)

    def train(batch):
        features = F.normalize(model(batch["x"]), dim=1)
        loss = updated(optimizer, bank(features, batch["index"]))
        bank.update(batch["index"], features.detach())
        return loss

    step = place.capture(train)
    losses = []
    for number in range(NUM):
        if number == 20:
            bank.momentum = 0.9
        index = (torch.arange(6) * 3 + number) % 20
        losses.append(kept(step({"x": images(place, number), "index": place.moved(index)})))
    return losses, state(model), bank.rows


@captured_case(
    "A queue of keys in a buffer with a pointer on the device; the key encoder follows.",
    expect=refused("to other memory", at="own.data = own.data"),
)
def queue_with_a_pointer_on_the_device(place):
    class Contrast(nn.Module):
        def __init__(self, size=12):
            super().__init__()
            self.query = nn.Linear(8, 4)
            self.key = copy.deepcopy(self.query).requires_grad_(False)
            self.register_buffer("queue", F.normalize(torch.randn(size, 4), dim=1))
            self.register_buffer("pointer", torch.zeros(1, dtype=torch.long))

        @torch.no_grad()
        def keys(self, x):
            for own, other in zip(self.key.parameters(), self.query.parameters(), strict=True):
                own.data = own.data * 0.9 + other.data * 0.1
            return F.normalize(self.key(x), dim=1)

        def forward(self, one, two):
            queries, keys = F.normalize(self.query(one), dim=1), self.keys(two)
            positive = (queries * keys).sum(1, keepdim=True)
            logits = torch.cat([positive, queries @ self.queue.clone().T], dim=1) / 0.2
            places = (self.pointer + torch.arange(len(keys), device=keys.device)) % 12
            self.queue.index_copy_(0, places, keys)
            self.pointer.add_(len(keys)).remainder_(12)
            return F.cross_entropy(logits, torch.zeros_like(places))

    model = Contrast().to(place.torch_device)
    optimizer = sgd(model.query)

    def train(views):
        return updated(optimizer, model(*views))

    step = place.capture(train)
    losses = [
        kept(step((images(place, number), images(place, number + 50)))) for number in range(30)
    ]
    return losses, model.state_dict()


@captured_case(
    "A diffusion model with schedules in buffers and a condition that is dropped at times.",
    expect=CAPTURED,
)
def diffusion_without_a_classifier(place):
    class Diffusion(nn.Module):
        def __init__(self, num=10):
            super().__init__()
            self.net, self.labels = nn.Linear(8 + 4 + 1, 8), nn.Embedding(5, 4)
            self.num, self.p_drop, self.target = num, 0.2, "noise"
            self.set_schedule(torch.linspace(0.01, 0.2, num))

        def set_schedule(self, betas):
            product = torch.cumprod(1 - betas, 0)
            self.register_buffer("keep", product.sqrt(), persistent=False)
            self.register_buffer("noise", (1 - product).sqrt(), persistent=False)

        def forward(self, x, y):
            t = torch.randint(self.num, (len(x),), device=x.device)
            drop = torch.rand(len(x), device=x.device) < self.p_drop
            y = torch.where(drop, torch.full_like(y, 4), y)
            noise = torch.randn_like(x)
            noised = self.keep[t][:, None] * x + self.noise[t][:, None] * noise
            inputs = [noised, self.labels(y), t[:, None] / self.num]
            out = self.net(torch.cat(inputs, dim=1))
            return F.mse_loss(out, noise if self.target == "noise" else x)

    model = Diffusion().to(place.torch_device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    def train(pair):
        return updated(optimizer, model(*pair))

    def before(number):
        if number == 12:
            model.p_drop = 0.5
        if number == 24:
            betas = torch.linspace(0.02, 0.3, 10, device=place.torch_device)
            model.set_schedule(betas)
        if number == 36:
            model.target = "x"

    step = place.capture(train)
    return losses_of(place, step, 52, before=before), state(model, optimizer)


@captured_case(
    "A GAN: one captured step for both players, chosen by an argument, several for the critic.",
    expect=EITHER,
)
def players_in_turn(place):
    class Game:
        def __init__(self):
            self.players = {"critic": mlp(place, num_out=1), "maker": mlp(place, num_out=8)}
            self.optimizers = {
                name: torch.optim.Adam(player.parameters(), lr=0.01, betas=(0.5, 0.9))
                for name, player in self.players.items()
            }
            self.real_label = 1.0

        def loss(self, who, x):
            fake = self.players["maker"](torch.randn_like(x))
            if who == "maker":
                return F.softplus(-self.players["critic"](fake)).mean()
            real = self.players["critic"](x)
            target = torch.full_like(real, self.real_label)
            lost = F.binary_cross_entropy_with_logits(real, target)
            return lost + F.softplus(self.players["critic"](fake.detach())).mean()

        def play(self, x, who):
            for name, player in self.players.items():
                player.requires_grad_(name == who)
            return updated(self.optimizers[who], self.loss(who, x))

    game = Game()
    step = place.capture(game.play)
    losses = []
    for number in range(54):
        if number == 27:
            game.real_label = 0.9
        who = "maker" if number % 3 == 2 else "critic"
        losses.append(kept(step(images(place, number), who)))
    return losses, [state(player) for player in game.players.values()]


@captured_case(
    "An actor and a critic learn from a replay memory on the device, filled by the loop.",
    expect=CAPTURED,
)
def replay_on_the_device(place):
    class Replay:
        def __init__(self, capacity=64):
            self.states = torch.zeros(capacity, 8, device=place.torch_device)
            self.rewards = torch.zeros(capacity, device=place.torch_device)
            self.size = torch.zeros((), dtype=torch.long, device=place.torch_device)
            self.next = 0

        def add(self, states, rewards):
            rows = slice(self.next, self.next + len(states))
            self.states[rows], self.rewards[rows] = states, rewards
            self.next = (self.next + len(states)) % 60
            self.size.add_(len(states)).clamp_(max=60)

        def sample(self, num):
            index = (torch.rand(num, device=place.torch_device) * self.size).long()
            return self.states[index], self.rewards[index]

    class Agent:
        def __init__(self):
            self.actor, self.critic = mlp(place), mlp(place, num_out=1)
            both = [*self.actor.parameters(), *self.critic.parameters()]
            self.optimizer = torch.optim.Adam(both, lr=0.01)
            self.replay, self.entropy = Replay(), 0.01

        def learn(self):
            states, rewards = self.replay.sample(6)
            policy = torch.distributions.Categorical(
                logits=self.actor(states), validate_args=False
            )
            actions, values = policy.sample(), self.critic(states).squeeze(1)
            gain = (rewards - values).detach()
            loss = F.mse_loss(values, rewards) - (policy.log_prob(actions) * gain).mean()
            return updated(self.optimizer, loss - self.entropy * policy.entropy().mean())

    agent = Agent()
    learn = place.capture(agent.learn)
    losses = []
    for number in range(NUM):
        states = images(place, number)
        agent.replay.add(states, states.sum(1))
        if number == 20:
            agent.entropy = 0.0
        losses.append(kept(learn()))
    return losses, state(agent.actor, agent.optimizer)


@captured_case("A graph network adds messages by index tensors of the batch.", expect=CAPTURED)
def messages_by_index(place):
    class Layer(nn.Module):
        aggregation = "sum"

        def __init__(self):
            super().__init__()
            self.message, self.update = nn.Linear(16, 8), nn.Linear(16, 8)

        def forward(self, nodes, edges):
            source, target = edges
            messages = F.relu(self.message(torch.cat([nodes[source], nodes[target]], dim=1)))
            pooled = torch.zeros_like(nodes).index_add(0, target, messages)
            if self.aggregation == "mean":
                degree = nodes.new_zeros(len(nodes)).index_add(
                    0, target, torch.ones_like(messages[:, 0])
                )
                pooled = pooled / degree.clamp(min=1)[:, None]
            return self.update(torch.cat([nodes, pooled], dim=1))

    model = nn.ModuleList([Layer(), Layer()]).to(place.torch_device)
    optimizer = sgd(model)

    def train(graph):
        nodes = graph["nodes"]
        for layer in model:
            nodes = F.relu(layer(nodes, graph["edges"])) + nodes
        return updated(optimizer, nodes.pow(2).mean())

    edges = place.moved(torch.tensor([[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 0]]))
    step = place.capture(train)
    losses = []
    for number in range(NUM):
        if number == 20:
            Layer.aggregation = "mean"
        losses.append(kept(step({"nodes": images(place, number), "edges": edges})))
    return losses, state(model)


@captured_case(
    "A detector's targets are a list of dicts, and its losses a dict that is summed by weight.",
    expect=CAPTURED,
)
def targets_are_dicts(place):
    class Criterion:
        weights = MappingProxyType({"boxes": 1.0, "labels": 0.5})

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
            Criterion.weights = MappingProxyType({"boxes": 1.0, "labels": 2.0})

    step = place.capture(train)
    found = []
    for number, (x, y) in enumerate(batches(place, NUM)):
        before(number)
        samples = [
            (row, {"box": row[:4], "label": label}) for row, label in zip(x, y, strict=True)
        ]
        found.append({name: kept(value) for name, value in step(samples).items()})
    return found, state(model)


class ModelOutput(collections.OrderedDict):
    """A dict whose entries are attributes, and which is indexed as a tuple too."""

    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __getitem__(self, key):
        return list(self.values())[key] if isinstance(key, int) else super().__getitem__(key)


@captured_case(
    "A model returns a dict with attributes, whose fields depend on flags of its config.",
    expect=CAPTURED,
)
def output_with_attributes(place):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.config = SimpleNamespace(output_hidden=False, return_dict=True, num_labels=4)
            self.body, self.head = nn.Linear(8, 16), nn.Linear(16, 4)

        def forward(self, features=None, labels=None, **flags):
            hidden = torch.tanh(self.body(features))
            output = ModelOutput(logits=self.head(hidden))
            if labels is not None:
                output = ModelOutput(loss=F.cross_entropy(output.logits, labels), **output)
            if flags.get("output_hidden", self.config.output_hidden):
                output["hidden"] = hidden
            return output if self.config.return_dict else tuple(output.values())

    model = Model().to(place.torch_device)
    optimizer = sgd(model)

    def train(**batch):
        output = model(**batch)
        loss = output[0]
        if isinstance(output, ModelOutput) and "hidden" in output:
            loss = loss + 0.1 * output.hidden.pow(2).mean()
        updated(optimizer, loss)
        return output

    changes = {14: {"output_hidden": True}, 27: {"output_hidden": False, "return_dict": False}}
    step = place.capture(train)
    found = []
    for number, (x, y) in enumerate(batches(place, NUM)):
        vars(model.config).update(changes.get(number, {}))
        output = step(features=x, labels=y)
        found.append([kept(part) for part in getattr(output, "values", output.__iter__)()])
    return found, state(model)


@captured_case(
    "A sequence model caches positions for the longest length it has met.", expect=EITHER
)
def cache_of_the_longest_length(place):
    class Rotary(nn.Module):
        def __init__(self):
            super().__init__()
            self.longest, self.scale = 0, 1.0
            self.sin = self.cos = None

        def forward(self, x):
            length = x.shape[1]
            if length > self.longest:
                angles = torch.arange(length, device=x.device)[:, None] * self.scale
                self.longest = length
                self.sin, self.cos = angles.sin(), angles.cos()
            return x * self.cos[:length] + x.flip(2) * self.sin[:length]

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.rotary, self.out = nn.Embedding(9, 8), Rotary(), nn.Linear(8, 9)

        def forward(self, ids, mask):
            hidden = self.rotary(self.embed(ids))
            scores = hidden @ hidden.transpose(1, 2)
            scores = scores.masked_fill(~mask[:, None, :], float("-inf"))
            causal = torch.ones_like(scores, dtype=torch.bool).tril()
            return self.out(scores.masked_fill(~causal, -1e9).softmax(-1) @ hidden)

    model = Model().to(place.torch_device)
    optimizer = sgd(model)

    def train(batch):
        ids, mask = batch
        out = model(ids[:, :-1], mask[:, :-1])
        return updated(optimizer, F.cross_entropy(out.flatten(0, 1), ids[:, 1:].flatten()))

    step = place.capture(train)
    losses = []
    for number in range(60):
        length = 8 if number in {20, 21} else (5, 6)[number // 3 % 2]
        draw = torch.Generator().manual_seed(number)
        ids = torch.randint(0, 9, (3, length), generator=draw)
        mask = torch.ones(3, length, dtype=torch.bool)
        losses.append(kept(step((place.moved(ids), place.moved(mask)))))
    return losses, state(model)


# ------------------------------------------------------------------------- odd and common ways


@captured_case(
    "A generator in the step yields micro-batches, and their number changes.", expect=CAPTURED
)
def pipeline_of_generators(place):
    model, settings = mlp(place), SimpleNamespace(num_parts=2, scale=1.0)
    optimizer = sgd(model)

    def split(pair, num):
        yield from zip(*(tensor.chunk(num) for tensor in pair), strict=True)

    def scaled(parts):
        for x, y in parts:
            yield x * settings.scale, y

    def train(pair):
        optimizer.zero_grad()
        losses = []
        for x, y in scaled(split(pair, settings.num_parts)):
            loss = F.cross_entropy(model(x), y) / settings.num_parts
            loss.backward()
            losses.append(loss.detach())
        optimizer.step()
        return torch.stack(losses).sum()

    def before(number):
        if number == 13:
            settings.num_parts = 3
        if number == 26:
            settings.scale = 0.5

    step = place.capture(train)
    return losses_of(place, step, NUM, before=before), state(model)


@captured_case("A chain of partials is built anew, and a keyword inside changes.", expect=CAPTURED)
def chain_of_partials(place):
    def smooth(out, y, *, smoothing, reduction):
        return F.cross_entropy(out, y, label_smoothing=smoothing, reduction=reduction)

    def then(*functions):
        return lambda *args: functools.reduce(
            lambda value, f: f(value), functions[1:], functions[0](*args)
        )

    inner = functools.partial(smooth, smoothing=0.1)
    outer = functools.partial(inner, reduction="none")
    table = {"loss": then(outer, lambda values: values * 2.0, torch.mean)}
    model = mlp(place)
    optimizer = sgd(model)

    def train(pair):
        return updated(optimizer, table["loss"](model(pair[0]), pair[1]))

    def before(number):
        if number == 13:
            outer.keywords["smoothing"] = 0.4
        if number == 26:
            table["loss"] = then(functools.partial(outer, smoothing=0.0), torch.sum)

    step = place.capture(train)
    return losses_of(place, step, NUM, before=before), state(model)


@captured_case("Closures in a list hold loop variables of their own.", expect=CAPTURED)
def closures_in_a_list(place):
    model, powers = mlp(place), [1, 2, 3]
    optimizer = sgd(model)

    def term(power):
        weight = 1.0 / power

        def compute(out):
            return weight * out.abs().pow(power).mean()

        def rescale(factor):
            nonlocal weight
            weight *= factor

        compute.rescale = rescale
        return compute

    terms = [term(power) for power in powers]

    def train(pair):
        out = model(pair[0])
        first, *others = (compute(out) for compute in terms)
        return updated(optimizer, sum(others, first) + F.cross_entropy(out, pair[1]))

    step = place.capture(train)
    change = functools.partial(terms[1].rescale, 0.1)
    return losses_of(place, step, NUM, before=at(18, change)), state(model)


@captured_case("Losses are expressions: objects that are added and multiplied.", expect=CAPTURED)
def losses_as_expressions(place):
    class Term:
        def __init__(self, compute, weight=1.0):
            self.compute, self.weight = compute, weight

        def __rmul__(self, factor):
            return Term(self.compute, self.weight * factor)

        def __add__(self, other):
            return Sum(self, other)

        def __call__(self, *args):
            return self.weight * self.compute(*args)

    class Sum(Term):
        def __init__(self, *terms):
            self.terms = terms

        def __call__(self, *args):
            return functools.reduce(operator.add, (term(*args) for term in self.terms))

    model, size = mlp(place), Term(lambda out, y: out.pow(2).mean())
    optimizer = sgd(model)
    task = Term(F.cross_entropy)

    def train(pair):
        total = task + 0.5 * size
        return updated(optimizer, total(model(pair[0]), pair[1]))

    step = place.capture(train)
    change = functools.partial(setattr, size, "weight", 0.1)
    return losses_of(place, step, NUM, before=at(18, change)), state(model)


@captured_case(
    "One step function trains and evaluates, by a flag that a context manager sets.",
    expect=CAPTURED,
)
def one_step_trains_and_evaluates(place):
    class Runner:
        def __init__(self):
            self.model = mlp(place, dropout=0.3)
            self.optimizer, self.training = sgd(self.model), True

        @contextlib.contextmanager
        def evaluation(self):
            self.training = False
            self.model.eval()
            try:
                yield self
            finally:
                self.training = True
                self.model.train()

        def step(self, pair):
            with torch.set_grad_enabled(self.training):
                out = self.model(pair[0])
                loss = F.cross_entropy(out, pair[1])
            if not self.training:
                return {"loss": loss, "hits": (out.argmax(1) == pair[1]).sum()}
            return {"loss": updated(self.optimizer, loss)}

    runner, found = Runner(), []
    step = place.capture(runner.step)
    for epoch in range(4):
        found += [kept(step(pair)["loss"]) for pair in batches(place, 9)]
        with runner.evaluation():
            results = [step(batch(place, 30 + number)) for number in range(4 + epoch % 2)]
            found += [{name: kept(value) for name, value in one.items()} for one in results]
    return found, state(runner.model)


@captured_case(
    "A checkpoint is taken in mid-loop, training goes on, and is rolled back to it.",
    expect=CAPTURED,
)
def rolled_back_to_a_checkpoint(place):
    class Trainer:
        def __init__(self):
            self.model = mlp(place, dropout=0.1)
            self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
            self.label_smoothing = 0.0

        def train(self, pair):
            out = self.model(pair[0])
            loss = F.cross_entropy(out, pair[1], label_smoothing=self.label_smoothing)
            return updated(self.optimizer, loss)

        def state_dict(self):
            parts = {"model": self.model, "optimizer": self.optimizer}
            content = {name: copy.deepcopy(part.state_dict()) for name, part in parts.items()}
            return content | {"label_smoothing": self.label_smoothing}

        def load_state_dict(self, content):
            self.model.load_state_dict(content["model"])
            self.optimizer.load_state_dict(copy.deepcopy(content["optimizer"]))
            self.label_smoothing = content["label_smoothing"]

    trainer, losses = Trainer(), []
    step = place.capture(trainer.train)
    losses += losses_of(place, step, 14)
    checkpoint = trainer.state_dict()
    trainer.label_smoothing = 0.2
    losses += losses_of(place, step, 12)
    trainer.load_state_dict(checkpoint)
    losses += losses_of(place, step, 14)
    fresh = snapshot(place, checkpoint)
    return losses, fresh, state(trainer.model, trainer.optimizer)


@captured_case(
    "A resumed trainer gets a new model and optimizer in its attributes, and goes on.",
    expect=CAPTURED,
)
def resumed_into_new_objects(place):
    trainer = EventTrainer(place)
    step = place.capture(trainer.train_step)
    losses = losses_of(place, step, 14)
    saved = copy.deepcopy((trainer.model.state_dict(), trainer.optimizer.state_dict()))
    trainer.model = mlp(place)
    trainer.optimizer = sgd(trainer.model, momentum=0.9)
    trainer.model.load_state_dict(saved[0])
    trainer.optimizer.load_state_dict(saved[1])
    losses += losses_of(place, step, 16)
    return losses, state(trainer.model, trainer.optimizer)


@captured_case(
    "An accumulator counts micro-steps inside the step and updates at each fourth.",
    expect=refused("micro_step"),
)
def accumulator_counts(place):
    class Accumulator:
        def __init__(self, model, optimizer, every=4):
            self.model, self.optimizer = model, optimizer
            self.every, self.micro_step = every, 0

        @property
        def is_boundary(self):
            return (self.micro_step + 1) % self.every == 0

        def backward(self, loss):
            (loss / self.every).backward()

        def step(self):
            if self.is_boundary:
                self.optimizer.step()
                self.optimizer.zero_grad(set_to_none=False)
            self.micro_step += 1

    model = mlp(place)
    engine = Accumulator(model, sgd(model))

    def train(pair):
        loss = F.cross_entropy(model(pair[0]), pair[1])
        engine.backward(loss)
        engine.step()
        return loss

    return losses_of(place, place.capture(train), 24), engine.micro_step, state(model)


@captured_case(
    "The loop keeps a view of a weight's gradient and a result's field for a plot later.",
    expect=EITHER,
)
def views_are_kept_for_a_plot(place):
    model = mlp(place)
    optimizer = sgd(model)
    kept_for_plots = collections.defaultdict(list)

    def train(pair):
        optimizer.zero_grad()
        out = model(pair[0])
        loss = F.cross_entropy(out, pair[1])
        loss.backward()
        optimizer.step()
        return SimpleNamespace(loss=loss.detach(), out=out.detach()).__dict__

    step = place.capture(train)
    for number, pair in enumerate(batches(place, 30)):
        result = step(pair)
        if number % 5 == 4:
            kept_for_plots["bias"].append(model[0].bias.grad[:4])
            kept_for_plots["out"].append(result["out"][0])
            kept_for_plots["diagonal"].append(model[0].weight.grad.diagonal())
    return kept_for_plots, state(model)


@captured_case(
    "A sampler in the step walks through indices of its own iterator.",
    expect=refused("order"),
)
def sampler_walks_on(place):
    class Sampler:
        def __init__(self, num):
            self.order = itertools.cycle(range(num))

        def __call__(self, x):
            return x[next(self.order)]

    model, sampler = mlp(place), Sampler(6)
    optimizer = sgd(model)

    def train(pair):
        anchor = sampler(pair[0])
        out = model(pair[0] - anchor)
        return updated(optimizer, F.cross_entropy(out, pair[1]))

    return losses_of(place, place.capture(train), 24), sampler(torch.arange(6)), state(model)


@captured_case(
    "A state machine moves on by itself after a number of steps it counts.", expect=refused("left")
)
def state_machine_moves_on(place):
    class Warm:
        left = 9

        def loss(self, machine, out, y):
            self.left -= 1
            if not self.left:
                machine.state = Main()
            return 0.1 * F.cross_entropy(out, y)

    class Main:
        def loss(self, machine, out, y):
            return F.cross_entropy(out, y)

    model, machine = mlp(place), SimpleNamespace(state=Warm())
    optimizer = sgd(model)

    def train(pair):
        loss = machine.state.loss(machine, model(pair[0]), pair[1])
        return updated(optimizer, loss)

    step = place.capture(train)
    return losses_of(place, step, 30), type(machine.state).__name__, state(model)


@captured_case(
    "A module's method is wrapped for some epochs by a profiler that is detached again.",
    expect=EITHER,
)
def methods_are_wrapped_for_a_while(place):
    class Profiler:
        def __init__(self):
            self.calls = collections.Counter()

        def attach(self, module):
            for name, child in module.named_modules():
                original = child.forward

                def wrapped(*args, name=name, original=original):
                    self.calls[name] += 1
                    return original(*args)

                child.forward = wrapped
            return self

        def detach(self, module):
            for child in module.modules():
                del child.forward

    model, profiler = mlp(place), Profiler()
    optimizer = sgd(model)

    def train(pair):
        return updated(optimizer, F.cross_entropy(model(pair[0]), pair[1]))

    step = place.capture(train)
    losses = losses_of(place, step, 14)
    profiler.attach(model)
    losses += losses_of(place, step, 10)
    profiler.detach(model)
    losses += losses_of(place, step, 14)
    return losses, profiler.calls, state(model)


# ------------------------------------------------------- found while the first cases were mended


def with_old_gradients(place, train):
    """Train by `train(model, optimizer, loss_of)`, which may use the gradients that it finds."""
    model = mlp(place)
    optimizer = sgd(model, momentum=0.9)

    def run_step(pair):
        return train(model, optimizer, lambda: F.cross_entropy(model(pair[0]), pair[1]))

    step = place.capture(run_step)
    return losses_of(place, step, 30), state(model, optimizer)


@captured_case(
    "The step begins with the update by the gradients of the step before.",
    expect=refused("computes something else"),
)
def update_comes_first(place):
    def train(model, optimizer, loss_of):
        optimizer.step()
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        return loss

    return with_old_gradients(place, train)


@captured_case(
    "Half of the gradients before are copied, and added to the new ones.",
    expect=refused("computes something else"),
)
def old_gradients_are_added(place):
    def train(model, optimizer, loss_of):
        old = [None if p.grad is None else 0.5 * p.grad for p in model.parameters()]
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        for parameter, gradient in zip(model.parameters(), old, strict=True):
            if gradient is not None:
                parameter.grad.add_(gradient)
        optimizer.step()
        return loss

    return with_old_gradients(place, train)


@captured_case(
    "The gradients of the step before are held as they are, to compare directions.",
    expect=refused("computes something else"),
)
def directions_are_compared(place):
    def train(model, optimizer, loss_of):
        old = [parameter.grad for parameter in model.parameters()]
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        for parameter, gradient in zip(model.parameters(), old, strict=True):
            if gradient is not None:
                parameter.grad.mul_(1 + F.cosine_similarity(parameter.grad, gradient, -1).mean())
        optimizer.step()
        return loss

    return with_old_gradients(place, train)


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


@captured_case("A cached function returns a dict of settings, which changes.", expect=CAPTURED)
def settings_from_a_cached_function(place):
    @functools.cache
    def settings():
        return {"weight": 1.0}

    model = mlp(place)
    optimizer = sgd(model)
    settings()

    def weighted(loss, values):
        return loss * values["weight"]

    def train(pair):
        loss = F.cross_entropy(model(pair[0]), pair[1])
        return updated(optimizer, weighted(loss, settings()))

    step = place.capture(train)
    change = functools.partial(settings().update, weight=0.2)
    return losses_of(place, step, 30, before=at(15, change)), state(model)


@captured_case("A keyword of a partial in a tuple changes.", expect=CAPTURED)
def keyword_of_a_partial_in_a_tuple(place):
    losses = (functools.partial(F.cross_entropy, label_smoothing=0.1),)
    model = mlp(place)
    optimizer = sgd(model)

    def train(pair):
        return updated(optimizer, losses[0](model(pair[0]), pair[1]))

    step = place.capture(train)
    change = functools.partial(losses[0].keywords.update, label_smoothing=0.4)
    return losses_of(place, step, 30, before=at(15, change)), state(model)
