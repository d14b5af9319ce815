"""State that steps read as people write it: names, attributes, items, configs."""

from __future__ import annotations

import argparse
import dataclasses
import enum
import sys
import types
from typing import NamedTuple

import torch
import torch.nn.functional as F

from graphs.allow_list.harness import Case, register


STATE: list[Case] = []

captured, _, either, _ = register(STATE, "written")

SCALE = 1.0
LOSSES = {"square": torch.square, "abs": torch.abs}

this = sys.modules[__name__]


class Scaled:
    """What a class of the user's has."""

    scale = 1.0

    def __init__(self, scale=1.0):
        self._scale = scale

    @property
    def current(self):
        return self._scale * 2.0

    @staticmethod
    def halved(k):
        return k / 2

    @classmethod
    def of_class(cls):
        return cls.scale


def sets(name, value):
    return lambda training, number: setattr(training.net, name, value)


# ------------------------------------------------------------------------ names and attributes


@captured(shows=False)
def argument(place, net):
    def forward(net, call):
        x, weight = call
        return net.out(x) * weight

    return forward, None, lambda x, number: (x, 1.0 if number < 10 else 2.0)


@captured(shows=False)
def batch_of_a_dict(place, net):
    def forward(net, call):
        return net.out(call["x"]) - call["y"]

    return forward, None, lambda x, number: {"x": x, "y": x.sum()}


@captured()
def default_of_an_argument(place, net):
    def scaled(x, scale=1.0, *, shift=0.5):
        return x * scale + shift

    return lambda net, x: scaled(net.out(x)), lambda training, number: setattr(
        scaled, "__kwdefaults__", {"shift": 1.5}
    )


@captured()
def closure(place, net):
    scale = 1.0

    def change(training, number):
        nonlocal scale
        scale = 2.0

    return lambda net, x: net.out(x) * scale, change


@captured()
def module_global(place, net):
    return lambda net, x: net.out(x) * SCALE, lambda training, number: place.patch(
        this, "SCALE", 2.0
    )


@captured()
def attribute(place, net):
    net.scale = 1.0
    return lambda net, x: net.out(x) * net.scale, sets("scale", 2.0)


@captured()
def attributes_of_attributes(place, net):
    net.config = types.SimpleNamespace(loss=types.SimpleNamespace(weight=1.0))
    return lambda net, x: net.out(x) * net.config.loss.weight, lambda training, number: setattr(
        net.config.loss, "weight", 2.0
    )


@captured()
def getattr_of_a_constant(place, net):
    net.scale = 1.0
    return lambda net, x: net.out(x) * getattr(net, "scale", 3.0), sets("scale", 2.0)


@captured()
def getattr_of_a_computed_name(place, net):
    net.kind, net.scale_of_ones, net.scale_of_twos = "ones", 1.0, 2.0
    return lambda net, x: net.out(x) * getattr(net, f"scale_of_{net.kind}"), sets("kind", "twos")


@captured()
def hasattr_of_an_attribute_to_come(place, net):
    def forward(net, x):
        out = net.out(x)
        return out * net.scale if hasattr(net, "scale") else out

    return forward, sets("scale", 2.0)


@captured()
def property_of_an_object(place, net):
    net.weights = Scaled()
    return lambda net, x: net.out(x) * net.weights.current, lambda training, number: setattr(
        net.weights, "_scale", 2.0
    )


@captured()
def class_and_static_methods(place, net):
    def forward(net, x):
        return net.out(x) * Scaled.halved(Scaled.of_class())

    return forward, lambda training, number: place.patch(Scaled, "scale", 2.0)


@captured()
def super_call(place, net):
    class Base:
        weight = 1.0

        def of(self, out):
            return out * self.weight

    class Loss(Base):
        def of(self, out):
            return super().of(out) + 1.0

    net.loss = Loss()
    return lambda net, x: net.loss.of(net.out(x)), lambda training, number: setattr(
        net.loss, "weight", 2.0
    )


@captured()
def none_until_it_is_set(place, net):
    net.clamp_to = None

    def forward(net, x):
        out = net.out(x) + 1.0
        if net.clamp_to is not None:
            out = out.clamp(-net.clamp_to, net.clamp_to)
        return out

    return forward, sets("clamp_to", 0.1)


# ------------------------------------------------------------------------ items


@captured()
def item_of_a_dict(place, net):
    weights = {"main": 1.0, "aux": 0.1}
    return lambda net, x: net.out(x) * weights["main"], lambda training, number: weights.update(
        main=2.0
    )


@captured()
def item_of_a_dict_in_a_dict(place, net):
    config = {"loss": {"weight": 1.0}, "name": "run"}
    return lambda net, x: net.out(x) * config["loss"]["weight"], (
        lambda training, number: config["loss"].update(weight=2.0)
    )


@captured()
def item_of_a_dict_with_a_default(place, net):
    net.config = {"scale": 1.0}
    return lambda net, x: net.out(x) * net.config.get("weight", 1.0), (
        lambda training, number: net.config.update(weight=2.0)
    )


@captured()
def items_of_a_list(place, net):
    scales = [1.0, 0.5]
    return lambda net, x: net.out(x) * scales[0] + scales[-1], (
        lambda training, number: scales.__setitem__(0, 2.0)
    )


@captured()
def items_of_a_tuple(place, net):
    net.betas = (0.5, 0.9)

    def forward(net, x):
        low, high = net.betas
        return net.out(x) * low + high

    return forward, sets("betas", (0.6, 0.9))


@captured()
def slice_of_a_list(place, net):
    scales = [1.0, 0.5, 0.25]
    return lambda net, x: net.out(x) * sum(scales[:2]), (
        lambda training, number: scales.__setitem__(1, 2.0)
    )


@captured()
def name_of_a_set(place, net):
    frozen = {"last"}

    def forward(net, x):
        hidden = net.hidden(x)
        return net.last(hidden.detach() if "first" in frozen else hidden)

    return forward, lambda training, number: frozen.add("first")


@captured()
def item_of_a_global_dict(place, net):
    net.kind = "square"
    return lambda net, x: LOSSES[net.kind](net.out(x)), sets("kind", "abs")


@captured()
def keywords_from_a_dict(place, net):
    settings = {"negative_slope": 0.1}
    return lambda net, x: F.leaky_relu(net.out(x), **settings), (
        lambda training, number: settings.update(negative_slope=0.5)
    )


# ------------------------------------------------------------------------ configs


@captured()
def dataclass_config(place, net):
    @dataclasses.dataclass
    class Config:
        weight: float = 1.0
        name: str = "run"

    net.config = Config()
    return lambda net, x: net.out(x) * net.config.weight, lambda training, number: setattr(
        net.config, "weight", 2.0
    )


@captured()
def frozen_config_replaced(place, net):
    @dataclasses.dataclass(frozen=True)
    class Config:
        weight: float = 1.0

    net.config = Config()
    return lambda net, x: net.out(x) * net.config.weight, sets("config", Config(2.0))


@captured()
def named_tuple_config(place, net):
    class Config(NamedTuple):
        weight: float
        name: str

    net.config = Config(1.0, "run")
    return lambda net, x: net.out(x) * net.config.weight, sets("config", Config(2.0, "run"))


@captured()
def parsed_arguments(place, net):
    parser = argparse.ArgumentParser()
    parser.add_argument("--weight", type=float, default=1.0)
    parser.add_argument("--use-bias", action="store_true")
    args = parser.parse_args([])

    def forward(net, x):
        out = net.out(x) * args.weight
        return out + 1.0 if args.use_bias else out

    return forward, lambda training, number: setattr(args, "weight", 2.0)


@either()
def config_of_attributes_and_items(place, net):
    class Config(dict):
        def __getattr__(self, name):
            return self[name]

    config = Config(loss=Config(weight=1.0), name="run")
    return lambda net, x: net.out(x) * config.loss.weight, (
        lambda training, number: config.loss.update(weight=2.0)
    )


@either()
def config_whose_getattr_is_of_dict(place, net):
    class Config(dict):
        __getattr__ = dict.__getitem__
        __setattr__ = dict.__setitem__

    config = Config(weight=1.0)
    return lambda net, x: net.out(x) * config.weight, lambda training, number: setattr(
        config, "weight", 2.0
    )


@captured()
def enum_of_modes(place, net):
    class Mode(enum.Enum):
        PLAIN = "plain"
        SQUARE = "square"

    net.mode = Mode.PLAIN

    def forward(net, x):
        out = net.out(x)
        return out.square() if net.mode is Mode.SQUARE else out

    return forward, sets("mode", Mode.SQUARE)


@captured()
def functions_of_loss_weights(place, net):
    net.step_number = 0
    net.weights = {"main": lambda step: 1.0 if step < 10 else 0.5, "aux": lambda step: 0.1}

    def forward(net, x):
        out = net.out(x)
        return sum(weight(net.step_number) * out for weight in net.weights.values())

    return forward, sets("step_number", 10)
