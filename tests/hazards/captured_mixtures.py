"""Captured steps in which a feature of Python and one of torch meet, as few loops have them."""

from __future__ import annotations

import asyncio
import bisect
import concurrent.futures
import contextlib
import contextvars
import copy
import enum
import functools
import os
import pickle
import re
import statistics
import struct
import types
import uuid
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn import functional as F
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

import gapless
from hazards.captured_harness import CAPTURED, EITHER, GPU, captured_case, refused, snapshot
from hazards.captured_models import (
    Headed,
    Trainer,
    batch,
    batches,
    kept,
    losses_of,
    mlp,
    sgd,
    state,
    updated,
)


NUM = 24


class Weighted(Trainer):
    """A trainer whose loss has a weight, which each case finds in its own way."""

    find = None

    def train(self, batch):
        return updated(self.optimizer, self.loss(batch) * self.find())


def weighted(place, find, change, *, num=NUM, of=Weighted):
    """Train with a loss that `find(trainer)` weighs, which `change(trainer, number)` changes."""
    trainer = of(place)
    trainer.find = functools.partial(find, trainer)
    step = place.capture(trainer.train)
    losses = losses_of(place, step, num, before=lambda number: change(trainer, number))
    return losses, trainer.state()


# ------------------------------------------------------------------- what is found, and how


@captured_case(
    "An attribute is missing in some calls, which raise; the loop goes on.", expect=CAPTURED
)
def attribute_is_missing(place):
    trainer = Trainer(place)
    trainer.scale = 0.5

    def train(pair):
        return updated(trainer.optimizer, trainer.loss(pair) * trainer.scale)

    step, found = place.capture(train), []
    for number, pair in enumerate(batches(place, NUM)):
        if number == 9:
            del trainer.scale
        if number == 12:
            trainer.scale = 0.25
        try:
            found.append(kept(step(pair)))
        except AttributeError as error:
            found.append(error)
    return found, trainer.state()


factor = 0.5


@captured_case(
    "A global is deleted for some calls, and the step takes its own value then.", expect=CAPTURED
)
def global_is_deleted(place):
    def find(trainer):
        del trainer
        try:
            return factor
        except NameError:
            return 2.0

    def change(trainer, number):
        del trainer
        if number == 9:
            del globals()["factor"]
        if number == 14:
            globals()["factor"] = 0.5

    try:
        return weighted(place, find, change)
    finally:
        globals()["factor"] = 0.5


@captured_case(
    "The step takes a default where an attribute is missing, which comes late.", expect=CAPTURED
)
def attribute_comes_late(place):
    class Found:
        pass

    found = Found()

    def find(trainer):
        del trainer
        try:
            return found.weight
        except AttributeError:
            return 2.0

    def change(trainer, number):
        del trainer
        if number == 9:
            found.weight = 0.5
        if number == 15:
            del found.weight

    return weighted(place, find, change)


@captured_case("A variable of an enclosing function is unbound for some calls.", expect=CAPTURED)
def variable_is_unbound(place):
    weight = 0.5

    def find(trainer):
        del trainer
        try:
            return weight
        except NameError:
            return 2.0

    def change(trainer, number):
        nonlocal weight
        del trainer
        if number == 9:
            del weight
        if number == 15:
            weight = 0.25

    return weighted(place, find, change)


class Text(str):
    """A text with attributes."""


def text_of(text, weight):
    made = Text(text)
    made.weight = weight
    return made


@captured_case(
    "A text with a weight is replaced by an equal one of another weight.", expect=EITHER
)
def equal_text_of_another_weight(place):
    def find(trainer):
        return trainer.name.weight

    def change(trainer, number):
        trainer.name = text_of("ce", 0.5 if number < 10 else 0.25)

    return weighted(place, find, change)


class Block(nn.Module):
    """A part of a model, of a class of the user's."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, x):
        return torch.relu(self.layer(x))


@captured_case("`forward` of a part's class is replaced for some calls.", expect=CAPTURED)
def forward_of_a_part_is_replaced(place):
    model = nn.Sequential(Block(), nn.Linear(4, 4)).to(place.torch_device)
    optimizer, as_written = sgd(model), Block.forward

    def train(pair):
        x, y = pair
        return updated(optimizer, F.cross_entropy(model(x), y))

    def change(number):
        if number == 9:
            Block.forward = lambda self, x: torch.tanh(self.layer(x))
        if number == 15:
            Block.forward = as_written

    try:
        return losses_of(place, place.capture(train), NUM, before=change), state(model, optimizer)
    finally:
        Block.forward = as_written


class Scaled(nn.Linear):
    """A layer of the user's that has no `forward` of its own."""


class Straight(torch.autograd.Function):
    """Passes values and gradients."""

    @staticmethod
    def forward(ctx, values):
        return values.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Objective:
    """A loss that is called."""

    def __call__(self, scores, y):
        return F.cross_entropy(scores, y)


def with_classes(place, change):
    """Train with a layer, a function of autograd and a loss, whose classes `change(number)` changes."""
    model = nn.Sequential(nn.Linear(8, 4), Scaled(4, 4)).to(place.torch_device)
    optimizer, objective = sgd(model), Objective()

    def train(pair):
        x, y = pair
        return updated(optimizer, objective(Straight.apply(model(x)), y))

    return losses_of(place, place.capture(train), NUM, before=change), state(model, optimizer)


@captured_case("`__call__` of a loss's class is replaced.", expect=CAPTURED)
def call_is_replaced(place):
    def change(number):
        if number == 10:
            Objective.__call__ = lambda self, scores, y: 0.5 * F.cross_entropy(scores, y)

    as_written = Objective.__call__
    try:
        return with_classes(place, change)
    finally:
        Objective.__call__ = as_written


@captured_case("`backward` of a function of autograd is replaced.", expect=CAPTURED)
def backward_is_replaced(place):
    def change(number):
        if number == 10:
            Straight.backward = staticmethod(lambda ctx, gradient: 0.5 * gradient)

    as_written = vars(Straight)["backward"]
    try:
        return with_classes(place, change)
    finally:
        Straight.backward = as_written


@captured_case("A layer's class gets a `forward`, and loses it again.", expect=CAPTURED)
def forward_is_added(place):
    def change(number):
        if number == 10:
            Scaled.forward = lambda self, x: 2 * nn.Linear.forward(self, x)
        if number == 16:
            del Scaled.forward

    return with_classes(place, change)


@captured_case("`bisect` finds the phase by milestones that the loop moves.", expect=CAPTURED)
def bisect_of_milestones(place):
    def find(trainer):
        return (1.0, 0.5, 0.1)[bisect.bisect(trainer.milestones, trainer.epoch)]

    def change(trainer, number):
        trainer.epoch = number // 8
        if number == 0:
            trainer.milestones = [1, 5]
        if number == 20:
            trainer.milestones[0] = 4

    return weighted(place, find, change)


@captured_case("The mean of a list of scores by `statistics` weighs the loss.", expect=CAPTURED)
def mean_of_scores(place):
    def find(trainer):
        return statistics.fmean(trainer.scores)

    def change(trainer, number):
        if number == 0:
            trainer.scores = [0.5, 0.75]
        if number == 10:
            trainer.scores[1] = 0.25
        if number == 16:
            trainer.scores.append(1.0)

    return weighted(place, find, change)


@captured_case("`str.format` reads an attribute that its text names.", expect=EITHER)
def text_reads_an_attribute(place):
    def find(trainer):
        return float("{.weight:.2f}".format(trainer))  # noqa: UP032  # the attribute is read by C

    def change(trainer, number):
        if number in (0, 10, 16):
            trainer.weight = 0.5 if number != 10 else 0.25

    return weighted(place, find, change)


@captured_case("A text is made by `%` with an object as its mapping.", expect=EITHER)
def text_of_a_mapping(place):
    class Settings:
        weight = 0.5

        def __getitem__(self, name):
            return getattr(self, name)

    settings = Settings()

    def find(trainer):
        del trainer
        return float("%(weight)s" % settings)  # noqa: UP031  # the mapping is asked by C

    def change(trainer, number):
        del trainer
        if number == 10:
            settings.weight = 0.125

    return weighted(place, find, change)


@captured_case("A weight stands in bytes that the loop packs.", expect=EITHER)
def number_in_bytes(place):
    block = bytearray(struct.pack("<if", 7, 0.5))

    def find(trainer):
        del trainer
        return struct.unpack_from("<f", block, 4)[0]

    def change(trainer, number):
        del trainer
        if number == 11:
            struct.pack_into("<f", block, 4, 0.75)

    return weighted(place, find, change)


@captured_case(
    "A pattern says which weights are decayed, and another replaces it.", expect=CAPTURED
)
def pattern_of_names(place):
    trainer = Trainer(place)
    trainer.decayed = re.compile(r".*weight")

    def train(pair):
        decay = sum(
            weight.square().sum()
            for name, weight in trainer.model.named_parameters()
            if trainer.decayed.match(name)
        )
        return updated(trainer.optimizer, trainer.loss(pair) + 0.01 * decay)

    def change(number):
        if number == 12:
            trainer.decayed = re.compile(r"0\..*")

    return losses_of(place, place.capture(train), NUM, before=change), trainer.state()


@dataclass
class Settings:
    """What a loss is weighted by."""

    weight: float = 0.5
    names: tuple[str, ...] = ("ce",)


@captured_case("Settings are copied through pickle in each step.", expect=EITHER)
def settings_through_pickle(place):
    settings = Settings()

    def find(trainer):
        del trainer
        return pickle.loads(pickle.dumps(settings)).weight

    def change(trainer, number):
        del trainer
        if number == 10:
            settings.weight = 0.25

    return weighted(place, find, change)


@captured_case("Keyword defaults of a function are changed in their dict.", expect=CAPTURED)
def keyword_defaults_are_changed(place):
    def scale(*, weight=0.5):
        return weight

    def find(trainer):
        del trainer
        return scale()

    def change(trainer, number):
        del trainer
        if number == 10:
            scale.__kwdefaults__["weight"] = 0.125

    return weighted(place, find, change)


@captured_case("The contents of a closure's cell are replaced from outside.", expect=CAPTURED)
def cell_is_filled(place):
    def make(weight):
        return lambda: weight

    scale = make(0.5)

    def find(trainer):
        del trainer
        return scale()

    def change(trainer, number):
        del trainer
        if number in (10, 17):
            scale.__closure__[0].cell_contents = 0.25 if number == 10 else 0.5

    return weighted(place, find, change)


@captured_case("A loss made by `exec` has globals of its own, which change.", expect=CAPTURED)
def globals_of_made_code(place):
    names = {"weight": 0.5}
    exec("def scale():\n    return weight", names)  # as configs of some projects do

    def find(trainer):
        del trainer
        return names["scale"]()

    def change(trainer, number):
        del trainer
        if number == 10:
            names["weight"] = 0.125

    return weighted(place, find, change)


@captured_case(
    "An object gives its weights by `__iter__`, and they become floats.", expect=CAPTURED
)
def object_that_iterates(place):
    class Number:
        def __init__(self, value):
            self.value = value

        def __float__(self):
            return self.value

    class Weights:
        def __init__(self):
            self.known = {"ce": Number(0.5), "aux": Number(0.25)}

        def __iter__(self):
            yield from self.known.values()

    weights = Weights()

    def find(trainer):
        del trainer
        return sum(map(float, weights))

    def change(trainer, number):
        del trainer
        if number == 10:
            weights.known["aux"].value = 1.0
        if number == 16:
            weights.known["kl"] = Number(0.5)

    return weighted(place, find, change)


@captured_case("`isinstance` asks a metaclass that reads a set of names.", expect=CAPTURED)
def metaclass_decides(place):
    class Named(type):
        names = {"Head"}  # noqa: RUF012  # shared on purpose

        def __instancecheck__(cls, one):
            return type(one).__name__ in Named.names

    class Scaled(metaclass=Named):
        pass

    class Head:
        pass

    head = Head()

    def find(trainer):
        del trainer
        return 0.5 if isinstance(head, Scaled) else 1.0

    def change(trainer, number):
        del trainer
        if number == 10:
            Named.names.clear()

    return weighted(place, find, change)


@captured_case("The folder that the process stands in decides.", expect=refused("os.getcwd"))
def working_folder(place):
    def find(trainer):
        del trainer
        return 0.5 if os.getcwd() == "/" else 1.0  # noqa: PTH109

    def change(trainer, number):
        del trainer
        if number == 10:
            os.chdir("/")

    before = os.getcwd()  # noqa: PTH109
    try:
        return weighted(place, find, change)
    finally:
        os.chdir(before)


@captured_case("`np.interp` gives the weight of an epoch, by a table that changes.", expect=EITHER)
def interpolated(place):
    epochs, weights = np.array([0.0, 2.0, 4.0]), np.array([1.0, 0.5, 0.25])

    def find(trainer):
        return float(np.interp(trainer.epoch, epochs, weights))

    def change(trainer, number):
        trainer.epoch = number // 8
        if number == 20:
            weights[1] = 0.125

    return weighted(place, find, change)


@captured_case("A cached function keeps a tensor of the device for ever.", expect=CAPTURED)
def cached_norm_is_stale(place):
    trainer = Trainer(place)

    @functools.cache
    def norm_of(weight):
        return weight.detach().norm()

    def train(pair):
        return updated(trainer.optimizer, trainer.loss(pair) * norm_of(trainer.model[0].weight))

    return losses_of(place, place.capture(train), NUM), trainer.state()


# --------------------------------------------------------------------- what the step leaves


@captured_case(
    "The step gives each call a name at random.", expect=refused(at="self.name = uuid.uuid4()")
)
def name_at_random(place):
    class Named(Trainer):
        name = None

        def train(self, batch):
            self.name = uuid.uuid4()
            return updated(self.optimizer, self.loss(batch))

    trainer = Named(place)
    return losses_of(place, place.capture(trainer.train), 12), trainer.state()


@captured_case("An object of the step counts when it is let go.", expect=refused())
def counted_when_let_go(place):
    left, trainer = [0], Trainer(place)

    class Scope:
        def __del__(self):
            left[0] += 1

    def train(pair):
        scope = Scope()
        loss = updated(trainer.optimizer, trainer.loss(pair))
        del scope
        return loss

    return losses_of(place, place.capture(train), 12), trainer.state(), left


@captured_case(
    "A config counts how often its attributes are asked for.",
    expect=refused("config.asked", at="trainer.loss(pair) * config.weight"),
)
def config_that_counts(place):
    class Config:
        def __init__(self):
            self.asked, self.weight = 0, 0.5

        def __getattribute__(self, name):
            if name == "weight":
                object.__setattr__(self, "asked", object.__getattribute__(self, "asked") + 1)
            return object.__getattribute__(self, name)

    trainer, config = Trainer(place), Config()

    def train(pair):
        return updated(trainer.optimizer, trainer.loss(pair) * config.weight)

    return losses_of(place, place.capture(train), 12), trainer.state(), config.asked


@captured_case(
    "A default argument is a tensor of the device that adds up losses.", expect=CAPTURED
)
def default_tensor_adds_up(place):
    trainer, zero = Trainer(place), torch.zeros((), device=place.torch_device)

    def train(pair, total=zero):
        loss = updated(trainer.optimizer, trainer.loss(pair))
        total.add_(loss.detach())
        return total

    return losses_of(place, place.capture(train), NUM), trainer.state()


@captured_case(
    "The step keeps an activation, of which the loop reads the gradient.", expect=EITHER
)
def gradient_of_an_activation(place):
    model = Headed().to(place.torch_device)
    optimizer, seen, found = sgd(model), {}, []

    def train(pair):
        x, y = pair
        hidden = F.relu(model.body(x))
        hidden.retain_grad()
        seen["hidden"] = hidden
        return updated(optimizer, F.cross_entropy(model.head(hidden), y))

    step = place.capture(train)
    for pair in batches(place, NUM):
        found.append(kept(step(pair)))
        found.append(snapshot(place, [seen["hidden"].detach(), seen["hidden"].grad]))
    return found, state(model, optimizer)


@captured_case(
    "An activation is put into the batch, and the loop reads its gradient.", expect=EITHER
)
def gradient_of_a_part_of_the_batch(place):
    model = Headed().to(place.torch_device)
    optimizer, found = sgd(model), []

    def train(given):
        given["hidden"] = F.relu(model.body(given["x"]))
        given["hidden"].retain_grad()
        return updated(optimizer, F.cross_entropy(model.head(given["hidden"]), given["y"]))

    step = place.capture(train)
    for x, y in batches(place, NUM):
        given = {"x": x, "y": y}
        found.append(kept(step(given)))
        found.append(snapshot(place, given["hidden"].grad))
    return found, state(model, optimizer)


# ------------------------------------------------------------------ how the step is called


@captured_case(
    "The step is a generator: it trains twice, and gives a loss each time.", expect=EITHER
)
def step_is_a_generator(place):
    trainer = Trainer(place)

    def train(pair):
        x, y = pair
        yield updated(trainer.optimizer, trainer.loss((x[:3], y[:3])))
        yield updated(trainer.optimizer, trainer.loss((x[3:], y[3:])))

    step, found = place.capture(train), []
    for number, pair in enumerate(batches(place, 12)):
        losses = step(pair)
        found.append(kept(next(losses)))
        if number % 3:
            found.extend(kept(loss) for loss in losses)
    return found, trainer.state()


@captured_case("The step is a coroutine, of which two are under way at once.", expect=EITHER)
def step_is_a_coroutine(place):
    trainer = Trainer(place)

    async def train(pair):
        loss = trainer.loss(pair)
        await asyncio.sleep(0)
        return kept(updated(trainer.optimizer, loss))

    step = place.capture(train)

    async def main():
        found, pairs = [], list(batches(place, 12))
        for first, second in zip(pairs[::2], pairs[1::2], strict=True):
            found.append(await step(first))
            found.append(await asyncio.create_task(step(second)))
        return found

    return asyncio.run(main()), trainer.state()


@captured_case("The step returns a `map`, which trains when it is read.", expect=EITHER)
def returns_a_map(place):
    trainer = Trainer(place)

    def train(pair):
        def train_on(one):
            return updated(trainer.optimizer, trainer.loss(one))

        return map(train_on, [pair, pair])

    step, found = place.capture(train), []
    for pair in batches(place, 12):
        found.extend(kept(loss) for loss in step(pair))
    return found, trainer.state()


@captured_case(
    "Each call is a job of a pool; gradients are off in the loop's thread.",
    expect=CAPTURED,
    # The simulated device is that of one thread.
    devices=(GPU,),
)
def jobs_of_a_pool(place):
    trainer, found = Trainer(place), []
    step = place.capture(trainer.train)
    with concurrent.futures.ThreadPoolExecutor(1) as pool, torch.no_grad():
        for pair in batches(place, NUM):
            found.append(kept(pool.submit(step, pair).result()))
    return found, trainer.state()


weight_now = contextvars.ContextVar("weight_now", default=0.5)


@captured_case("Each call runs in a context of its own, with one of two values.", expect=CAPTURED)
def contexts_of_their_own(place):
    trainer = Trainer(place)

    def train(pair):
        return updated(trainer.optimizer, trainer.loss(pair) * weight_now.get())

    step, found = place.capture(train), []

    def call(pair, weight):
        weight_now.set(weight)
        return step(pair)

    for number, pair in enumerate(batches(place, NUM)):
        weight = 0.5 if number % 3 else 0.25
        found.append(kept(contextvars.copy_context().run(call, pair, weight)))
    return found, trainer.state()


@captured_case("A captured step is captured once more.", expect=EITHER)
def captured_twice(place):
    trainer = Trainer(place)
    step = place.capture(place.capture(trainer.train))
    return losses_of(place, step, NUM), trainer.state()


@captured_case("The step captures a part of itself when it is called first.", expect=EITHER)
def part_is_captured_within(place):
    trainer = Trainer(place)
    trainer.part = None

    def train(pair):
        if trainer.part is None:
            trainer.part = place.capture(trainer.loss)
        return updated(trainer.optimizer, trainer.part(pair))

    return losses_of(place, place.capture(train), NUM), trainer.state()


@captured_case(
    "Model and optimizer are captured where they stand, by the step itself.", expect=EITHER
)
def captured_in_place_within(place):
    trainer = Trainer(place)
    trainer.is_new = True

    def train(pair):
        if trainer.is_new:
            trainer.is_new = False
            if not place.is_plain:
                gapless.capture(trainer.model, trainer.optimizer, device=place.device)
        return updated(trainer.optimizer, trainer.loss(pair))

    return losses_of(place, place.capture(train), NUM), trainer.state()


@captured_case("Graphs are thrown away by `clear()` now and then.", expect=CAPTURED)
def cleared_now_and_then(place):
    trainer = Trainer(place, dropout=0.3)
    step = place.capture(trainer.train)

    def change(number):
        if number in (2, 3, 9) and not place.is_plain:
            step.captured.clear()

    return losses_of(place, step, NUM, before=change), trainer.state()


@captured_case("The step ends the loop by StopIteration, which a flag says.", expect=CAPTURED)
def stops_by_stop_iteration(place):
    trainer, found = Trainer(place), []
    trainer.is_enough = False

    def train(pair):
        if trainer.is_enough:
            raise StopIteration("enough")
        return updated(trainer.optimizer, trainer.loss(pair))

    step = place.capture(train)
    for number, pair in enumerate(batches(place, NUM)):
        trainer.is_enough = number in (8, 15)
        try:
            found.append(kept(step(pair)))
        except StopIteration as end:
            found.append(end)
    return found, trainer.state()


@captured_case("Each call tries a product of wrong shapes, and takes another.", expect=CAPTURED)
def wrong_shape_is_tried(place):
    trainer = Trainer(place)
    table = torch.ones(16, 4, device=place.torch_device)

    def train(pair):
        x, y = pair
        scores = trainer.model(x)
        try:
            bias = scores @ table
        except RuntimeError:
            bias = scores @ table.T
        finally:
            scores = scores * 0.5
        return updated(trainer.optimizer, F.cross_entropy(scores + bias[:, :4], y))

    return losses_of(place, place.capture(train), NUM), trainer.state()


# ----------------------------------------------------------------------------- arguments


class Level(enum.IntEnum):
    """How much of a batch is used."""

    LOW = 3
    HIGH = 6


class Name(str):
    """A text that carries a weight."""

    __slots__ = ("weight",)


def named(text, weight):
    name = Name(text)
    name.weight = weight
    return name


@captured_case("An argument is -0.0 or 0.0, in turns.", expect=CAPTURED)
def minus_zero_as_an_argument(place):
    trainer, found = Trainer(place), []

    def train(pair, zero):
        loss = updated(trainer.optimizer, trainer.loss(pair))
        return loss, torch.copysign(torch.ones_like(loss), torch.full_like(loss, zero))

    step = place.capture(train)
    for number, pair in enumerate(batches(place, NUM)):
        found.append([kept(one) for one in step(pair, -0.0 if number % 2 else 0.0)])
    return found, trainer.state()


@captured_case("An argument is not a number, in every call.", expect=EITHER)
def no_number_as_an_argument(place):
    trainer, found = Trainer(place), []

    def train(pair, fill):
        x, y = pair
        return updated(trainer.optimizer, trainer.loss((torch.nan_to_num(x * fill, nan=0.5), y)))

    step = place.capture(train)
    for number, pair in enumerate(batches(place, NUM)):
        found.append(kept(step(pair, float("nan") if number % 4 else 1.0)))
    return found, trainer.state()


@captured_case(
    "A level is an IntEnum or the plain number, and the step looks which.", expect=CAPTURED
)
def level_or_number(place):
    trainer, found = Trainer(place), []

    def train(pair, level):
        x, y = pair
        loss = updated(trainer.optimizer, trainer.loss((x[:level], y[:level])))
        return loss if isinstance(level, Level) else -loss

    step = place.capture(train)
    for number, pair in enumerate(batches(place, 30)):
        found.append(kept(step(pair, Level.LOW if number % 2 else 3)))
    return found, trainer.state()


@captured_case("Texts are equal, and carry different weights.", expect=EITHER)
def text_with_a_weight(place):
    trainer, found = Trainer(place), []

    def train(pair, name):
        return updated(trainer.optimizer, trainer.loss(pair) * name.weight)

    step = place.capture(train)
    for number, pair in enumerate(batches(place, NUM)):
        found.append(kept(step(pair, named("ce", 0.5 if number < 12 else 0.25))))
    return found, trainer.state()


@dataclass
class Example:
    """A batch whose features are computed when they are first asked for."""

    x: torch.Tensor
    y: torch.Tensor

    @functools.cached_property
    def features(self):
        return (self.x - self.x.mean(0)) / (self.x.std(0) + 1)


@captured_case("A dataclass keeps features that it computes when asked.", expect=EITHER)
def features_are_cached(place):
    trainer, found = Trainer(place), []

    def train(example):
        return updated(trainer.optimizer, trainer.loss((example.features, example.y)))

    step = place.capture(train)
    for x, y in batches(place, NUM):
        example = Example(x, y)
        found.append(kept(step(example)))
        found.append(snapshot(place, [sorted(vars(example)), example.features]))
    return found, trainer.state()


class Labelled(torch.Tensor):
    """Features that carry a weight."""


@captured_case("Features are a subclass of Tensor with a weight of its own.", expect=EITHER)
def features_with_a_weight(place):
    trainer, found = Trainer(place), []

    def train(x, y):
        weight = x.weight
        return updated(trainer.optimizer, trainer.loss((x.as_subclass(torch.Tensor), y)) * weight)

    step = place.capture(train)
    for number, (x, y) in enumerate(batches(place, NUM)):
        x = x.as_subclass(Labelled)
        x.weight = 0.5 if number < 12 else 0.25
        found.append(kept(step(x, y)))
    return found, trainer.state()


def with_a_bank(place, rows_of):
    """Train on rows of a bank of features, which the step changes before it reads them."""
    model = mlp(place)
    optimizer, found = sgd(model), []
    bank, classes = batch(place, 1, rows=12)

    def train(rows, y):
        bank.mul_(0.9).add_(0.01)
        return updated(optimizer, F.cross_entropy(model(rows), y))

    step = place.capture(train)
    for number in range(NUM):
        start = number % 3
        rows = rows_of(number, bank[start : start + 6])
        found.append(kept(step(rows, classes[start : start + 6])))
    return found, state(model, optimizer), bank


@captured_case(
    "The batch is a view of a bank that the step writes before it reads.",
    expect=refused("a view of memory that the step also writes"),
)
def view_of_a_bank(place):
    return with_a_bank(place, lambda number, rows: rows)


@captured_case(
    "The batch is a copy of rows of a bank that the step writes, and at times a view.",
    expect=CAPTURED,
)
def view_of_a_bank_at_times(place):
    return with_a_bank(place, lambda number, rows: rows if number % 5 == 4 else rows.clone())


@captured_case("Batches of a group are views of a bank that each step writes.", expect=EITHER)
def views_of_a_bank_in_groups(place):
    model = mlp(place)
    optimizer, found = sgd(model), []
    bank, classes = batch(place, 1, rows=12)

    def train(pair):
        rows, y = pair
        bank.mul_(0.9).add_(0.01)
        return updated(optimizer, F.cross_entropy(model(rows), y))

    step = place.capture(train, steps_per_launch=2)
    for number in range(NUM):
        parts = [bank[:6], bank[3:9]] if number >= 12 else [bank[:6].clone(), bank[3:9].clone()]
        found += [kept(loss) for loss in step([(rows, classes[:6]) for rows in parts])]
    return found, state(model, optimizer), bank


# ----------------------------------------------------------------------- weights and updates


@captured_case("A weight is replaced in `_parameters`, and in the group.", expect=CAPTURED)
def weight_in_the_dictionary(place):
    model = mlp(place)
    optimizer = sgd(model)

    def train(pair):
        x, y = pair
        return updated(optimizer, F.cross_entropy(model(x), y))

    def change(number):
        if number == 10:
            new = nn.Parameter(model[0].weight.detach() * 0.5)
            model[0]._parameters["weight"] = new
            optimizer.param_groups[0]["params"][0] = new

    return losses_of(place, place.capture(train), NUM, before=change), state(model, optimizer)


@captured_case("Groups are replaced by copies, of which one has another rate.", expect=CAPTURED)
def groups_are_copied(place):
    model = mlp(place)
    optimizer = sgd(model, momentum=0.9)

    def train(pair):
        x, y = pair
        return updated(optimizer, F.cross_entropy(model(x), y))

    def change(number):
        if number in (8, 15):
            optimizer.param_groups = [dict(group) for group in optimizer.param_groups]
        if number == 15:
            optimizer.param_groups[0]["lr"] = 0.05

    return losses_of(place, place.capture(train), NUM, before=change), state(model, optimizer)


@captured_case("A copy of the optimizer by `copy.copy` takes turns with it.", expect=CAPTURED)
def optimizer_and_its_copy(place):
    trainer = Trainer(place)
    both = [trainer.optimizer, copy.copy(trainer.optimizer)]
    both[1].param_groups = [dict(group, lr=0.01) for group in both[0].param_groups]

    def change(number):
        trainer.optimizer = both[number // 4 % 2]

    step = place.capture(trainer.train)
    return losses_of(place, step, 32, before=change), trainer.state()


@captured_case("State of the optimizer is on the host between steps.", expect=EITHER)
def state_on_the_host(place):
    trainer = Trainer(place)

    def change(number):
        del number
        for of_weight in trainer.optimizer.state.values():
            on_host = of_weight["momentum_buffer"].to("cpu", copy=True)
            of_weight["momentum_buffer"] = on_host.to(place.torch_device, copy=True)

    step = place.capture(trainer.train)
    return losses_of(place, step, NUM, before=change), trainer.state()


@captured_case("Two optimizers update the same weights, one after the other.", expect=CAPTURED)
def two_optimizers_of_one_weight(place):
    model = mlp(place)
    first, second = sgd(model, momentum=0.9), sgd(model[3], lr=0.01, weight_decay=0.1)

    def train(pair):
        x, y = pair
        loss = F.cross_entropy(model(x), y)
        first.zero_grad()
        second.zero_grad()
        loss.backward()
        first.step()
        second.step()
        return loss

    def change(number):
        if number == 12:
            second.param_groups[0]["weight_decay"] = 0.0

    step = place.capture(train)
    return losses_of(place, step, NUM, before=change), state(model, first, second)


@captured_case(
    "A rate is learned on the device from gradients that follow each other.", expect=CAPTURED
)
def rate_is_learned(place):
    model = mlp(place)
    rate = torch.full((), 0.1, device=place.torch_device)
    before = [torch.zeros_like(weight) for weight in model.parameters()]

    def train(pair):
        x, y = pair
        loss = F.cross_entropy(model(x), y)
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            rate.add_(1e-3 * sum((a * b).sum() for a, b in zip(gradients, before, strict=True)))
            for weight, gradient, last in zip(model.parameters(), gradients, before, strict=True):
                weight.sub_(rate * gradient)
                last.copy_(gradient)
        return loss

    return losses_of(place, place.capture(train), NUM), state(model), rate


@captured_case("Switches of the optimizer are flipped in its group.", expect=CAPTURED)
def switches_of_the_optimizer(place):
    model = mlp(place)
    optimizer = sgd(model, momentum=0.9)

    def train(pair):
        x, y = pair
        return updated(optimizer, F.cross_entropy(model(x), y))

    def change(number):
        if number in (9, 13, 17):
            switch = {9: "foreach", 13: "nesterov", 17: "maximize"}[number]
            optimizer.param_groups[0][switch] = not optimizer.param_groups[0][switch]

    return losses_of(place, place.capture(train), 30, before=change), state(model, optimizer)


@captured_case("Body and head are frozen in turns, in each call.", expect=CAPTURED)
def frozen_in_turns(place):
    model = Headed().to(place.torch_device)
    optimizer = sgd(model, momentum=0.9)

    def train(pair):
        x, y = pair
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        optimizer.step()
        return loss

    def change(number):
        model.body.requires_grad_(number % 2 == 0)
        model.head.requires_grad_(number % 2 == 1)

    step = place.capture(train)
    return losses_of(place, step, 32, before=change), state(model, optimizer)


class Symmetric(nn.Module):
    """Makes a square matrix symmetric."""

    def forward(self, matrix):
        return matrix.triu() + matrix.triu(1).mT

    def right_inverse(self, matrix):
        return matrix.triu()


@captured_case("A parametrized weight is assigned, which its inverse takes in.", expect=CAPTURED)
def parametrized_weight_is_assigned(place):
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4)).to(place.torch_device)
    parametrize.register_parametrization(model[0], "weight", Symmetric())
    optimizer = sgd(model)

    def train(pair):
        x, y = pair
        return updated(optimizer, F.cross_entropy(model(x), y))

    def change(number):
        if number == 10:
            model[0].weight = torch.eye(8, device=place.torch_device)

    return losses_of(place, place.capture(train), NUM, before=change), state(model, optimizer)


# -------------------------------------------------------------------------------- autograd


@captured_case(
    "A hook on several gradients logs how many came, from outside of the step.",
    expect=refused(at="log.append(len(gradients))"),
)
def hook_on_several_gradients(place):
    trainer, log = Trainer(place), []

    def note(gradients):
        log.append(len(gradients))

    torch.autograd.graph.register_multi_grad_hook(list(trainer.model.parameters()), note)
    return losses_of(place, place.capture(trainer.train), 12), trainer.state(), log


@captured_case("A node of the graph has a hook that scales by an attribute.", expect=CAPTURED)
def hook_of_a_node(place):
    trainer = Trainer(place)
    trainer.factor = 0.5

    def train(pair):
        loss = trainer.loss(pair)
        loss.grad_fn.register_prehook(lambda grads: tuple(g * trainer.factor for g in grads))
        return updated(trainer.optimizer, loss)

    def change(number):
        if number == 12:
            trainer.factor = 0.125

    return losses_of(place, place.capture(train), NUM, before=change), trainer.state()


@captured_case("A Jacobian is taken by batched gradients, as a penalty.", expect=EITHER)
def batched_gradients(place):
    trainer = Trainer(place)

    def train(pair):
        x, y = pair
        x = x.detach().requires_grad_()
        scores = trainer.model(x)
        rows = torch.eye(4, device=x.device)[:, None].expand(4, *scores.shape)
        (jacobian,) = torch.autograd.grad(
            scores, x, rows, create_graph=True, is_grads_batched=True
        )
        loss = F.cross_entropy(scores, y) + 0.1 * jacobian.square().mean()
        return updated(trainer.optimizer, loss)

    return losses_of(place, place.capture(train), NUM), trainer.state()


@captured_case("An ensemble of models is one stack of weights, mapped by vmap.", expect=EITHER)
def ensemble_by_vmap(place):
    models = [mlp(place) for _ in range(3)]
    for number, model in enumerate(models):
        with torch.no_grad():
            model[0].weight.mul_(1 + 0.1 * number)
    weights, buffers = stack_module_state(models)
    base = copy.deepcopy(models[0]).to("meta")
    optimizer = torch.optim.SGD(weights.values(), lr=0.1)

    def one(weights, buffers, x):
        return functional_call(base, (weights, buffers), (x,))

    def train(pair):
        x, y = pair
        scores = vmap(one, (0, 0, None))(weights, buffers, x)
        loss = sum(F.cross_entropy(each, y) for each in scores)
        return updated(optimizer, loss)

    return losses_of(place, place.capture(train), NUM), list(weights.values())


@captured_case(
    "Products are kept and the rest is recomputed: selective checkpoints.", expect=EITHER
)
def selective_checkpoints(place):
    trainer = Trainer(place, dropout=0.3)
    keep = [torch.ops.aten.mm.default, torch.ops.aten.addmm.default]

    def train(pair):
        x, y = pair
        scores = checkpoint(
            trainer.model,
            x,
            use_reentrant=False,
            context_fn=functools.partial(create_selective_checkpoint_contexts, keep),
        )
        return updated(trainer.optimizer, F.cross_entropy(scores, y))

    return losses_of(place, place.capture(train), NUM), trainer.state()


@captured_case("What backward needs is changed in place, which a context allows.", expect=EITHER)
def saved_tensors_are_changed(place):
    trainer = Trainer(place)

    def train(pair):
        x, y = pair
        with torch.autograd.graph.allow_mutation_on_saved_tensors():
            scores = torch.exp(trainer.model(x))
            scores.mul_(0.5)
            squares = scores.square()
            scores.add_(1)
            return updated(trainer.optimizer, F.cross_entropy(squares + scores, y))

    return losses_of(place, place.capture(train), NUM), trainer.state()


class Floor(torch.autograd.Function):
    """Raises small values in place, and lets no gradient through there."""

    @staticmethod
    def forward(values, least):
        low = values < least
        return values.masked_fill_(low, least), low

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_dirty(inputs[0])
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx, gradient, _):
        (low,) = ctx.saved_tensors
        return None if gradient is None else gradient.masked_fill(low, 0), None


@captured_case("A function of the user's writes its input in place, and says so.", expect=CAPTURED)
def function_that_writes(place):
    trainer = Trainer(place)
    trainer.least = -0.1

    def train(pair):
        x, y = pair
        scores, low = Floor.apply(trainer.model(x), trainer.least)
        loss = updated(trainer.optimizer, F.cross_entropy(scores, y))
        return loss + low.float().mean()

    def change(number):
        if number == 12:
            trainer.least = 0.05

    return losses_of(place, place.capture(train), NUM, before=change), trainer.state()


@captured_case(
    "The default dtype is float64 for a while, and the step makes a tensor.", expect=CAPTURED
)
def default_dtype_for_a_while(place):
    trainer = Trainer(place)

    def train(pair):
        loss = trainer.loss(pair) * torch.full((1,), 0.3, device=place.torch_device)
        return updated(trainer.optimizer, loss.sum())

    def change(number):
        torch.set_default_dtype(torch.float64 if 8 <= number < 14 else torch.float32)

    try:
        return losses_of(place, place.capture(train), 30, before=change), trainer.state()
    finally:
        torch.set_default_dtype(torch.float32)


@captured_case(
    "Pseudo-labels are made in evaluation mode by the model that trains.", expect=CAPTURED
)
def modes_change_within(place):
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.Linear(16, 4))
    model.to(place.torch_device)
    optimizer = sgd(model)

    def train(pair):
        x, _ = pair
        model.eval()
        with torch.no_grad():
            labels = model(x).argmax(1)
        model.train()
        return updated(optimizer, F.cross_entropy(model(x + 0.1), labels))

    return losses_of(place, place.capture(train), NUM), state(model, optimizer)


@captured_case(
    "An ExitStack puts attributes of layers back when the step is left.", expect=CAPTURED
)
def exit_stack_puts_back(place):
    trainer = Trainer(place, dropout=0.3)
    trainer.rates = types.MappingProxyType({2: 0.5})

    def train(pair):
        with contextlib.ExitStack() as stack:
            for place_of, rate in trainer.rates.items():
                layer = trainer.model[place_of]
                stack.callback(setattr, layer, "p", layer.p)
                layer.p = rate
            loss = trainer.loss(pair)
        return updated(trainer.optimizer, loss)

    def change(number):
        if number == 12:
            trainer.rates = types.MappingProxyType({2: 0.1})

    return losses_of(place, place.capture(train), NUM, before=change), trainer.state()


@captured_case(
    "Losses are no numbers in the very calls that are watched and captured.", expect=CAPTURED
)
def no_numbers_at_first(place):
    trainer = Trainer(place)

    def train(pair):
        loss = trainer.loss(pair)
        trainer.optimizer.zero_grad()
        loss.backward()
        for weight in trainer.model.parameters():
            weight.grad.nan_to_num_(0.0)
        trainer.optimizer.step()
        return loss

    step, found = place.capture(train), []
    for number, (x, y) in enumerate(batches(place, NUM)):
        found.append(kept(step((x * float("nan") if number < 6 else x, y))))
    return found, trainer.state()
