"""Reads and writes of Python that a graph would bake in or skip: found by trying to break it."""

from __future__ import annotations

import abc
import argparse
import array
import asyncio
import builtins
import collections
import configparser
import contextlib
import copy
import ctypes
import dataclasses
import datetime as dt
import decimal
import enum
import functools
import importlib
import io
import itertools
import json
import logging
import math
import multiprocessing
import operator
import os
import queue
import random
import re
import sqlite3
import sys
import threading
import types
import warnings
import weakref
from dataclasses import dataclass
from types import SimpleNamespace
from typing import NamedTuple
from unittest import mock

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from hazards import captured_elsewhere
from hazards.captured_found import Weights, weighted
from hazards.captured_harness import CAPTURED, EITHER, captured_case, refused
from hazards.captured_models import (
    Trainer,
    batch,
    batches,
    kept,
    losses_of,
    mlp,
    sgd,
    state,
    training_step,
    updated,
)


NUM, LATE = 30, 15


def trained(place, loss_of, change, *, model=None, optimizer=None, num=NUM):
    """Train by `loss_of(model, x, y)`; the loop calls `change()` once."""
    model = mlp(place) if model is None else model
    optimizer = sgd(model, momentum=0.9) if optimizer is None else optimizer

    def train(pair):
        return updated(optimizer, loss_of(model, *pair))

    def before(number):
        if number == LATE:
            change()

    step = place.capture(train)
    return losses_of(place, step, num, before=before), state(model, optimizer)


def working(place, work, num=12):
    """Train by a step that calls `work()` each time."""
    model = mlp(place)
    optimizer = sgd(model)

    def train(pair):
        work()
        return updated(optimizer, F.cross_entropy(model(pair[0]), pair[1]))

    return losses_of(place, place.capture(train), num), state(model)


# ------------------------------------------------------------------- where modules are looked up


@contextlib.contextmanager
def elsewhere():
    """Put back what is changed in the other module, by other cases too."""
    captured_elsewhere.restore()
    try:
        yield
    finally:
        captured_elsewhere.restore()


@captured_case("A module is looked up in `sys.modules`.", expect=CAPTURED)
def module_by_sys_modules(place):
    with elsewhere():
        return weighted(
            place,
            lambda: sys.modules["hazards.captured_elsewhere"].SCALE,
            lambda: setattr(captured_elsewhere, "SCALE", 0.2),
        )


@captured_case("A weight is an attribute that the user has given torch itself.", expect=CAPTURED)
def attribute_of_torch(place):
    torch.my_weight = 1.0
    try:
        return weighted(place, lambda: torch.my_weight, lambda: setattr(torch, "my_weight", 0.5))
    finally:
        del torch.my_weight


@captured_case("The script's own module is looked up by `sys.modules[__name__]`.", expect=CAPTURED)
def own_module_by_sys_modules(place):
    this = sys.modules[__name__]
    this.SMOOTHING = 0.1

    def loss_of(model, x, y):
        smoothing = getattr(sys.modules[__name__], "SMOOTHING", 0.0)
        return F.cross_entropy(model(x), y, label_smoothing=smoothing)

    return trained(place, loss_of, lambda: delattr(this, "SMOOTHING"))


@captured_case("The step imports what it needs, by `import` within the function.", expect=CAPTURED)
def imported_within(place):
    def loss_of(model, x, y):
        from hazards.captured_elsewhere import SCALE, scaled

        return SCALE * scaled(F.cross_entropy(model(x), y))

    with elsewhere():
        return trained(place, loss_of, lambda: setattr(captured_elsewhere, "SCALE", 0.2))


@captured_case("A loss is found by its dotted name, by `importlib`.", expect=CAPTURED)
def loss_by_its_dotted_name(place):
    config = {"penalty": "hazards.captured_elsewhere.penalty"}

    def loss_of(model, x, y):
        module, _, name = config["penalty"].rpartition(".")
        out = model(x)
        return F.cross_entropy(out, y) + getattr(importlib.import_module(module), name)(out)

    with elsewhere():
        change = functools.partial(captured_elsewhere.SETTINGS["penalty"].update, weight=0.9)
        return trained(place, loss_of, change)


@captured_case("An activation is named by a text, `getattr(F, name)`.", expect=CAPTURED)
def activation_by_name(place):
    args = argparse.Namespace(act="relu", out_act="log_softmax")
    body, head = nn.Linear(8, 16), nn.Linear(16, 4)
    model = nn.ModuleList([body, head]).to(place.torch_device)

    def loss_of(model, x, y):
        hidden = getattr(F, args.act)(model[0](x))
        return F.nll_loss(getattr(F, args.out_act)(model[1](hidden), dim=1), y)

    return trained(place, loss_of, lambda: setattr(args, "act", "gelu"), model=model)


# --------------------------------------------------------------- attributes by computed names


@captured_case("A weight is found by a name that is put together.", expect=CAPTURED)
def name_is_put_together(place):
    args = argparse.Namespace(phase="warm", weight_warm=0.1, weight_main=1.0)

    def change():
        args.weight_warm = 0.5

    return weighted(place, lambda: getattr(args, f"weight_{args.phase}"), change)


@captured_case("A dotted path is followed by `reduce(getattr, ...)`.", expect=CAPTURED)
def dotted_path(place):
    config = SimpleNamespace(loss=SimpleNamespace(aux=SimpleNamespace(weight=1.0)))
    config_path = "loss.aux.weight"
    return weighted(
        place,
        lambda: functools.reduce(getattr, config_path.split("."), config),
        lambda: setattr(config.loss.aux, "weight", 0.2),
    )


class Node:
    """A config that wraps nested dicts anew whenever it is asked, as OmegaConf does."""

    def __init__(self, content):
        object.__setattr__(self, "_content", content)

    def __getattr__(self, name):
        value = self._content[name]
        return Node(value) if isinstance(value, dict) else value

    def __getitem__(self, path):
        first, _, rest = path.partition(".")
        value = getattr(self, first)
        return value[rest] if rest else value

    def __setattr__(self, name, value):
        self._content[name] = value

    def get(self, path, default=None):
        try:
            return self[path]
        except KeyError:
            return default


@captured_case("A config wraps nested dicts anew for each attribute.", expect=CAPTURED)
def config_that_wraps(place):
    config = Node({"loss": {"ce": {"weight": 1.0}}})
    return weighted(
        place, lambda: config.loss.ce.weight, lambda: setattr(config.loss.ce, "weight", 0.2)
    )


@captured_case(
    "A config is asked by dotted keys, with a default that is overridden late.", expect=CAPTURED
)
def config_by_dotted_keys(place):
    config = Node({"loss": {"ce": {}}})
    return weighted(
        place,
        lambda: config.get("loss.ce.weight", 1.0),
        lambda: setattr(config.loss.ce, "weight", 0.2),
    )


@captured_case(
    "`__getattribute__` of a config counts nothing, and looks in two places.", expect=CAPTURED
)
def own_getattribute(place):
    overrides = {}

    class Config:
        weight = 1.0

        def __getattribute__(self, name):
            return overrides[name] if name in overrides else super().__getattribute__(name)

    config = Config()
    return weighted(place, lambda: config.weight, lambda: overrides.update(weight=0.2))


@captured_case(
    "`itemgetter`, `methodcaller` and `starmap` read the weights of terms.", expect=CAPTURED
)
def operators_read(place):
    terms = [{"name": "a", "weight": 1.0}, {"name": "b", "weight": 2.0}]
    schedule = Weights(0.5)
    schedule.now = lambda: schedule.weight
    now, items = operator.methodcaller("now"), operator.itemgetter("weight", "name")

    def weight():
        pairs = map(items, terms)
        return sum(itertools.starmap(lambda number, name: number * len(name), pairs)) * now(
            schedule
        )

    def change():
        terms[1]["weight"] = 0.1
        schedule.weight = 1.5

    return weighted(place, weight, change)


# ------------------------------------------------------------ classes, methods and functions


@captured_case("A method of the class is hidden by a function of the object.", expect=CAPTURED)
def method_is_hidden_by_the_object(place):
    class Schedule:
        def weight(self):
            return 1.0

    schedule = Schedule()
    return weighted(
        place, lambda: schedule.weight(), lambda: setattr(schedule, "weight", lambda: 0.2)
    )


@captured_case(
    "An attribute of the object is deleted, and the class's shows again.", expect=CAPTURED
)
def attribute_of_the_object_is_deleted(place):
    class Settings:
        weight = 0.2

    settings = Settings()
    settings.weight = 1.0
    return weighted(place, lambda: settings.weight, lambda: delattr(settings, "weight"))


@captured_case(
    "A mixin gets an attribute, which comes before the base's in the order of classes.",
    expect=CAPTURED,
)
def mixin_gets_an_attribute(place):
    class Base:
        weight = 1.0

    class Mixin:
        pass

    class Both(Mixin, Base):
        pass

    both = Both()
    return weighted(place, lambda: both.weight, lambda: setattr(Mixin, "weight", 0.2))


@captured_case("A class gets other bases.", expect=EITHER)
def class_gets_other_bases(place):
    class Early:
        def weight(self):
            return 1.0

    class Late:
        def weight(self):
            return 0.2

    class Mine(Early):
        pass

    mine = Mine()
    return weighted(place, lambda: mine.weight(), lambda: setattr(Mine, "__bases__", (Late,)))


@captured_case(
    "All subclasses of a base are asked, and one more is defined late.",
    expect=refused("__subclasses__", at="for one in Term.__subclasses__()"),
)
def subclasses_are_asked(place):
    class Term:
        weight = 0.5

    class First(Term):
        pass

    made = [First]

    def change():
        made.append(type("Second", (Term,), {"weight": 1.5}))

    return weighted(place, lambda: sum(one.weight for one in Term.__subclasses__()), change)


@captured_case(
    "`__init_subclass__` registers terms of the loss, one of them late.", expect=CAPTURED
)
def subclasses_register_themselves(place):
    class Term(abc.ABC):
        known = {}  # noqa: RUF012

        def __init_subclass__(cls, **kwargs):
            super().__init_subclass__(**kwargs)
            Term.known[cls.__name__.lower()] = cls()

        @abc.abstractmethod
        def __call__(self, out, y): ...

    class Ce(Term):
        def __call__(self, out, y):
            return F.cross_entropy(out, y)

    def change():
        class Norm(Term):
            def __call__(self, out, y):
                return 0.3 * out.square().mean()

    return trained(
        place, lambda model, x, y: sum(term(model(x), y) for term in Term.known.values()), change
    )


@captured_case("A class answers `Weights['ce']` by its metaclass.", expect=CAPTURED)
def class_is_indexed(place):
    class Meta(type):
        def __getitem__(cls, name):
            return cls._values[name]

        def __iter__(cls):
            return iter(cls._values)

    class Table(metaclass=Meta):
        _values = {"ce": 1.0, "l2": 0.5}  # noqa: RUF012

    return weighted(
        place,
        lambda: sum(Table[name] for name in Table),
        lambda: Table._values.update(l2=2.0),
    )


class Scalar:
    """A number of a project's own that answers Python's and torch's operators."""

    def __init__(self, value):
        self.value = value

    def __float__(self):
        return float(self.value)

    def __index__(self):
        return int(self.value)

    def __bool__(self):
        return self.value > 0

    def __rmul__(self, other):
        return other * self.value

    def __lt__(self, other):
        return self.value < other.value


@captured_case("The loss is multiplied by an object with `__rmul__`.", expect=CAPTURED)
def object_with_rmul(place):
    alpha = Scalar(1.0)
    return trained(
        place,
        lambda model, x, y: F.cross_entropy(model(x), y) * alpha,
        lambda: setattr(alpha, "value", 0.2),
    )


@captured_case("`float(object)` and `if object` ask the object's own methods.", expect=CAPTURED)
def object_becomes_a_number(place):
    alpha, is_on = Scalar(1.0), Scalar(0.0)

    def weight():
        return float(alpha) * 0.5 if is_on else float(alpha)

    def change():
        is_on.value = 1.0
        alpha.value = 0.7

    return weighted(place, weight, change)


@captured_case("A slice ends at an object with `__index__`.", expect=CAPTURED)
def object_as_an_index(place):
    window = Scalar(4)
    return trained(
        place,
        lambda model, x, y: F.cross_entropy(model(x)[:window], y[:window]),
        lambda: setattr(window, "value", 2),
    )


@captured_case("Terms are sorted by their own `__lt__`, and the first is taken.", expect=CAPTURED)
def objects_are_sorted(place):
    terms = [Scalar(1.0), Scalar(2.0)]
    return weighted(place, lambda: sorted(terms)[0].value, lambda: setattr(terms[1], "value", 0.3))


@captured_case("A number is a class with `__torch_function__`.", expect=CAPTURED)
def object_with_torch_function(place):
    class Alpha:
        def __init__(self, value):
            self.value = value

        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            plain = [arg.value if isinstance(arg, cls) else arg for arg in args]
            return function(*plain, **(kwargs or {}))

    alpha = Alpha(1.0)
    return trained(
        place,
        lambda model, x, y: torch.mul(F.cross_entropy(model(x), y), alpha),
        lambda: setattr(alpha, "value", 0.2),
    )


@captured_case(
    "A dict of the user's own has `__missing__`, which reads a default.", expect=CAPTURED
)
def dict_with_missing(place):
    class Table(dict):
        default = 1.0

        def __missing__(self, name):
            return self.default

    table = Table()
    return weighted(place, lambda: table["ce"], lambda: setattr(table, "default", 0.2))


@captured_case("The defaults of a function are replaced.", expect=CAPTURED)
def defaults_are_replaced(place):
    def scaled(loss, factor=1.0, *, power=1):
        return factor * loss**power

    def change():
        scaled.__defaults__ = (0.2,)
        scaled.__kwdefaults__ = {"power": 2}

    return trained(place, lambda model, x, y: scaled(F.cross_entropy(model(x), y)), change)


@captured_case("The code of a function is replaced, as hot reloading does.", expect=CAPTURED)
def code_is_replaced(place):
    def weight():
        return 1.0

    def other():
        return 0.2

    return weighted(place, lambda: weight(), lambda: setattr(weight, "__code__", other.__code__))


@captured_case("A number is an attribute of a function.", expect=CAPTURED)
def attribute_of_a_function(place):
    def scaled(loss):
        return scaled.factor * loss

    scaled.factor = 1.0
    return trained(
        place,
        lambda model, x, y: scaled(F.cross_entropy(model(x), y)),
        lambda: setattr(scaled, "factor", 0.2),
    )


@captured_case(
    "A number is an attribute of each weight, as per-layer decay is kept.", expect=CAPTURED
)
def attribute_of_a_weight(place):
    model = mlp(place)
    for weight in model.parameters():
        weight.decay = 0.01

    def loss_of(model, x, y):
        decay = sum(weight.decay * weight.square().sum() for weight in model.parameters())
        return F.cross_entropy(model(x), y) + decay

    return trained(place, loss_of, lambda: setattr(model[0].weight, "decay", 0.1), model=model)


@captured_case(
    "Some steps run under `mock.patch.object` of a number and a function.", expect=CAPTURED
)
def patched_for_some_steps(place):
    captured_elsewhere.restore()
    term, trainer, losses = Weights(), Trainer(place), []

    def train(pair):
        loss = term.weight * trainer.loss(pair)
        return updated(trainer.optimizer, captured_elsewhere.scaled(loss))

    step = place.capture(train)
    for number, pair in enumerate(batches(place, 40)):
        with contextlib.ExitStack() as stack:
            if number in range(20, 30):
                stack.enter_context(mock.patch.object(term, "weight", 0.2))
                stack.enter_context(
                    mock.patch.object(captured_elsewhere, "scaled", lambda loss: loss * 3.0)
                )
            losses.append(kept(step(pair)))
    return losses, trainer.state()


@captured_case("`forward` of the model is replaced by a bound method.", expect=CAPTURED)
def forward_is_replaced(place):
    model = mlp(place)

    def forward(self, x):
        for layer in list(self)[:3]:
            x = layer(x)
        return 0.5 * self[3](x)

    return trained(
        place,
        lambda model, x, y: F.cross_entropy(model(x), y),
        lambda: setattr(model, "forward", types.MethodType(forward, model)),
        model=model,
    )


@captured_case("The optimizer's `step` is wrapped late, to clip first.", expect=CAPTURED)
def step_of_the_optimizer_is_wrapped(place):
    model = mlp(place)
    optimizer = sgd(model)

    def change():
        plain = optimizer.step

        def clipped(*args, **kwargs):
            nn.utils.clip_grad_value_(model.parameters(), 0.05)
            return plain(*args, **kwargs)

        optimizer.step = clipped

    return trained(
        place,
        lambda model, x, y: F.cross_entropy(model(x), y),
        change,
        model=model,
        optimizer=optimizer,
    )


@captured_case("A decorator with an argument of its own scales the loss.", expect=CAPTURED)
def decorator_with_a_config(place):
    config = {"scale": 1.0}

    def scaled_by(settings):
        def decorate(function):
            @functools.wraps(function)
            def run(*args, **kwargs):
                return settings["scale"] * function(*args, **kwargs)

            return run

        return decorate

    @scaled_by(config)
    def loss_of(model, x, y):
        return F.cross_entropy(model(x), y)

    return trained(place, loss_of, lambda: config.update(scale=0.2))


@captured_case(
    "A weight is kept by `lru_cache`, which the loop clears after a change.", expect=EITHER
)
def cache_is_cleared(place):
    source = Weights()

    @functools.lru_cache(maxsize=4)
    def weight(name):
        return source.weight

    def change():
        source.weight = 0.2
        weight.cache_clear()

    return weighted(place, lambda: weight("ce"), change)


@captured_case(
    "A weight is kept by `lru_cache`, and what it was read from changes.", expect=EITHER
)
def cache_stays_stale(place):
    source = Weights()

    @functools.cache
    def weight():
        return source.weight

    return weighted(place, lambda: weight(), lambda: setattr(source, "weight", 0.2))


# -------------------------------------------------------------------------- kinds of containers


@captured_case(
    "Terms are added up in the order of an OrderedDict, which changes.", expect=CAPTURED
)
def order_of_a_dict(place):
    weights = collections.OrderedDict(a=1e8, b=-1e8, c=0.3)

    def weight():
        total = 0.0
        for value in weights.values():
            total = total + value
        return total

    return weighted(place, weight, lambda: weights.move_to_end("a"))


@captured_case(
    "A key is missing at first, and `get`, `in` and `KeyError` find it late.", expect=CAPTURED
)
def key_comes_late(place):
    table, names, other = {}, [], {}

    def weight():
        total = table.get("ce", 1.0)
        if "aux" in names:
            total += 0.5
        try:  # noqa: SIM105  # as people write it
            total *= other["scale"]
        except KeyError:
            pass
        return total

    def change():
        table["ce"] = 0.7
        names.append("aux")
        other["scale"] = 0.5

    return weighted(place, weight, change)


@captured_case("`setdefault` fills in what is missing, in the first call.", expect=CAPTURED)
def default_is_set_once(place):
    table = {}
    return weighted(
        place, lambda: table.setdefault("weight", 1.0), lambda: table.update(weight=0.2)
    )


@captured_case(
    "A defaultdict fills itself when it is read, and the loop clears it.", expect=EITHER
)
def defaultdict_fills_itself(place):
    table = collections.defaultdict(lambda: 0.5)
    sizes = []

    def change():
        sizes.append(len(table))
        table.clear()

    return weighted(place, lambda: table["ce"] + table["l2"], change), sizes, dict(table)


@captured_case("The most common name of a Counter selects a weight.", expect=CAPTURED)
def most_common(place):
    counts, table = collections.Counter(a=3, b=2), {"a": 1.0, "b": 0.2}
    return weighted(place, lambda: table[counts.most_common(1)[0][0]], lambda: counts.update(b=5))


@captured_case("The mean of a deque, to which the loop appends once.", expect=CAPTURED)
def mean_of_a_deque(place):
    recent = collections.deque([1.0, 2.0, 3.0], maxlen=3)
    return weighted(place, lambda: sum(recent) / len(recent), lambda: recent.append(0.5))


@captured_case("A memoryview shows an array that the loop changes.", expect=CAPTURED)
def memory_view(place):
    numbers = array.array("d", [1.0, 2.0])
    view = memoryview(numbers)[1:]
    return weighted(place, lambda: view[0], lambda: numbers.__setitem__(1, 0.2))


@captured_case("A view of a numpy array is read, whose base the loop changes.", expect=CAPTURED)
def view_of_a_numpy_array(place):
    table = np.ones((3, 4))
    row = table[1]
    return weighted(place, lambda: float(row[2]), lambda: table.__setitem__((1, 2), 0.2))


@captured_case("A numpy array without dimensions is filled in place.", expect=CAPTURED)
def numpy_array_without_dimensions(place):
    alpha = np.array(1.0)
    return weighted(place, lambda: alpha.item(), lambda: alpha.fill(0.2))


@captured_case("A record of a structured numpy array holds the weights.", expect=CAPTURED)
def structured_numpy_array(place):
    table = np.array([(1.0, 2), (0.5, 1)], dtype=[("weight", "f8"), ("power", "i4")])

    def weight():
        return sum(float(row["weight"]) ** int(row["power"]) for row in table)

    return weighted(place, weight, lambda: table["weight"].__setitem__(0, 0.2))


@captured_case("One record of a structured numpy array is kept, and edited.", expect=CAPTURED)
def numpy_record(place):
    table = np.array([(1.0, 2), (0.5, 1)], dtype=[("weight", "f8"), ("power", "i4")])
    settings = {"row": table[0]}

    def weight():
        return float(settings["row"]["weight"]) ** int(settings["row"]["power"])

    return weighted(place, weight, lambda: settings["row"].__setitem__("weight", 0.2))


@captured_case("A record is edited by the array that it is a row of.", expect=CAPTURED)
def numpy_record_of_a_table(place):
    table = np.rec.array([(1.0,), (0.5,)], dtype=[("weight", "f8")])
    row = table[1]
    return weighted(place, lambda: float(row.weight), lambda: table.weight.__setitem__(1, 0.2))


@captured_case(
    "Settings are a module made by code, which gets a name that a default stood for.",
    expect=CAPTURED,
)
def module_made_by_code(place):
    settings = types.ModuleType("settings_of_mine")
    return weighted(
        place, lambda: getattr(settings, "weight", 1.0), lambda: setattr(settings, "weight", 0.2)
    )


@captured_case("A mapping proxy shows a dict that the loop changes.", expect=CAPTURED)
def mapping_proxy(place):
    values = {"weight": 1.0}
    settings = types.MappingProxyType(values)
    return weighted(place, lambda: settings["weight"], lambda: values.update(weight=0.2))


@captured_case("Settings are a UserDict with a UserList.", expect=CAPTURED)
def user_dict_and_list(place):
    settings = collections.UserDict(weights=collections.UserList([1.0, 2.0]))
    return weighted(
        place, lambda: sum(settings["weights"]), lambda: settings["weights"].append(0.5)
    )


class Terms(NamedTuple):
    """Weights of a loss."""

    ce: float = 1.0
    l2: float = 0.1


@captured_case("A NamedTuple of a trainer is replaced by `_replace`.", expect=CAPTURED)
def named_tuple_is_replaced(place):
    trainer = SimpleNamespace(terms=Terms())

    def loss_of(model, x, y):
        out, terms = model(x), trainer.terms._asdict()
        return terms["ce"] * F.cross_entropy(out, y) + terms["l2"] * out.square().mean()

    return trained(
        place, loss_of, lambda: setattr(trainer, "terms", trainer.terms._replace(l2=0.9))
    )


@dataclass
class Loss:
    """Settings of a loss."""

    weight: float = 1.0
    options: dict = dataclasses.field(default_factory=lambda: {"label_smoothing": 0.0})


@captured_case("Settings become a dict by `dataclasses.asdict` in each step.", expect=CAPTURED)
def dataclass_as_a_dict(place):
    settings = Loss()

    def loss_of(model, x, y):
        given = dataclasses.asdict(settings)
        return given["weight"] * F.cross_entropy(model(x), y, **given["options"])

    return trained(place, loss_of, lambda: settings.options.update(label_smoothing=0.2))


@captured_case(
    "The step works on a deep copy of its settings, and changes the copy.", expect=CAPTURED
)
def deep_copy_of_settings(place):
    settings = {"loss": {"weights": [1.0, 2.0]}}

    def weight():
        mine = copy.deepcopy(settings)
        mine["loss"]["weights"].append(0.5)
        return sum(mine["loss"]["weights"])

    return weighted(place, weight, lambda: settings["loss"]["weights"].__setitem__(0, 0.2))


@captured_case("Settings are sent through JSON in each step.", expect=CAPTURED)
def settings_through_json(place):
    settings = {"loss": {"weight": 1.0}}

    def weight():
        return json.loads(json.dumps(settings))["loss"]["weight"]

    return weighted(place, weight, lambda: settings["loss"].update(weight=0.2))


class Task(enum.Flag):
    """Tasks that can be trained together."""

    CLASSES = 1
    NORM = 2


@captured_case("A flag says which losses are added up.", expect=CAPTURED)
def flags_of_an_enum(place):
    trainer = SimpleNamespace(tasks=Task.CLASSES)

    def loss_of(model, x, y):
        out = model(x)
        loss = F.cross_entropy(out, y)
        return loss + 0.1 * out.norm() if Task.NORM in trainer.tasks else loss

    return trained(place, loss_of, lambda: setattr(trainer, "tasks", trainer.tasks | Task.NORM))


@captured_case(
    "A slice, a dtype, a decimal and a pattern are attributes that change.", expect=CAPTURED
)
def unusual_values(place):
    args = SimpleNamespace(
        rows=slice(0, 4),
        dtype=torch.float32,
        weight=decimal.Decimal("1.5"),
        decayed=re.compile(r"0\."),
    )

    def loss_of(model, x, y):
        out = model(x)[args.rows].to(args.dtype)
        named = model.named_parameters()
        decay = sum(one.square().sum() for name, one in named if args.decayed.match(name))
        loss = F.cross_entropy(out, y[args.rows]) * float(args.weight)
        return (loss + 0.01 * decay).float()

    changes = [
        lambda: setattr(args, "rows", slice(0, None, 2)),
        lambda: setattr(args, "dtype", torch.float64),
        lambda: setattr(args, "weight", decimal.Decimal("0.3")),
        lambda: setattr(args, "decayed", re.compile(r"3\.")),
    ]
    model = mlp(place)
    optimizer = sgd(model)

    def before(number):
        if number >= 15 and number % 8 == 0:
            changes.pop(0)()

    step = place.capture(lambda pair: updated(optimizer, loss_of(model, *pair)))
    return losses_of(place, step, 48, before=before), state(model)


@captured_case("A list of callbacks may change the loss, and one is added late.", expect=CAPTURED)
def callback_is_added(place):
    class Smooth:
        weight = 0.1

        def on_loss(self, loss, out):
            return loss + self.weight * out.logsumexp(1).mean()

    callbacks = []

    def loss_of(model, x, y):
        out = model(x)
        loss = F.cross_entropy(out, y)
        for callback in callbacks:
            loss = callback.on_loss(loss, out)
        return loss

    return trained(place, loss_of, lambda: callbacks.append(Smooth()))


@captured_case("Terms stand in a WeakSet, and one of them is let go.", expect=CAPTURED)
def weak_set_shrinks(place):
    terms = [Weights(1.0), Weights(2.0)]
    living = weakref.WeakSet(terms)
    return weighted(
        place, lambda: sum(sorted(term.weight for term in living)), lambda: terms.pop()
    )


@captured_case("`compress`, `islice` and `takewhile` choose among terms.", expect=CAPTURED)
def chosen_by_itertools(place):
    terms, mask = [1.0, 2.0, 3.0, 4.0], [True, False, True, True]
    settings = SimpleNamespace(num=2)

    def weight():
        chosen = itertools.islice(itertools.compress(terms, mask), settings.num)
        return sum(itertools.takewhile(lambda term: term < 3.5, chosen))

    def change():
        mask[0] = False
        settings.num = 1

    return weighted(place, weight, change)


@captured_case(
    "`hasattr` finds an auxiliary head that is added late, and removed again.", expect=CAPTURED
)
def head_is_asked_for(place):
    model = mlp(place)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        head = nn.Linear(4, 4).to(place.torch_device)

    def loss_of(pair):
        out = model(pair[0])
        loss = F.cross_entropy(out, pair[1])
        if hasattr(model, "aux"):
            loss = loss + 0.3 * F.cross_entropy(model.aux(out), pair[1])
        return loss

    def before(number):
        if number == 15:
            object.__setattr__(model, "aux", head)
        if number == 25:
            object.__delattr__(model, "aux")

    optimizer = sgd(model)
    step = place.capture(lambda pair: updated(optimizer, loss_of(pair)))
    return losses_of(place, step, 40, before=before), state(model), head.weight.grad


# ----------------------------------------------------------------- settings of torch, and hooks


@captured_case("A hook for all modules is registered late.", expect=CAPTURED)
def hook_of_all_modules(place):
    handles = []

    def half(module, args, output):
        return output * 0.5 if isinstance(module, nn.Linear) else None

    def change():
        handles.append(nn.modules.module.register_module_forward_hook(half))

    try:
        return trained(place, lambda model, x, y: F.cross_entropy(model(x), y), change)
    finally:
        for handle in handles:
            handle.remove()


@captured_case("A hook for the backward pass of a module is registered late.", expect=CAPTURED)
def backward_hooks_of_a_module(place):
    model = mlp(place)

    def change():
        model[3].register_full_backward_hook(lambda module, given, got: (given[0] * 0.5,))
        model[3].register_full_backward_pre_hook(lambda module, got: (got[0] * 0.5,))

    return trained(
        place, lambda model, x, y: F.cross_entropy(model(x * 1.0), y), change, model=model
    )


@captured_case(
    "A hook after the gradient of a weight is accumulated is registered late.", expect=CAPTURED
)
def hook_after_accumulation(place):
    model = mlp(place)

    def halve(weight):
        weight.grad.mul_(0.5)

    return trained(
        place,
        lambda model, x, y: F.cross_entropy(model(x), y),
        lambda: model[0].weight.register_post_accumulate_grad_hook(halve),
        model=model,
    )


@captured_case(
    "A hook after the optimizer's step clamps weights, from some step on.", expect=CAPTURED
)
def hook_after_the_update(place):
    model = mlp(place)
    optimizer = sgd(model)

    def clamp(optimizer, args, kwargs):
        with torch.no_grad():
            for weight in model.parameters():
                weight.clamp_(-0.2, 0.2)

    return trained(
        place,
        lambda model, x, y: F.cross_entropy(model(x), y),
        lambda: optimizer.register_step_post_hook(clamp),
        model=model,
        optimizer=optimizer,
    )


@captured_case("A hook of all optimizers is registered late.", expect=CAPTURED)
def hook_of_all_optimizers(place):
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    handles = []

    def clip(optimizer, args, kwargs):
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        nn.utils.clip_grad_value_(weights, 0.02)

    try:
        return trained(
            place,
            lambda model, x, y: F.cross_entropy(model(x), y),
            lambda: handles.append(register_optimizer_step_pre_hook(clip)),
        )
    finally:
        for handle in handles:
            handle.remove()


@captured_case("A parametrization is registered late.", expect=CAPTURED)
def parametrization_is_registered(place):
    class Centred(nn.Module):
        def forward(self, weight):
            return weight - weight.mean()

    model = mlp(place)

    def change():
        nn.utils.parametrize.register_parametrization(model[0], "weight", Centred())

    return trained(place, lambda model, x, y: F.cross_entropy(model(x), y), change, model=model)


@captured_case(
    "A layer is normed by its spectrum, whose buffers change in each step.", expect=CAPTURED
)
def spectral_norm(place):
    model = mlp(place)
    nn.utils.parametrizations.spectral_norm(model[0])

    def change():
        model.eval()

    return trained(place, lambda model, x, y: F.cross_entropy(model(x), y), change, model=model)


@captured_case("Weights are pruned in the middle, which adds a mask and a hook.", expect=CAPTURED)
def pruned_in_the_middle(place):
    from torch.nn.utils import prune

    model = mlp(place)

    def mask():
        keep = torch.ones(16, 8, device=place.torch_device)
        keep[::2] = 0
        prune.custom_from_mask(model[0], "weight", keep)

    return trained(place, lambda model, x, y: F.cross_entropy(model(x), y), mask, model=model)


@captured_case("The default device is set for the whole script.", expect=CAPTURED)
def default_device(place):
    torch.set_default_device(place.torch_device)
    try:
        return trained(
            place,
            lambda model, x, y: F.cross_entropy(model(x) + torch.zeros(4), y),
            lambda: None,
        )
    finally:
        torch.set_default_device(None)


@captured_case("Attention, whose kernels are switched on and off by the loop.", expect=CAPTURED)
def kernels_of_attention(place):
    model = nn.Linear(8, 8).to(place.torch_device)

    def loss_of(model, x, y):
        q = model(x).view(1, 2, 3, 8)
        out = F.scaled_dot_product_attention(q, q, q).reshape(6, 8)
        return F.cross_entropy(out, y)

    try:
        return trained(
            place, loss_of, lambda: torch.backends.cuda.enable_flash_sdp(False), model=model
        )
    finally:
        torch.backends.cuda.enable_flash_sdp(True)


@captured_case(
    "A step of training is called in inference mode, for evaluation in between.", expect=EITHER
)
def inference_mode_in_turns(place):
    trainer, results = Trainer(place), []

    def run(pair):
        loss = trainer.loss(pair)
        if torch.is_grad_enabled():
            updated(trainer.optimizer, loss)
        return loss

    step = place.capture(run)
    for number, pair in enumerate(batches(place, 40)):
        with torch.inference_mode(number % 4 == 3):
            loss = step(pair)
        results.append((kept(loss), loss.requires_grad, loss.is_inference()))
    return results, trainer.state()


@captured_case("Saved activations are packed by hooks in some steps.", expect=EITHER)
def saved_tensors_hooks(place):
    trainer, losses = Trainer(place), []
    step = place.capture(trainer.train)

    def rounded(tensor):
        return (tensor * 8).round() / 8 if tensor.is_floating_point() else tensor

    for number, pair in enumerate(batches(place, 30)):
        with contextlib.ExitStack() as stack:
            if number in range(12, 20):
                hooks = torch.autograd.graph.saved_tensors_hooks(rounded, lambda tensor: tensor)
                stack.enter_context(hooks)
            losses.append(kept(step(pair)))
    return losses, trainer.state()


@captured_case(
    "A function of autograd reads a number of its class in its backward pass.", expect=CAPTURED
)
def backward_reads_a_class(place):
    class Reverse(torch.autograd.Function):
        scale = 1.0

        @staticmethod
        def forward(ctx, x):
            return x.view_as(x)

        @staticmethod
        def backward(ctx, grad):
            return -Reverse.scale * grad

    return trained(
        place,
        lambda model, x, y: F.cross_entropy(Reverse.apply(model(x)), y).clamp(max=5.0),
        lambda: setattr(Reverse, "scale", 0.2),
    )


@captured_case("A range of the profiler is named in the step.", expect=CAPTURED)
def range_of_the_profiler(place):
    def loss_of(model, x, y):
        with torch.profiler.record_function("forward"):
            out = model(x)
        with torch.profiler.record_function("loss"):
            return F.cross_entropy(out, y)

    return trained(place, loss_of, lambda: None)


@captured_case("A scripted function reads an attribute of a scripted module.", expect=EITHER)
def scripted_module(place):
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.alpha = 1.0

        def forward(self, loss: torch.Tensor) -> torch.Tensor:
            return loss * self.alpha

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scaled = torch.jit.script(Scaled())
    return trained(
        place,
        lambda model, x, y: scaled(F.cross_entropy(model(x), y)),
        lambda: setattr(scaled, "alpha", 0.2),
    )


@captured_case(
    "A model without state is called with weights that the loop chooses.", expect=CAPTURED
)
def functional_call(place):
    model = mlp(place)
    other = {name: weight.detach() * 0.5 for name, weight in model.named_parameters()}
    chosen = {"teacher": {name: weight.clone() for name, weight in other.items()}}

    def loss_of(model, x, y):
        with torch.no_grad():
            target = torch.func.functional_call(model, chosen["teacher"], (x,))
        out = model(x)
        return F.cross_entropy(out, y) + F.mse_loss(out, target)

    return trained(place, loss_of, lambda: chosen.update(teacher=other), model=model)


@captured_case("A head is chosen from a ModuleDict by the task at hand.", expect=CAPTURED)
def head_by_task(place):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        heads = nn.ModuleDict({"a": nn.Linear(8, 4), "b": nn.Linear(8, 4)})
    heads, trainer = heads.to(place.torch_device), SimpleNamespace(task="a")

    def loss_of(model, x, y):
        return F.cross_entropy(model.get_submodule(trainer.task)(x), y)

    return trained(place, loss_of, lambda: setattr(trainer, "task", "b"), model=heads)


@captured_case(
    "A context of the step is an attribute: nothing at first, autocast later.", expect=CAPTURED
)
def context_is_an_attribute(place):
    trainer = SimpleNamespace(context=contextlib.nullcontext)

    def loss_of(model, x, y):
        with trainer.context():
            out = model(x)
        return F.cross_entropy(out.float(), y)

    def autocast():
        return torch.autocast(place.torch_device.type, dtype=torch.bfloat16)

    return trained(place, loss_of, lambda: setattr(trainer, "context", autocast))


# ------------------------------------------------------------------------ tensors, and gradients


@captured_case(
    "Results are looked at as they are: their `requires_grad`, leaves and graphs.", expect=CAPTURED
)
def results_require_gradients(place):
    model = mlp(place)
    optimizer, results = sgd(model), []

    def train(pair):
        out = model(pair[0])
        loss = updated(optimizer, F.cross_entropy(out, pair[1]))
        return {"loss": loss, "log": loss.detach(), "mean": out.detach().mean()}

    step = place.capture(train)
    for pair in batches(place, 20):
        result = step(pair)
        results.append({name: one.requires_grad for name, one in result.items()})
        results.append({name: kept(one) for name, one in result.items()})
    return results, state(model)


@captured_case(
    "A result is kept as it is, and requires gradients in some phases.", expect=CAPTURED
)
def results_of_two_phases(place):
    trainer, results, phase = Trainer(place), [], {"train": True}

    def run(pair):
        if phase["train"]:
            return trainer.train(pair)
        with torch.no_grad():
            return trainer.loss(pair)

    step = place.capture(run)
    for number, pair in enumerate(batches(place, 40)):
        phase["train"] = number % 10 < 6
        results.append(step(pair))
    return results, trainer.state()


@captured_case(
    "An optimizer's penalty is added to a result that a no-grad step returns.", expect=CAPTURED
)
def result_without_gradients_is_used(place):
    model, target = mlp(place), mlp(place)
    optimizer, losses = sgd(model), []

    @torch.no_grad()
    def targets(x):
        return target(x).softmax(1)

    step = place.capture(targets)
    for x, _ in batches(place, 20):
        soft = step(x)
        losses.append(
            (soft.requires_grad, kept(updated(optimizer, F.cross_entropy(model(x), soft))))
        )
    return losses, state(model)


@captured_case("The batch requires gradients in some steps, and the step asks.", expect=CAPTURED)
def batch_requires_gradients(place):
    trainer, results = Trainer(place), []

    def train(pair):
        x, y = pair
        loss = F.cross_entropy(trainer.model(x), y)
        if x.requires_grad:
            (slope,) = torch.autograd.grad(loss, x, create_graph=True)
            loss = loss + slope.square().sum()
        return updated(trainer.optimizer, loss)

    step = place.capture(train)
    for number, (x, y) in enumerate(batches(place, 40)):
        results.append(kept(step((x.requires_grad_(number % 10 > 6), y))))
    return results, trainer.state()


@captured_case("The loop reads the gradient of its batch after the step.", expect=EITHER)
def gradient_of_the_batch(place):
    trainer, results = Trainer(place), []
    step = place.capture(trainer.train)
    for x, y in batches(place, 20):
        x.requires_grad_()
        loss = step((x, y))
        results.append((kept(loss), None if x.grad is None else kept(x.grad)))
    return results, trainer.state()


@captured_case("A GAN freezes its critic within the step, and thaws it again.", expect=CAPTURED)
def frozen_within_the_step(place):
    generator, critic = mlp(place, num_out=8), mlp(place, num_out=1)
    of_generator, of_critic = sgd(generator), sgd(critic)

    def requires(model, does):
        for weight in model.parameters():
            weight.requires_grad = does

    def train(pair):
        requires(critic, False)
        fake = generator(pair[0])
        first = updated(of_generator, -critic(fake).mean())
        requires(critic, True)
        second = updated(of_critic, critic(fake.detach()).mean() - critic(pair[0]).mean())
        return first.detach() + second.detach()

    step = place.capture(train)
    return losses_of(place, step, 20), state(generator), state(critic)


@captured_case("A matrix of the device is transposed in place by the loop.", expect=CAPTURED)
def matrix_is_transposed_in_place(place):
    mix = torch.arange(16.0, device=place.torch_device).view(4, 4) / 16
    return trained(place, lambda model, x, y: F.cross_entropy(model(x) @ mix, y), lambda: mix.t_())


@captured_case("A table of the device becomes another view of the same memory.", expect=CAPTURED)
def other_view_of_the_same_memory(place):
    table = torch.arange(64.0, device=place.torch_device) / 64
    holder = SimpleNamespace(rows=table.view(16, 4))

    def change():
        holder.rows = table.view(4, 16).T

    return trained(
        place,
        lambda model, x, y: F.cross_entropy(model(x) + holder.rows[2:8], y),
        change,
    )


@captured_case("A tensor of the device is given other memory by `set_`.", expect=CAPTURED)
def tensor_is_set(place):
    bias = torch.zeros(4, device=place.torch_device)
    other = torch.ones(4, device=place.torch_device) * torch.arange(4.0).to(place.torch_device)
    return trained(
        place, lambda model, x, y: F.cross_entropy(model(x) + bias, y), lambda: bias.set_(other)
    )


@captured_case(
    "The noise level is read from a schedule on the host, every tenth step another.",
    expect=CAPTURED,
)
def schedule_on_the_host(place):
    betas, trainer = torch.linspace(0.1, 1.0, 4), SimpleNamespace(t=0)
    model = mlp(place)
    optimizer = sgd(model)

    def train(pair):
        beta = betas[trainer.t].item()
        return updated(optimizer, beta * F.cross_entropy(model(pair[0]), pair[1]))

    def before(number):
        trainer.t = number // 10

    return losses_of(place, place.capture(train), 40, before=before), state(model)


@captured_case("A temperature on the host is learned along with the model.", expect=EITHER)
def temperature_on_the_host(place):
    model, temperature = mlp(place), nn.Parameter(torch.tensor(0.0))
    optimizer = torch.optim.SGD([*model.parameters(), temperature], lr=0.1)

    def train(pair):
        return updated(optimizer, F.cross_entropy(model(pair[0]) * temperature.exp(), pair[1]))

    return losses_of(place, place.capture(train), 20), state(model), kept(temperature)


@captured_case(
    "Class weights are a numpy array that becomes a tensor in each step.", expect=EITHER
)
def numpy_array_becomes_a_tensor(place):
    weights = np.array([1.0, 2.0, 1.0, 0.5], dtype=np.float32)

    def loss_of(model, x, y):
        weight = torch.from_numpy(weights).to(place.torch_device)
        return F.cross_entropy(model(x), y, weight=weight)

    return trained(place, loss_of, lambda: weights.__setitem__(1, 0.1))


@captured_case(
    "Positions are made in the first call, and dropped by the loop later.", expect=CAPTURED
)
def made_in_the_first_call(place):
    class Positions:
        table = None

        def get(self, num):
            if self.table is None:
                self.table = torch.arange(num, device=place.torch_device) * 0.1
            return self.table

    positions = Positions()
    return trained(
        place,
        lambda model, x, y: F.cross_entropy(model(x) + positions.get(4), y),
        lambda: setattr(positions, "table", None),
    )


@captured_case("Layers find out their sizes in the first call.", expect=CAPTURED)
def lazy_layers(place):
    torch.manual_seed(2)
    model = nn.Sequential(nn.LazyLinear(16), nn.ReLU(), nn.LazyLinear(4)).to(place.torch_device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return trained(
        place,
        lambda model, x, y: F.cross_entropy(model(x), y),
        lambda: None,
        model=model,
        optimizer=optimizer,
    )


@captured_case("A group of weights is added to the optimizer late.", expect=CAPTURED)
def group_is_added(place):
    model = mlp(place)
    optimizer = torch.optim.SGD(model[3].parameters(), lr=0.1, momentum=0.9)
    return trained(
        place,
        lambda model, x, y: F.cross_entropy(model(x), y),
        lambda: optimizer.add_param_group({"params": list(model[0].parameters()), "lr": 0.01}),
        model=model,
        optimizer=optimizer,
    )


@captured_case("The optimizer's state is emptied in the middle.", expect=CAPTURED)
def state_is_emptied(place):
    model = mlp(place)
    optimizer = sgd(model, momentum=0.9)

    def change():
        optimizer.state.clear()

    return trained(
        place,
        lambda model, x, y: F.cross_entropy(model(x), y),
        change,
        model=model,
        optimizer=optimizer,
    )


@captured_case("The rate is a number of numpy, from a schedule of the loop.", expect=CAPTURED)
def rate_is_a_numpy_number(place):
    model = mlp(place)
    optimizer = sgd(model, momentum=0.9)
    rates = np.linspace(0.1, 0.01, 40)

    def before(number):
        optimizer.param_groups[0]["lr"] = rates[number]

    step = place.capture(training_step(model, optimizer))
    return losses_of(place, step, 40, before=before), state(model)


# -------------------------------------------------------------------- threads, loops and contexts


@captured_case("The step holds a lock while it trains.", expect=CAPTURED)
def step_holds_a_lock(place):
    lock, term = threading.Lock(), Weights()

    def loss_of(model, x, y):
        with lock:
            return term.weight * F.cross_entropy(model(x), y)

    def change():
        with lock:
            term.weight = 0.2

    return trained(place, loss_of, change)


@captured_case("Another thread sets a number between two steps.", expect=CAPTURED)
def number_is_set_by_a_thread(place):
    term = Weights()

    def change():
        thread = threading.Thread(target=setattr, args=(term, "weight", 0.2))
        thread.start()
        thread.join()

    return weighted(place, lambda: term.weight, change)


@captured_case("The loop is a coroutine, and calls the step between two awaits.", expect=CAPTURED)
def loop_is_a_coroutine(place):
    trainer, term, losses = Trainer(place), Weights(), []
    step = place.capture(lambda pair: updated(trainer.optimizer, term.weight * trainer.loss(pair)))

    async def feed(messages):
        for number in range(NUM):
            await messages.put(number)
            await asyncio.sleep(0)

    async def train(messages):
        for _ in range(NUM):
            number = await messages.get()
            if number == LATE:
                term.weight = 0.2
            losses.append(kept(step(batch(place, number))))

    async def main():
        messages = asyncio.Queue(maxsize=2)
        await asyncio.gather(feed(messages), train(messages))

    asyncio.run(main())
    return losses, trainer.state()


@captured_case(
    "The teacher is put into evaluation by a context of the step, and put back.", expect=CAPTURED
)
def mode_by_a_context(place):
    model = mlp(place, dropout=0.5)

    @contextlib.contextmanager
    def evaluating(module):
        was = module.training
        module.eval()
        try:
            yield
        finally:
            module.train(was)

    def loss_of(model, x, y):
        with evaluating(model), torch.no_grad():
            target = model(x).softmax(1)
        out = model(x)
        return F.cross_entropy(out, y) + F.cross_entropy(out, target)

    return trained(place, loss_of, lambda: None, model=model)


@captured_case(
    "The step seeds torch by a number of its own, for the same noise each time.", expect=EITHER
)
def step_seeds_torch(place):
    trainer = SimpleNamespace(seed=3)

    def loss_of(model, x, y):
        torch.manual_seed(trainer.seed)
        return F.cross_entropy(model(x + 0.1 * torch.randn_like(x)), y)

    return trained(place, loss_of, lambda: setattr(trainer, "seed", 4))


@captured_case(
    "The step seeds Python's generator and draws the same number each time.", expect=EITHER
)
def step_seeds_python(place):
    def weight():
        random.seed(7)
        return random.random()

    return weighted(place, weight, random.random)


@captured_case("A line of `sys.argv` decides, and the loop changes it.", expect=CAPTURED)
def arguments_of_the_process(place):
    kept_arguments = list(sys.argv)
    try:
        return weighted(
            place,
            lambda: 0.2 if "--cool" in sys.argv else 1.0,
            lambda: sys.argv.append("--cool"),
        )
    finally:
        sys.argv[:] = kept_arguments


@captured_case("The level of a logger decides about a term of the loss.", expect=EITHER)
def level_of_a_logger_decides(place):
    logger = logging.getLogger("hazards.found.level")
    logger.setLevel(logging.WARNING)
    return weighted(
        place,
        lambda: 0.2 if logger.isEnabledFor(logging.DEBUG) else 1.0,
        lambda: logger.setLevel(logging.DEBUG),
    )


@captured_case("The step ignores warnings for a while.", expect=EITHER)
def warnings_are_ignored(place):
    def loss_of(model, x, y):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.warn("a known one", stacklevel=1)
            return F.cross_entropy(model(x), y)

    return trained(place, loss_of, lambda: warnings.warn("from the loop", stacklevel=1))


# --------------------------------------------------------------------------------------- writes


@captured_case(
    "The size of the last batch is kept, and the loop reads it; two sizes take turns.",
    expect=EITHER,
)
def size_of_the_last_batch(place):
    trainer, results = Trainer(place), []

    def train(pair):
        trainer.last_shape = tuple(pair[0].shape)
        trainer.num_rows = len(pair[0])
        return trainer.train(pair)

    step = place.capture(train)
    for number in range(36):
        loss = step(batch(place, number, rows=4 + number % 2))
        results.append((kept(loss), trainer.last_shape, trainer.num_rows))
    return results, trainer.state()


@captured_case("The name of the last task is kept, and the loop counts by it.", expect=EITHER)
def name_of_the_last_task(place):
    trainer, counts = Trainer(place), collections.Counter()
    trainer.config = {"task": "a"}

    def train(pair):
        trainer.last = trainer.config["task"]
        return updated(trainer.optimizer, trainer.loss(pair) * (1 + (trainer.last == "b")))

    step, losses = place.capture(train), []
    for number, pair in enumerate(batches(place, 40)):
        trainer.config["task"] = "ab"[number // 2 % 2]
        losses.append(kept(step(pair)))
        counts[trainer.last, number % 4] += 1
    return losses, dict(counts), trainer.state()


@captured_case(
    "Outputs of the last call are kept, and two sizes of batches take turns.", expect=EITHER
)
def last_outputs_of_two_sizes(place):
    trainer, results = Trainer(place), []

    def train(pair):
        trainer.out = trainer.model(pair[0])
        return updated(trainer.optimizer, F.cross_entropy(trainer.out, pair[1]))

    step = place.capture(train)
    for number in range(36):
        loss = step(batch(place, number, rows=4 + number % 2))
        results.append((kept(loss), kept(trainer.out)))
    return results, trainer.state()


@captured_case(
    "A message is printed once, by a flag that the loop takes back later.", expect=EITHER
)
def printed_once(place):
    told = {"shape": False}

    def work():
        if not told["shape"]:
            print("a batch arrives")
            told["shape"] = True

    def loss_of(model, x, y):
        work()
        return F.cross_entropy(model(x), y)

    return trained(place, loss_of, lambda: told.update(shape=False)), told


@captured_case("The step counts in a `finally`.", expect=refused("num", at='stats["num"] += 1'))
def counts_in_finally(place):
    stats = {"num": 0}

    def work():
        try:
            return math.sqrt(2.0)
        finally:
            stats["num"] += 1

    return working(place, work), stats


@captured_case(
    "A context of the user counts when it is left.",
    expect=refused("num_left", at="self.num_left += 1"),
)
def context_counts(place):
    class Section:
        num_left = 0

        def __enter__(self):
            return self

        def __exit__(self, *error):
            self.num_left += 1

    section = Section()

    def work():
        with section:
            pass

    return working(place, work), section.num_left


@captured_case(
    "An attribute is counted up by `setattr` and `getattr`.",
    expect=refused("num_a", at="setattr(stats, name, getattr(stats, name) + 1)"),
)
def counts_by_setattr(place):
    stats = SimpleNamespace(num_a=0)
    name = "num_a"

    def work():
        setattr(stats, name, getattr(stats, name) + 1)

    return working(place, work), stats.num_a


@captured_case(
    "A property's setter writes to a hidden attribute.",
    expect=refused("_num", at="self._num = value"),
)
def property_setter_counts(place):
    class Stats:
        _num = 0

        @property
        def num(self):
            return self._num

        @num.setter
        def num(self, value):
            self._num = value

    stats = Stats()

    def work():
        stats.num += 1

    return working(place, work), stats.num


@captured_case(
    "A function counts its calls in an attribute of its own.",
    expect=refused("calls", at="work.calls += 1"),
)
def function_counts_on_itself(place):
    def work():
        work.calls += 1

    work.calls = 0
    return working(place, work), work.calls


@captured_case("A list that is a default argument counts.", expect=refused(at="seen[0] += 1"))
def default_argument_counts(place):
    counts = [0]

    def work(seen=counts):
        seen[0] += 1

    return working(place, work), counts


@captured_case("A counter is shared with other processes.", expect=refused(at="number.value += 1"))
def number_of_c_counts(place):
    number = ctypes.c_long(0)

    def work():
        number.value += 1

    return working(place, work), number.value


@captured_case("Bytes of a buffer are written by the step.", expect=refused(at="marks[0] ="))
def bytes_are_written(place):
    marks = bytearray(4)

    def work():
        marks[0] = (marks[0] + 1) % 100

    return working(place, work), bytes(marks)


@captured_case(
    "A window of a history slides by an assignment to a slice.",
    expect=refused("history", at="history[:] ="),
)
def window_slides(place):
    history = [0, 1, 2]

    def work():
        history[:] = [*history[1:], history[-1] + 1]

    return working(place, work), history


@captured_case(
    "The step writes to a global by `globals()`.",
    expect=refused("NUM_CALLS", at='globals()["NUM_CALLS"] += 1'),
)
def global_by_its_name_counts(place):
    globals()["NUM_CALLS"] = 0

    def work():
        globals()["NUM_CALLS"] += 1

    return working(place, work), globals()["NUM_CALLS"]


@captured_case(
    "The step writes to an attribute of a module found in `sys.modules`.",
    expect=refused("NUM_SEEN", at="module.NUM_SEEN += 1"),
)
def module_by_sys_modules_counts(place):
    def work():
        module = sys.modules["hazards.captured_elsewhere"]
        module.NUM_SEEN += 1

    with elsewhere():
        return working(place, work), captured_elsewhere.NUM_SEEN


@captured_case(
    "The step writes text to a buffer in memory.", expect=refused(at='buffer.write("step ")')
)
def text_to_a_buffer(place):
    buffer = io.StringIO()

    def work():
        buffer.write("step ")

    return working(place, work), buffer.getvalue()


@captured_case(
    "The step prints to a buffer in memory.", expect=refused(at='print("step", file=buffer)')
)
def prints_to_a_buffer(place):
    buffer = io.StringIO()

    def work():
        print("step", file=buffer)

    return working(place, work), buffer.getvalue()


@captured_case(
    "The step inserts a row into a database.", expect=refused(at='database.execute("insert')
)
def row_of_a_database(place):
    database = sqlite3.connect(":memory:")
    database.execute("create table steps (number integer)")

    def work():
        database.execute("insert into steps values (1)")

    return working(place, work), database.execute("select count(*) from steps").fetchall()


@captured_case(
    "A handler of the user keeps what is logged.", expect=refused(at='logger.info("step")')
)
def handler_keeps_messages(place):
    class Kept(logging.Handler):
        def __init__(self):
            super().__init__()
            self.messages = []

        def emit(self, record):
            self.messages.append(record.getMessage())

    logger, handler = logging.getLogger("hazards.found.kept"), Kept()
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.addHandler(handler)

    def work():
        logger.info("step")

    try:
        return working(place, work), handler.messages
    finally:
        logger.removeHandler(handler)


@captured_case(
    "The step sets a variable of the environment, which the loop reads.",
    expect=refused(at='os.environ["STEPS_DONE"] = str'),
)
def environment_is_written(place):
    os.environ["STEPS_DONE"] = "0"

    def work():
        os.environ["STEPS_DONE"] = str(int(os.environ["STEPS_DONE"]) + 1)

    return working(place, work), os.environ["STEPS_DONE"]


@captured_case(
    "The step takes what other threads have put into a queue.",
    expect=refused(at="messages.get_nowait()"),
)
def takes_from_a_queue(place):
    messages = queue.SimpleQueue()
    for number in range(6):
        messages.put(number)

    def loss_of(model, x, y):
        try:
            weight = 1.0 + messages.get_nowait()
        except queue.Empty:
            weight = 1.0
        return weight * F.cross_entropy(model(x), y)

    return trained(place, loss_of, lambda: None)


@captured_case(
    "Batches without labels come from an iterator that the step renews.",
    expect=refused(at="next(self.unlabelled)"),
)
def second_loader_in_the_step(place):
    model = mlp(place)
    optimizer = sgd(model)

    class Semi:
        def __init__(self):
            self.data = [batch(place, 50 + number)[0] for number in range(4)]
            self.unlabelled = iter(self.data)

        def next(self):
            try:
                return next(self.unlabelled)
            except StopIteration:
                self.unlabelled = iter(self.data)
                return self.data[0]

        def train(self, pair):
            out = model(self.next()).softmax(1)
            entropy = -(out * out.log()).sum(1).mean()
            return updated(optimizer, F.cross_entropy(model(pair[0]), pair[1]) + 0.1 * entropy)

    return losses_of(place, place.capture(Semi().train), 20), state(model)


@captured_case(
    "`itertools.cycle` gives the weight of each step.", expect=refused(at="weight = next(weights)")
)
def next_of_a_cycle(place):
    weights = itertools.cycle([1.0, 0.5, 0.25])

    def loss_of(model, x, y):
        weight = next(weights)
        return weight * F.cross_entropy(model(x), y)

    return trained(place, loss_of, lambda: None)


@captured_case(
    "A weak dict of the project counts by object.", expect=refused(at="counts[trainer] =")
)
def weak_keys_count(place):
    counts, trainer = weakref.WeakKeyDictionary(), Trainer(place)

    def work():
        counts[trainer] = counts.get(trainer, 0) + 1

    return working(place, work), counts[trainer]


@captured_case(
    "The loss is copied to a tensor on the host that the loop reads after each step.",
    expect=EITHER,
)
def loss_is_copied_to_the_host(place):
    trainer, shown, seen = Trainer(place), torch.zeros(()), []

    def train(pair):
        loss = trainer.train(pair)
        shown.copy_(loss.detach(), non_blocking=True)
        return loss

    step = place.capture(train)
    for pair in batches(place, 20):
        step(pair)
        place.settle()
        seen.append(float(shown))
    return seen, trainer.state()


# ----------------------------------------------------------------- found by a second attempt


@captured_case("Terms stand in a dict of dicts that is given to a helper.", expect=CAPTURED)
def nested_dicts_for_a_helper(place):
    groups = {"main": {"ce": Weights(1.0)}, "aux": {"l2": Weights(0.5)}}

    def helper(given, group, name):
        return given[group][name].weight

    return weighted(
        place,
        lambda: helper(groups, "main", "ce") + helper(groups, "aux", "l2"),
        lambda: setattr(groups["aux"]["l2"], "weight", 3.0),
    )


@captured_case("A loss has twelve terms, each an attribute of the trainer.", expect=CAPTURED)
def twelve_terms(place):
    class Many:
        def __init__(self):
            self.a, self.b, self.c, self.d, self.e, self.f = (Weights(0.1) for _ in range(6))
            self.g, self.h, self.i, self.j, self.k, self.z = (Weights(0.1) for _ in range(6))

        def weight(self):
            first = [self.a, self.b, self.c, self.d, self.e, self.f]
            total = 0.0
            for term in [*first, self.g, self.h, self.i, self.j, self.k, self.z]:
                total += term.weight
            return total

    many = Many()

    def change():
        for name in "abcdefghijkz":
            getattr(many, name).weight *= 1.0 if name != "f" else 9.0

    return weighted(place, many.weight, change)


@captured_case("Settings are nested nine deep, and a path of keys is followed.", expect=CAPTURED)
def nested_nine_deep(place):
    path = list("abcdefgh")
    settings = inner = {}
    for key in path:
        inner[key] = {}
        inner = inner[key]
    inner["weight"] = 1.0

    def weight():
        node = settings
        for key in path:
            node = node[key]
        return node["weight"]

    return weighted(place, weight, lambda: inner.update(weight=0.2))


@captured_case(
    "The attributes of an object are replaced as a whole, `__dict__ = ...`.", expect=CAPTURED
)
def attributes_are_replaced(place):
    settings = Weights()
    return weighted(
        place, lambda: settings.weight, lambda: setattr(settings, "__dict__", {"weight": 0.2})
    )


@captured_case("A variable of the environment is read by `os.getenv`.", expect=EITHER)
def environment_by_getenv(place):
    return weighted(
        place,
        lambda: float(os.getenv("FOUND_WEIGHT", "1.0")),
        lambda: os.environ.update(FOUND_WEIGHT="0.2"),
    )


@captured_case(
    "A deadline is compared with `datetime.now()`.",
    expect=refused("now", at="dt.datetime.now() > deadline"),
)
def deadline(place):
    deadline = dt.datetime(1999, 1, 1)

    def weight():
        return 0.5 if dt.datetime.now() > deadline else 1.0

    return weighted(place, weight, lambda: None)


@captured_case("The values of a dict are kept as a view, and the dict changes.", expect=CAPTURED)
def view_of_a_dict(place):
    weights = {"a": 1.0, "b": 0.5}
    values, items = weights.values(), weights.items()
    return weighted(
        place,
        lambda: sum(values) + sum(weight for _, weight in items),
        lambda: weights.update(b=0.1),
    )


@captured_case("A name is put into `builtins`, as some tools do.", expect=CAPTURED)
def name_in_builtins(place):
    builtins.FOUND_WEIGHT = 1.0
    try:
        return weighted(
            place,
            lambda: FOUND_WEIGHT,  # noqa: F821
            lambda: setattr(builtins, "FOUND_WEIGHT", 0.2),
        )
    finally:
        del builtins.FOUND_WEIGHT


@captured_case("A numpy array of objects holds numbers and texts.", expect=CAPTURED)
def numpy_array_of_objects(place):
    table = np.array([[1.0, "ce"], [0.5, "l2"]], dtype=object)
    return weighted(place, lambda: table[0][0], lambda: table.__setitem__((0, 0), 0.2))


@captured_case("Settings come from a ConfigParser.", expect=CAPTURED)
def config_parser(place):
    settings = configparser.ConfigParser()
    settings.read_string("[loss]\nweight = 1.0\n")
    return weighted(
        place,
        lambda: settings.getfloat("loss", "weight") * float(settings["loss"]["weight"]),
        lambda: settings.set("loss", "weight", "0.2"),
    )


@captured_case("A number is shared with other processes by `multiprocessing`.", expect=CAPTURED)
def number_of_multiprocessing(place):
    number = multiprocessing.Value("d", 1.0)
    return weighted(place, lambda: number.value, lambda: setattr(number, "value", 0.2))


@captured_case("A list has thousands of terms, and a late one changes.", expect=EITHER)
def thousands_of_terms(place):
    terms = [Weights(0.001) for _ in range(3_000)]
    return weighted(
        place,
        lambda: sum(term.weight for term in terms),
        lambda: setattr(terms[2_500], "weight", 2.0),
    )


@captured_case(
    "The step seeds numpy's generator and draws the same number each time.", expect=EITHER
)
def step_seeds_numpy(place):
    def weight():
        np.random.seed(7)  # noqa: NPY002
        return float(np.random.rand())  # noqa: NPY002

    return weighted(place, weight, np.random.rand)


@captured_case("A helper is given a list of lists of objects.", expect=CAPTURED)
def nested_lists_for_a_helper(place):
    stages = [[Weights(1.0), Weights(0.5)], [Weights(0.25)]]

    def total(given):
        return sum(term.weight for stage in given for term in stage)

    return weighted(place, lambda: total(stages), lambda: setattr(stages[1][0], "weight", 2.0))


@captured_case("A helper returns a dict of lists of objects.", expect=CAPTURED)
def nested_result_of_a_helper(place):
    class Registry:
        def __init__(self):
            self._stages = {"early": [Weights(1.0)], "late": [Weights(0.5)]}

        def stages(self):
            return {name: list(stage) for name, stage in self._stages.items()}

    registry = Registry()
    return weighted(
        place,
        lambda: sum(term.weight for stage in registry.stages().values() for term in stage),
        lambda: setattr(registry._stages["late"][0], "weight", 2.0),
    )


@captured_case("An object is found by following `next` nodes of a chain.", expect=CAPTURED)
def linked_list(place):
    nodes = [SimpleNamespace(weight=0.1, next=None) for _ in range(14)]
    for node, following in itertools.pairwise(nodes):
        node.next = following

    def weight():
        node, total = nodes[0], 0.0
        while node is not None:
            total += node.weight
            node = node.next
        return total

    return weighted(place, weight, lambda: setattr(nodes[-1], "weight", 2.0))


@captured_case("A tree of objects is walked by a function that calls itself.", expect=CAPTURED)
def tree_is_walked(place):
    def made(depth):
        children = [made(depth - 1), made(depth - 1)] if depth else []
        return SimpleNamespace(weight=0.01, children=children)

    root = made(4)
    leaf = root
    while leaf.children:
        leaf = leaf.children[1]

    def total(node):
        return node.weight + sum(total(child) for child in node.children)

    return weighted(place, lambda: total(root), lambda: setattr(leaf, "weight", 2.0))


@captured_case("A hook of the user's on the loss itself reads a number.", expect=CAPTURED)
def hook_on_the_loss(place):
    settings = SimpleNamespace(scale=1.0)

    def loss_of(model, x, y):
        out = model(x)
        out.register_hook(lambda grad: grad * settings.scale)
        return F.cross_entropy(out, y)

    return trained(place, loss_of, lambda: setattr(settings, "scale", 0.2))


@captured_case("A weight is compared by `==` of dataclasses.", expect=CAPTURED)
def dataclasses_are_compared(place):
    now, wanted = Loss(), Loss(weight=0.5)
    return weighted(
        place, lambda: 0.2 if now == wanted else 1.0, lambda: setattr(now, "weight", 0.5)
    )


@captured_case("The loop keeps results as they are and adds them up.", expect=CAPTURED)
def results_are_added_up(place):
    trainer, total = Trainer(place), 0.0
    step = place.capture(trainer.train)
    for pair in batches(place, 20):
        total = total + step(pair)
    return total, total.requires_grad, trainer.state()


@captured_case("A result's backward pass is called a second time by mistake.", expect=EITHER)
def second_backward_pass(place):
    trainer, results = Trainer(place), []
    step = place.capture(trainer.train)
    for pair in batches(place, 12):
        loss = step(pair)
        try:
            loss.backward()
        except RuntimeError as error:
            results.append(str(error)[:50])
        results.append(kept(loss))
    return results, trainer.state()
