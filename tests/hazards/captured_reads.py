"""What a step reads from Python, and that changes or stays between its calls.

Where a value changes once, it changes late: even a step that runs as written from then on has been
replayed in a third of its calls.
"""

from __future__ import annotations

import argparse
import contextvars
import enum
import functools
import math
import os
import threading
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from hazards import captured_elsewhere
from hazards.captured_harness import (
    CAPTURED,
    EITHER,
    GPU,
    HOLDS,
    captured_case,
    everything_said,
)
from hazards.captured_models import (
    Trainer,
    batch,
    batches,
    kept,
    losses_of,
    mlp,
    sgd,
    updated,
)


NUM, LATE = 30, 18
ALPHA = 0.1
ACTIVATION = torch.relu


@captured_case(
    "A plain step of a classifier, where nothing but the weights changes.", expect=CAPTURED
)
def nothing_changes(place):
    trainer = Trainer(place)
    return losses_of(place, place.capture(trainer.train), 16), trainer.state()


# -------------------------------------------------------------------- where a number can stand


@captured_case("A number of the closure changes once, in the middle of training.", expect=CAPTURED)
def closure_number(place):
    model, alpha, losses = mlp(place), 0.1, []
    optimizer = sgd(model)

    def step(pair):
        out = model(pair[0])
        return updated(optimizer, F.cross_entropy(out, pair[1]) + alpha * out.square().mean())

    step = place.capture(step)
    for number, pair in enumerate(batches(place, NUM)):
        if number == LATE:
            alpha = 0.7
        losses.append(kept(step(pair)))
    return losses, model.state_dict()


@captured_case(
    "A number two closures up is set by `nonlocal` in a function of the loop.", expect=CAPTURED
)
def nonlocal_number(place):
    trainer, margin = Trainer(place), 0.5

    def hinge(loss):
        def clamped():
            return (loss - margin).clamp(min=0) + margin

        return clamped()

    def loosen(number):
        nonlocal margin
        if number == LATE:
            margin = 1.5

    step = place.capture(lambda pair: updated(trainer.optimizer, hinge(trainer.loss(pair))))
    return losses_of(place, step, NUM, before=loosen), trainer.state()


@captured_case("A global of the script changes once.", expect=CAPTURED)
def global_number(place):
    global ALPHA
    ALPHA = 0.1
    trainer, losses = Trainer(place), []

    def step(pair):
        return updated(trainer.optimizer, ALPHA * trainer.loss(pair))

    step = place.capture(step)
    for number, pair in enumerate(batches(place, NUM)):
        if number == LATE:
            ALPHA = 0.3
        losses.append(kept(step(pair)))
    return losses, trainer.state()


@captured_case("A global function of the script is replaced once.", expect=CAPTURED)
def global_function(place):
    global ACTIVATION
    ACTIVATION = torch.relu
    model, losses = mlp(place), []
    optimizer = sgd(model)

    def step(pair):
        return updated(optimizer, F.cross_entropy(ACTIVATION(model(pair[0])), pair[1]))

    step = place.capture(step)
    for number, pair in enumerate(batches(place, NUM)):
        if number == LATE:
            ACTIVATION = torch.tanh
        losses.append(kept(step(pair)))
    return losses, model.state_dict()


class Weighted(Trainer):
    """A trainer whose loss has a weight: an attribute, or one of the class."""

    weight = 1.0

    def step(self, pair):
        return updated(self.optimizer, self.weight * self.loss(pair))


@captured_case("An attribute of the trainer changes once.", expect=CAPTURED)
def attribute(place):
    trainer = Weighted(place)
    trainer.weight = 0.5

    def change(number):
        if number == LATE:
            trainer.weight = 2.0

    return losses_of(place, place.capture(trainer.step), NUM, before=change), trainer.state()


@captured_case(
    "An attribute of the class changes, and then one of the object hides it.", expect=CAPTURED
)
def class_attribute(place):
    class Mine(Weighted):
        weight = 0.5

    trainer = Mine(place)

    def change(number):
        if number == LATE:
            Mine.weight = 1.5
        if number == LATE + 6:
            trainer.weight = 0.25

    return losses_of(place, place.capture(trainer.step), NUM, before=change), trainer.state()


@captured_case("A property is computed from an attribute that changes once.", expect=CAPTURED)
def property_of_an_attribute(place):
    class Warm(Weighted):
        phase = 1

        @property
        def weight(self):
            return 1.0 / self.phase

    trainer = Warm(place)

    def change(number):
        if number == LATE:
            trainer.phase = 4

    return losses_of(place, place.capture(trainer.step), NUM, before=change), trainer.state()


@captured_case("A cached property is dropped and computed anew once.", expect=CAPTURED)
def cached_property(place):
    class Cached(Weighted):
        scale = 2.0

        @functools.cached_property
        def weight(self):
            return self.scale / 4

    trainer = Cached(place)

    def change(number):
        if number == LATE:
            trainer.scale = 6.0
            del trainer.weight

    return losses_of(place, place.capture(trainer.step), NUM, before=change), trainer.state()


@captured_case("A number in a dict of dicts and lists changes once.", expect=CAPTURED)
def nested_containers(place):
    trainer = Trainer(place)
    config = {"loss": {"terms": [("ce", {"weight": 1.0}), ("l2", {"weight": 0.1})]}}

    def step(pair):
        out, terms = trainer.model(pair[0]), dict(config["loss"]["terms"])
        loss = terms["ce"]["weight"] * F.cross_entropy(out, pair[1])
        return updated(trainer.optimizer, loss + terms["l2"]["weight"] * out.square().mean())

    def change(number):
        if number == LATE:
            config["loss"]["terms"][1][1]["weight"] = 0.9

    return losses_of(place, place.capture(step), NUM, before=change), trainer.state()


@captured_case("A list of weights is changed in place, as long as before.", expect=CAPTURED)
def list_item(place):
    trainer, weights = Trainer(place), [1.0, 0.1]

    def step(pair):
        out = trainer.model(pair[0])
        terms = F.cross_entropy(out, pair[1]), out.square().mean()
        return updated(trainer.optimizer, sum(w * t for w, t in zip(weights, terms, strict=True)))

    def change(number):
        if number == LATE:
            weights[1] = 0.8

    return losses_of(place, place.capture(step), NUM, before=change), trainer.state()


@captured_case("Names are added to a set that decides which weights are decayed.", expect=CAPTURED)
def membership_in_a_set(place):
    trainer, decayed = Trainer(place), {"0.weight"}

    def step(pair):
        loss = trainer.loss(pair)
        for name, weight in trainer.model.named_parameters():
            if name in decayed:
                loss = loss + 0.1 * weight.square().sum()
        return updated(trainer.optimizer, loss)

    def change(number):
        if number == LATE:
            decayed.add("3.weight")
            decayed.discard("0.weight")

    return losses_of(place, place.capture(step), NUM, before=change), trainer.state()


@dataclass(frozen=True)
class LossConfig:
    """Settings of a loss."""

    smoothing: float = 0.0
    weights: dict = field(default_factory=lambda: {"aux": 0.1})


@captured_case("A frozen dataclass of settings is replaced by another.", expect=CAPTURED)
def frozen_dataclass(place):
    trainer = Trainer(place)
    trainer.config = LossConfig()

    def step(pair):
        config, out = trainer.config, trainer.model(pair[0])
        loss = F.cross_entropy(out, pair[1], label_smoothing=config.smoothing)
        return updated(trainer.optimizer, loss + config.weights["aux"] * out.abs().mean())

    def change(number):
        if number == LATE:
            trainer.config = replace(trainer.config, smoothing=0.2)

    return losses_of(place, place.capture(step), NUM, before=change), trainer.state()


@captured_case("A namespace of arguments is changed once, as `args.beta`.", expect=CAPTURED)
def arguments_of_the_script(place):
    args = argparse.Namespace(beta=0.5, reduction="mean")
    trainer = Trainer(place)

    def step(pair):
        out = trainer.model(pair[0])
        loss = F.smooth_l1_loss(out, F.one_hot(pair[1], 4).float(), beta=args.beta)
        return updated(trainer.optimizer, loss)

    def change(number):
        if number == LATE:
            args.beta = 0.05

    return losses_of(place, place.capture(step), NUM, before=change), trainer.state()


@captured_case("A string chooses the reduction of the loss and changes once.", expect=CAPTURED)
def string(place):
    args, trainer = SimpleNamespace(reduction="mean"), Trainer(place)

    def step(pair):
        loss = F.cross_entropy(trainer.model(pair[0]), pair[1], reduction=args.reduction)
        return updated(trainer.optimizer, loss)

    def change(number):
        if number == LATE:
            args.reduction = "sum"

    return losses_of(place, place.capture(step), NUM, before=change), trainer.state()


class Phase(enum.Enum):
    """Phases of a training."""

    WARM = 1
    MAIN = 2


@captured_case("A phase, which is an enum, changes once.", expect=CAPTURED)
def phase_is_an_enum(place):
    trainer = Trainer(place)
    trainer.phase = Phase.WARM

    def step(pair):
        loss = trainer.loss(pair)
        if trainer.phase is Phase.MAIN:
            loss = loss + sum(weight.abs().sum() for weight in trainer.model.parameters())
        return updated(trainer.optimizer, loss)

    def change(number):
        if number == LATE:
            trainer.phase = Phase.MAIN

    return losses_of(place, place.capture(step), NUM, before=change), trainer.state()


class AttrDict(dict):
    """A config whose keys are attributes, as many projects have one."""

    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


@captured_case("Settings are read through `__getattr__` of a dict.", expect=CAPTURED)
def attribute_dict(place):
    config, trainer = AttrDict(loss=AttrDict(weight=1.0)), Trainer(place)

    def step(pair):
        return updated(trainer.optimizer, config.loss.weight * trainer.loss(pair))

    def change(number):
        if number == LATE:
            config.loss["weight"] = 0.2

    return losses_of(place, place.capture(step), NUM, before=change), trainer.state()


class Slotted:
    """Settings without a dict."""

    __slots__ = ("inner", "weight")

    def __init__(self, weight, inner=None):
        self.weight, self.inner = weight, inner


@captured_case(
    "Settings stand in the slots of an object in the slot of an object.", expect=CAPTURED
)
def slots(place):
    config, trainer = Slotted(1.0, Slotted(0.5)), Trainer(place)

    def step(pair):
        return updated(trainer.optimizer, config.inner.weight * trainer.loss(pair))

    def change(number):
        if number == LATE:
            config.inner.weight = 2.0

    return losses_of(place, place.capture(step), NUM, before=change), trainer.state()


@captured_case("A default argument is a list that the loop changes.", expect=CAPTURED)
def default_argument(place):
    trainer, schedule = Trainer(place), [1.0]

    def step(pair, weights=schedule):
        return updated(trainer.optimizer, weights[0] * trainer.loss(pair))

    def change(number):
        if number == LATE:
            schedule[0] = 0.1

    return losses_of(place, place.capture(step), NUM, before=change), trainer.state()


@captured_case("The step is a partial whose keyword is changed once.", expect=CAPTURED)
def keyword_of_a_partial(place):
    trainer = Trainer(place)

    def weighted(pair, *, options):
        return updated(trainer.optimizer, options["weight"] * trainer.loss(pair))

    options = {"weight": 1.0}
    step = place.capture(functools.partial(weighted, options=options))

    def change(number):
        if number == LATE:
            options["weight"] = 0.3

    return losses_of(place, step, NUM, before=change), trainer.state()


@captured_case("A function of another module reads a global of that module.", expect=CAPTURED)
def global_of_another_module(place):
    captured_elsewhere.restore()
    trainer = Trainer(place)

    def step(pair):
        return updated(trainer.optimizer, captured_elsewhere.scaled(trainer.loss(pair)))

    def change(number):
        if number == LATE:
            captured_elsewhere.SCALE = 0.2

    return losses_of(place, place.capture(step), NUM, before=change), trainer.state()


@captured_case("A function of another module reads a dict of that module.", expect=CAPTURED)
def dict_of_another_module(place):
    captured_elsewhere.restore()
    trainer = Trainer(place)

    def step(pair):
        out = trainer.model(pair[0])
        loss = F.cross_entropy(out, pair[1]) + captured_elsewhere.penalty(out)
        return updated(trainer.optimizer, loss)

    def change(number):
        if number == LATE:
            captured_elsewhere.SETTINGS["penalty"] = {"weight": 0.5, "power": 1}

    return losses_of(place, place.capture(step), NUM, before=change), trainer.state()


@captured_case("A registry of another module is asked for a number.", expect=CAPTURED)
def registry_of_another_module(place):
    captured_elsewhere.restore()
    trainer = Trainer(place)

    def step(pair):
        smoothing = captured_elsewhere.Registry.get("smoothing")
        out = trainer.model(pair[0])
        loss = F.cross_entropy(out, pair[1], label_smoothing=smoothing)
        return updated(trainer.optimizer, loss)

    def change(number):
        if number == LATE:
            captured_elsewhere.Registry.put("smoothing", 0.3)

    return losses_of(place, place.capture(step), NUM, before=change), trainer.state()


@captured_case("An environment variable is read in the step and changes once.", expect=EITHER)
def environment_variable(place):
    os.environ["LOSS_WEIGHT"] = "1.0"
    trainer = Trainer(place)

    def step(pair):
        weight = float(os.environ.get("LOSS_WEIGHT", "1"))
        return updated(trainer.optimizer, weight * trainer.loss(pair))

    def change(number):
        if number == LATE:
            os.environ["LOSS_WEIGHT"] = "0.25"

    return losses_of(place, place.capture(step), NUM, before=change), trainer.state()


@captured_case("A context variable is read in the step and changes once.", expect=EITHER)
def context_variable(place):
    weight, trainer = contextvars.ContextVar("weight", default=1.0), Trainer(place)

    def step(pair):
        return updated(trainer.optimizer, weight.get() * trainer.loss(pair))

    def change(number):
        if number == LATE:
            weight.set(0.5)

    return losses_of(place, place.capture(step), NUM, before=change), trainer.state()


@captured_case("An attribute of a thread-local object changes once.", expect=EITHER)
def thread_local(place):
    local, trainer = threading.local(), Trainer(place)
    local.weight = 1.0

    def step(pair):
        return updated(trainer.optimizer, local.weight * trainer.loss(pair))

    def change(number):
        if number == LATE:
            local.weight = 0.5

    return losses_of(place, place.capture(step), NUM, before=change), trainer.state()


@captured_case(
    "The bound method of an object without a name in the step reads its number.", expect=CAPTURED
)
def number_behind_a_bound_method(place):
    class Weight:
        def __init__(self):
            self.value = 1.0

        def times(self, loss):
            return self.value * loss

    weight, trainer = Weight(), Trainer(place)
    transforms = [weight.times]

    def step(pair):
        loss = trainer.loss(pair)
        for transform in transforms:
            loss = transform(loss)
        return updated(trainer.optimizer, loss)

    def change(number):
        if number == LATE:
            weight.value = 0.1

    return losses_of(place, place.capture(step), NUM, before=change), trainer.state()


# ------------------------------------------------------------- values that are hard to compare


@captured_case(
    "An int becomes a float of the same value, and the result another dtype.", expect=CAPTURED
)
def equal_number_of_another_type(place):
    config = SimpleNamespace(scale=2)

    def step(pair):
        return (pair[1] * config.scale).cumsum(0)

    def change(number):
        if number == LATE:
            config.scale = 2.0

    return losses_of(place, place.capture(step), NUM, before=change)


@captured_case("True becomes 1, which indexes otherwise.", expect=CAPTURED)
def true_becomes_one(place):
    config = SimpleNamespace(pick=True)

    def step(pair):
        return pair[0][config.pick] * 2

    def change(number):
        if number == LATE:
            config.pick = 1

    return losses_of(place, place.capture(step), NUM, before=change)


@captured_case("Zero becomes minus zero, which is equal and gives other bits.", expect=CAPTURED)
def minus_zero(place):
    config = SimpleNamespace(offset=0.0)

    def step(pair):
        return pair[0].abs() * config.offset

    def change(number):
        if number == LATE:
            config.offset = -0.0

    return losses_of(place, place.capture(step), NUM, before=change)


@captured_case("A limit is not a number, which does not equal itself.", expect=EITHER)
def not_a_number(place):
    trainer, config = Trainer(place), SimpleNamespace(fill=math.nan)

    def step(pair):
        x = torch.nan_to_num(torch.full_like(pair[0], config.fill), nan=1.0) * pair[0]
        return trainer.train((x, pair[1]))

    def change(number):
        if number == LATE:
            config.fill = 3.0

    return losses_of(place, place.capture(step), NUM, before=change), trainer.state()


@captured_case("A numpy number is an attribute and changes once.", expect=CAPTURED)
def numpy_number(place):
    trainer = Weighted(place)
    trainer.weight = np.float64(0.5)

    def change(number):
        if number == LATE:
            trainer.weight = np.float64(1.5)

    return losses_of(place, place.capture(trainer.step), NUM, before=change), trainer.state()


@captured_case("A numpy array of weights is changed in place.", expect=EITHER)
def numpy_array(place):
    trainer, weights = Trainer(place), np.array([1.0, 0.1])

    def step(pair):
        out = trainer.model(pair[0])
        loss = float(weights[0]) * F.cross_entropy(out, pair[1])
        return updated(trainer.optimizer, loss + float(weights[1]) * out.square().mean())

    def change(number):
        if number == LATE:
            weights[1] = 0.9

    return losses_of(place, place.capture(step), NUM, before=change), trainer.state()


@captured_case("A number on the host, which is a tensor, is filled in place.", expect=EITHER)
def number_in_a_host_tensor(place):
    trainer, weight = Trainer(place), torch.tensor(1.0)

    def step(pair):
        return updated(trainer.optimizer, weight * trainer.loss(pair))

    def change(number):
        if number == LATE:
            place.settle()
            weight.fill_(0.25)

    return losses_of(place, place.capture(step), NUM, before=change), trainer.state()


@captured_case("A number on the device is filled in place before each step.", expect=CAPTURED)
def number_in_a_device_tensor(place):
    trainer, weight = Trainer(place), torch.ones((), device=place.torch_device)

    def step(pair):
        return updated(trainer.optimizer, weight * trainer.loss(pair))

    def change(number):
        weight.fill_(1.0 / (number + 1))

    return losses_of(place, place.capture(step), NUM, before=change), trainer.state()


@captured_case("Class weights are None, and later a tensor.", expect=CAPTURED)
def none_becomes_a_tensor(place):
    trainer = Trainer(place)
    trainer.class_weights = None

    def step(pair):
        out = trainer.model(pair[0])
        return updated(trainer.optimizer, F.cross_entropy(out, pair[1], trainer.class_weights))

    def change(number):
        if number == LATE:
            trainer.class_weights = place.moved(torch.tensor([1.0, 2.0, 3.0, 4.0]))

    return losses_of(place, place.capture(step), NUM, before=change), trainer.state()


# -------------------------------------------------------------------------- how often it changes


@captured_case("Two values take turns in every step, as two tasks do.", expect=CAPTURED)
def back_and_forth(place):
    trainer = Weighted(place)

    def change(number):
        trainer.weight = (0.5, 2.0)[number % 2]

    return losses_of(place, place.capture(trainer.step), 40, before=change), trainer.state()


@captured_case("A value changes for one step, twice, and returns.", expect=CAPTURED)
def for_one_step(place):
    trainer = Weighted(place)

    def change(number):
        trainer.weight = 0.0 if number in (13, 22) else 1.0

    return losses_of(place, place.capture(trainer.step), NUM, before=change), trainer.state()


@captured_case(
    "Three phases follow each other, fifteen steps each, and then the first again.",
    expect=CAPTURED,
)
def three_phases_and_the_first_again(place):
    trainer = Weighted(place)

    def change(number):
        trainer.weight = (1.0, 0.5, 0.25, 1.0)[number // 15]

    return losses_of(place, place.capture(trainer.step), 60, before=change), trainer.state()


@captured_case(
    "The number of the epoch is a variable of the loop that the step reads.", expect=CAPTURED
)
def epoch_is_read(place):
    trainer, losses = Trainer(place), []

    def step(pair):
        loss = trainer.loss(pair)
        if epoch > 0:
            loss = loss + 0.1 * trainer.model[0].weight.abs().sum()
        return updated(trainer.optimizer, loss)

    step = place.capture(step)
    for epoch in range(2):  # noqa: B007  # the step reads it
        for pair in batches(place, 20):
            losses.append(kept(step(pair)))
    return losses, trainer.state(), epoch


@captured_case("A temperature is annealed in every step.", expect=EITHER)
def temperature_is_annealed(place):
    model, config = mlp(place), SimpleNamespace(temperature=1.0)
    optimizer = sgd(model)

    def step(pair):
        chosen = F.gumbel_softmax(model(pair[0]), tau=config.temperature)
        return updated(optimizer, (chosen - F.one_hot(pair[1], 4)).square().mean())

    def change(number):
        config.temperature = max(0.5, math.exp(-0.03 * number))

    return losses_of(place, place.capture(step), 40, before=change), model.state_dict()


@captured_case("A weight of the loss warms up for ten steps, and then stays.", expect=EITHER)
def warms_up_and_stays(place):
    trainer = Weighted(place)

    def change(number):
        trainer.weight = min(1.0, number / 10)

    return losses_of(place, place.capture(trainer.step), 45, before=change), trainer.state()


@captured_case("The step reads the number of the step, and compares it only.", expect=EITHER)
def number_of_the_step_is_compared(place):
    trainer, state = Trainer(place), SimpleNamespace(step=0)

    def step(pair):
        weight = 0.5 if state.step < 25 else 2.0
        return updated(trainer.optimizer, weight * trainer.loss(pair))

    def change(number):
        state.step = number

    return losses_of(place, place.capture(step), 40, before=change), trainer.state()


@captured_case(
    "A schedule outside gives every fifth step another weight, for ever.", expect=EITHER
)
def changes_every_fifth_step(place):
    trainer = Weighted(place)

    def change(number):
        trainer.weight = 0.9 ** (number // 5)

    return losses_of(place, place.capture(trainer.step), 40, before=change), trainer.state()


@captured_case("A curriculum lets the step see a longer part of each sequence.", expect=CAPTURED)
def curriculum(place):
    lstm = nn.LSTM(8, 4, batch_first=True)
    head = nn.Linear(4, 4)
    for weight in [*lstm.parameters(), *head.parameters()]:
        nn.init.constant_(weight, 0.1)
    model = nn.ModuleList([lstm, head]).to(place.torch_device)
    optimizer, config = sgd(model), SimpleNamespace(length=3)

    def step(pair):
        x = pair[0].view(6, 4, 2).repeat(1, 2, 4)[:, : config.length]
        states, _ = model[0](x)
        return updated(optimizer, F.cross_entropy(model[1](states[:, -1]), pair[1]))

    def change(number):
        if number == LATE:
            config.length = 6

    return losses_of(place, place.capture(step), NUM, before=change), model.state_dict()


@captured_case(
    "What changed is named in the report, with both values.", expect=HOLDS, holds_plainly=False
)
def both_values_are_named(place):
    trainer = Trainer(place)
    trainer.aux_weight = 0.125

    def step(pair):
        return updated(trainer.optimizer, trainer.aux_weight * trainer.loss(pair))

    def change(number):
        if number == LATE:
            trainer.aux_weight = 0.375

    step = place.capture(step)
    losses_of(place, step, NUM, before=change)
    for word in ("aux_weight", "0.125", "0.375", "captured_reads.py"):
        assert word in everything_said(step.report), everything_said(step.report)


# ------------------------------------------------------------------------- modules and modes


@captured_case(
    "The step trains and evaluates in turns, as the model's mode says.", expect=CAPTURED
)
def train_and_eval_in_turns(place):
    trainer = Trainer(place, dropout=0.5)

    def step(pair):
        loss = trainer.loss(pair)
        return updated(trainer.optimizer, loss) if trainer.model.training else loss

    def change(number):
        trainer.model.train(number % 3 != 2)

    return losses_of(place, place.capture(step), 45, before=change), trainer.state()


@captured_case("A batch norm is frozen by `eval()` of that one layer.", expect=CAPTURED)
def one_layer_is_put_into_eval(place):
    trainer = Trainer(place)
    trainer.model.insert(1, nn.BatchNorm1d(16).to(place.torch_device))
    trainer.optimizer = sgd(trainer.model)

    def change(number):
        if number == LATE:
            trainer.model[1].eval()

    return losses_of(place, place.capture(trainer.train), NUM, before=change), trainer.state()


@captured_case("The rate of a dropout layer changes once, as `layer.p`.", expect=CAPTURED)
def rate_of_dropout(place):
    trainer = Trainer(place, dropout=0.1)

    def change(number):
        if number == LATE:
            trainer.model[2].p = 0.6

    return losses_of(place, place.capture(trainer.train), NUM, before=change), trainer.state()


@captured_case("Momentum, eps and statistics of a batch norm are changed once.", expect=CAPTURED)
def settings_of_batch_norm(place):
    trainer = Trainer(place)
    trainer.model.insert(1, nn.BatchNorm1d(16).to(place.torch_device))
    trainer.optimizer = sgd(trainer.model)

    def change(number):
        if number == LATE:
            trainer.model[1].momentum, trainer.model[1].eps = 0.5, 1e-2

    return losses_of(place, place.capture(trainer.train), NUM, before=change), trainer.state()


class Growing(nn.Module):
    """A network that uses more of its layers later."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.head, self.depth = nn.Linear(8, 4), 2
        for number, weight in enumerate(self.parameters()):
            nn.init.constant_(weight, 0.02 * (number + 1))

    def forward(self, x):
        for layer in self.layers[: self.depth]:
            x = torch.tanh(layer(x))
        return self.head(x)


@captured_case(
    "A network grows: a plain attribute of the module says how many layers run.", expect=CAPTURED
)
def depth_of_a_module(place):
    trainer = Trainer(place)
    trainer.model = Growing().to(place.torch_device)
    trainer.optimizer = sgd(trainer.model)

    def change(number):
        if number == LATE:
            trainer.model.depth = 4

    return losses_of(place, place.capture(trainer.train), NUM, before=change), trainer.state()


@captured_case("The order of layers in a list of the module is changed once.", expect=CAPTURED)
def order_of_layers(place):
    trainer = Trainer(place)
    trainer.model = Growing().to(place.torch_device)
    trainer.optimizer = sgd(trainer.model)

    def change(number):
        if number == LATE:
            layers = trainer.model.layers
            layers[0], layers[1] = layers[1], layers[0]

    return losses_of(place, place.capture(trainer.train), NUM, before=change), trainer.state()


@captured_case("A forward hook is added, and removed later.", expect=CAPTURED)
def forward_hook_comes_and_goes(place):
    trainer, handles = Trainer(place), []

    def change(number):
        if number == LATE:
            double = lambda module, args, out: out * 2  # noqa: E731
            handles.append(trainer.model[0].register_forward_hook(double))
        if number == LATE + 6:
            handles.pop().remove()

    return losses_of(place, place.capture(trainer.train), NUM, before=change), trainer.state()


@captured_case("A hook is replaced by another one, so that their number stays.", expect=CAPTURED)
def hook_is_replaced(place):
    trainer = Trainer(place)
    handles = [trainer.model[0].register_forward_hook(lambda module, args, out: out * 2)]

    def change(number):
        if number == LATE:
            handles.pop().remove()
            handles.append(
                trainer.model[0].register_forward_hook(lambda module, args, out: out + 1)
            )

    return losses_of(place, place.capture(trainer.train), NUM, before=change), trainer.state()


@captured_case("A hook reads a number of its closure that changes once.", expect=CAPTURED)
def hook_reads_a_number(place):
    trainer, noise = Trainer(place), {"scale": 0.5}
    trainer.model[0].register_forward_hook(lambda module, args, out: out * noise["scale"])

    def change(number):
        if number == LATE:
            noise["scale"] = 0.1

    return losses_of(place, place.capture(trainer.train), NUM, before=change), trainer.state()


@captured_case("A hook on the gradient of a weight is added late.", expect=CAPTURED)
def gradient_hook_is_added(place):
    trainer = Trainer(place)

    def change(number):
        if number == LATE:
            trainer.model[0].weight.register_hook(lambda gradient: gradient * 0.1)

    return losses_of(place, place.capture(trainer.train), NUM, before=change), trainer.state()


@captured_case("A hook before the optimizer's step is added late.", expect=CAPTURED)
def optimizer_hook_is_added(place):
    trainer = Trainer(place)

    def halve(optimizer, args, kwargs):
        del args, kwargs
        for group in optimizer.param_groups:
            for weight in group["params"]:
                weight.grad.mul_(0.5)

    def change(number):
        if number == LATE:
            trainer.optimizer.register_step_pre_hook(halve)

    return losses_of(place, place.capture(trainer.train), NUM, before=change), trainer.state()


@captured_case("The first layer is frozen at first and trained later.", expect=CAPTURED)
def unfreezing(place):
    trainer = Trainer(place)
    trainer.model[0].requires_grad_(False)

    def change(number):
        if number == LATE:
            trainer.model[0].requires_grad_(True)

    return losses_of(place, place.capture(trainer.train), NUM, before=change), trainer.state()


@captured_case(
    "A layer is frozen in the middle; its momentum must not move it on.", expect=CAPTURED
)
def freezing(place):
    trainer = Trainer(place)

    def change(number):
        if number == LATE:
            trainer.model[0].requires_grad_(False)
            trainer.model[0].weight.grad = None
            trainer.model[0].bias.grad = None

    return losses_of(place, place.capture(trainer.train), NUM, before=change), trainer.state()


@captured_case(
    "The step looks whether gradients are enabled, which the loop sets.", expect=CAPTURED
)
def grad_mode_in_turns(place):
    trainer, losses = Trainer(place), []

    def step(pair):
        loss = trainer.loss(pair)
        return updated(trainer.optimizer, loss) if torch.is_grad_enabled() else loss * 10

    step = place.capture(step)
    for number, pair in enumerate(batches(place, 45)):
        with torch.set_grad_enabled(number % 3 != 2):
            losses.append(kept(step(pair)))
    return losses, trainer.state()


@captured_case(
    "Autocast in bf16 within the step, and validation in autocast between steps.", expect=CAPTURED
)
def validation_in_autocast(place):
    trainer, losses, seen = Trainer(place), [], []
    autocast = functools.partial(torch.autocast, place.torch_device.type, torch.bfloat16)

    def step(pair):
        with autocast():
            loss = trainer.loss(pair)
        return updated(trainer.optimizer, loss)

    step = place.capture(step)
    for number, pair in enumerate(batches(place, NUM)):
        losses.append(kept(step(pair)))
        if number % 4 == 3:
            with torch.no_grad(), autocast():
                seen.append(trainer.loss(batch(place, 50)))
    return losses, seen, trainer.state()


@captured_case(
    "One autocast block spans steps and validation, and keeps its casts of weights.", expect=EITHER
)
def one_autocast_block_around_all(place):
    trainer, losses, seen = Trainer(place), [], []
    step = place.capture(trainer.train)
    with torch.autocast(place.torch_device.type, torch.bfloat16):
        for number, pair in enumerate(batches(place, 24)):
            losses.append(kept(step(pair)))
            if number % 4 == 3:
                with torch.no_grad():
                    seen.append(trainer.loss(batch(place, 50)))
    return losses, seen, trainer.state()


@captured_case(
    "Autocast around the step is switched on late, and has another dtype at the end.",
    expect=CAPTURED,
)
def autocast_is_switched_on(place):
    trainer, losses = Trainer(place), []
    step = place.capture(trainer.train)
    for number, pair in enumerate(batches(place, 36)):
        dtype = torch.float16 if number >= 30 else torch.bfloat16
        with torch.autocast(place.torch_device.type, dtype, enabled=number >= 20):
            losses.append(kept(step(pair)))
    return losses, trainer.state()


@captured_case(
    "The default dtype becomes float64 late, for what the step makes itself.", expect=CAPTURED
)
def default_dtype(place):
    trainer, losses = Trainer(place), []

    def step(pair):
        weights = torch.full((6,), 0.5, device=place.torch_device)
        out = trainer.model(pair[0])
        loss = (F.cross_entropy(out, pair[1], reduction="none") * weights).mean()
        return updated(trainer.optimizer, loss)

    step = place.capture(step)
    for number, pair in enumerate(batches(place, NUM)):
        if number == LATE:
            torch.set_default_dtype(torch.float64)
        losses.append(kept(step(pair)))
    return losses, trainer.state()


@captured_case(
    "The precision of matrix products is set to tf32 late.", expect=CAPTURED, devices=(GPU,)
)
def precision_of_matrix_products(place):
    torch.set_float32_matmul_precision("highest")
    trainer = Trainer(place, num_in=64)

    def change(number):
        if number == LATE:
            torch.set_float32_matmul_precision("high")

    losses = losses_of(place, place.capture(trainer.train), NUM, before=change, rows=64, num_in=64)
    return losses, trainer.state()


@captured_case("Deterministic algorithms are switched on late, and the step looks.", expect=EITHER)
def deterministic_flag_is_read(place):
    torch.use_deterministic_algorithms(False)
    trainer = Trainer(place)

    def step(pair):
        weight = 0.5 if torch.are_deterministic_algorithms_enabled() else 1.0
        return updated(trainer.optimizer, weight * trainer.loss(pair))

    def change(number):
        if number == LATE:
            torch.use_deterministic_algorithms(True, warn_only=True)

    return losses_of(place, place.capture(step), NUM, before=change), trainer.state()


@captured_case("Noise is drawn from a generator of the device that the loop made.", expect=EITHER)
def generator_of_the_user(place):
    trainer = Trainer(place)
    noise = torch.Generator(device=place.torch_device).manual_seed(7)

    def step(pair):
        x, y = pair
        extra = torch.randn(x.shape, device=x.device, generator=noise)
        return trainer.train((x + 0.1 * extra, y))

    losses = losses_of(place, place.capture(step), 20)
    return losses, trainer.state(), noise.get_state()


@captured_case("The device's generator is seeded anew in the middle of training.", expect=CAPTURED)
def seeded_in_the_middle(place):
    trainer = Trainer(place, dropout=0.5)

    def change(number):
        if number in (12, 19):
            torch.manual_seed(number)

    return losses_of(place, place.capture(trainer.train), NUM, before=change), trainer.state()


# ------------------------------------------------------------------------ the optimizer's numbers


@captured_case("Momentum of SGD is changed by hand once, in `param_groups`.", expect=CAPTURED)
def momentum_by_hand(place):
    trainer = Trainer(place)

    def change(number):
        if number == LATE:
            trainer.optimizer.param_groups[0]["momentum"] = 0.5

    return losses_of(place, place.capture(trainer.train), NUM, before=change), trainer.state()


@captured_case("Weight decay follows a schedule in every step.", expect=EITHER)
def weight_decay_in_every_step(place):
    trainer = Trainer(place)
    trainer.optimizer = torch.optim.AdamW(trainer.model.parameters(), lr=0.01)

    def change(number):
        for group in trainer.optimizer.param_groups:
            group["weight_decay"] = 0.01 + 0.02 * number

    return losses_of(place, place.capture(trainer.train), 24, before=change), trainer.state()


@captured_case("Betas of AdamW are changed by hand once.", expect=CAPTURED)
def betas_by_hand(place):
    trainer = Trainer(place)
    trainer.optimizer = torch.optim.AdamW(trainer.model.parameters(), lr=0.01)

    def change(number):
        if number == LATE:
            trainer.optimizer.param_groups[0]["betas"] = (0.8, 0.9)

    return losses_of(place, place.capture(trainer.train), NUM, before=change), trainer.state()


@captured_case("SGD maximizes for a phase, and is made nesterov.", expect=CAPTURED)
def flags_of_the_optimizer(place):
    trainer = Trainer(place)

    def change(number):
        group = trainer.optimizer.param_groups[0]
        if number == LATE:
            group["nesterov"] = True
        if number == LATE + 5:
            group["maximize"] = True

    return losses_of(place, place.capture(trainer.train), NUM, before=change), trainer.state()


@captured_case("A method of the trainer's class is replaced once.", expect=CAPTURED)
def method_is_replaced(place):
    class Mine(Trainer):
        def penalty(self):
            return self.model[0].weight.abs().sum()

        def step(self, pair):
            return updated(self.optimizer, self.loss(pair) + 0.1 * self.penalty())

    trainer = Mine(place)

    def change(number):
        if number == LATE:
            Mine.penalty = lambda self: self.model[0].weight.square().sum()

    return losses_of(place, place.capture(trainer.step), NUM, before=change), trainer.state()


@captured_case("The length of a list decides how often the step runs a layer.", expect=CAPTURED)
def length_of_a_list(place):
    trainer, rounds = Trainer(place), [None]

    def step(pair):
        x = pair[0]
        for _ in rounds:
            x = torch.tanh(x * 1.5)
        return trainer.train((x, pair[1]))

    def change(number):
        if number == LATE:
            rounds.append(None)

    return losses_of(place, place.capture(step), NUM, before=change), trainer.state()
