"""Code that people write over what a step reads: loops, builtins, functions, tables, branches."""

# Old ways to write things stand beside new ones.
# ruff: noqa: UP031

from __future__ import annotations

import functools
import itertools
import math
import operator

import torch
import torch.nn.functional as F
from torch import nn

from graphs.allow_list.harness import Case, register


CODE: list[Case] = []

captured, _, either, _ = register(CODE, "written")

LOSSES = {"square": torch.square, "abs": torch.abs}


def sets(name, value):
    return lambda training, number: setattr(training.net, name, value)


# ------------------------------------------------------------------------ loops and builtins


@captured()
def loop_over_a_list(place, net):
    scales = [1.0, 0.5]

    def forward(net, x):
        out = net.out(x)
        for number, scale in enumerate(scales):
            out = out * scale + number
        return out

    return forward, lambda training, number: scales.append(2.0)


@captured()
def loop_over_a_dict(place, net):
    weights = {"square": 1.0, "abs": 0.5}

    def forward(net, x):
        out, total = net.out(x), 0.0
        for name, weight in weights.items():
            total = total + weight * LOSSES[name](out)
        return total

    return forward, lambda training, number: weights.update(abs=2.0)


@captured()
def loop_over_modules(place, net):
    net.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
    net.layers.to(place.device.torch_device)
    net.rates = [0.1, 0.2]

    def forward(net, x):
        hidden = net.hidden(x)
        for layer, rate in zip(net.layers, net.rates, strict=True):
            hidden = hidden + rate * layer(hidden)
        return net.last(hidden)

    return forward, sets("rates", [0.1, 0.5])


@captured()
def loop_over_parameters(place, net):
    net.decay = 0.01

    def forward(net, x):
        penalty = sum(
            weight.square().sum()
            for name, weight in net.named_parameters()
            if "bias" not in name and weight.requires_grad
        )
        return net.out(x) + net.decay * penalty

    return forward, sets("decay", 0.1)


@captured()
def sorted_and_extremes(place, net):
    weights = {"b": 0.5, "a": 1.0}

    def forward(net, x):
        out = net.out(x)
        for name in sorted(weights):
            out = out * weights[name]
        return out + max(weights.values()) - min(weights["a"], 0.25)

    return forward, lambda training, number: weights.update(b=2.0)


@captured()
def any_all_map_filter(place, net):
    net.scales = [1.0, 0.5]

    def forward(net, x):
        weights = list(filter(lambda weight: weight.requires_grad, net.parameters()))
        out = net.out(x) * len(weights)
        if any(scale > 1.5 for scale in net.scales) and all(net.scales):
            out = out * 3.0
        for scale in map(float, net.scales):
            out = out * scale
        return out

    return forward, lambda training, number: net.scales.append(2.0)


@captured()
def range_and_reversed(place, net):
    net.depth, net.scales = 1, (0.5, 0.25)

    def forward(net, x):
        out = net.out(x)
        for number in range(net.depth):
            out = out + number + 1
        for scale in reversed(net.scales):
            out = out * scale + 1.0
        return out

    return forward, sets("depth", 2)


@captured()
def comprehension(place, net):
    net.powers = [1, 2]
    return lambda net, x: torch.stack([net.out(x) ** power for power in net.powers]).sum(), (
        lambda training, number: net.powers.append(3)
    )


@captured()
def isinstance_and_type(place, net):
    net.activation = nn.Tanh()

    def forward(net, x):
        out = net.activation(net.out(x))
        if isinstance(net.activation, nn.ReLU | nn.GELU):
            out = out * 2.0
        return out + 1.0 if type(net.activation) is nn.Tanh else out

    return forward, sets("activation", nn.GELU())


@captured()
def numbers_of_text(place, net):
    config = {"scale": "1.0", "steps": 3}
    return lambda net, x: net.out(x) * float(config["scale"]) / int(str(config["steps"])), (
        lambda training, number: config.update(scale="2.0")
    )


@captured()
def methods_of_text(place, net):
    net.kind = "Mean_Square"

    def forward(net, x):
        out = net.out(x)
        return out.square() if net.kind.lower().endswith("square") else out

    return forward, sets("kind", "mean")


@captured()
def math_of_an_attribute(place, net):
    net.epoch = 1
    return lambda net, x: net.out(x) * math.cos(math.pi * net.epoch / 7), sets("epoch", 2)


@captured()
def functions_of_operator(place, net):
    net.scale = 1.0

    def forward(net, x):
        out = net.out(x)
        return functools.reduce(operator.add, [out, operator.mul(out, net.scale)])

    return forward, sets("scale", 2.0)


@captured()
def partial_function(place, net):
    net.activation = functools.partial(F.leaky_relu, negative_slope=0.1)
    return lambda net, x: net.activation(net.out(x)), sets(
        "activation", functools.partial(F.leaky_relu, negative_slope=0.5)
    )


@either()
def chain_of_parameters(place, net):
    net.decay = 0.01

    def forward(net, x):
        weights = itertools.chain(net.first.parameters(), net.last.parameters())
        return net.out(x) + net.decay * sum(weight.abs().sum() for weight in weights)

    return forward, sets("decay", 0.1)


@captured()
def text_made_of_numbers(place, net):
    net.level, net.table = 1.0, {"level 1.0": 1.0, "level 2.0": 2.0}
    return lambda net, x: net.out(x) * net.table[f"level {net.level:.1f}"], sets("level", 2.0)


@captured()
def modules_by_formatted_names(place, net):
    for number in range(2):
        setattr(net, f"block{number}", nn.Linear(4, 4).to(place.device.torch_device))
    net.scale = 1.0

    def forward(net, x):
        hidden = net.hidden(x)
        for number in range(2):
            hidden = hidden + getattr(net, "block%d" % number)(hidden)
        return net.last(hidden) * net.scale

    return forward, sets("scale", 2.0)


@captured()
def module_of_a_dict_by_name(place, net):
    net.heads = nn.ModuleDict({"one": nn.Linear(4, 1), "two": nn.Linear(4, 1)})
    net.heads.to(place.device.torch_device)
    net.task = "one"
    return lambda net, x: net.heads[net.task](net.hidden(x)), sets("task", "two")


@captured()
def table_of_methods(place, net):
    class Losses:
        kind = "plain"

        def plain(self, out):
            return out

        def doubled(self, out):
            return out * 2.0

        def of(self, out):
            return {"plain": self.plain, "doubled": self.doubled}[self.kind](out)

    net.losses = Losses()
    return lambda net, x: net.losses.of(net.out(x)), lambda training, number: setattr(
        net.losses, "kind", "doubled"
    )


@captured()
def match_statement(place, net):
    net.kind = "plain"

    def forward(net, x):
        match net.kind:
            case "plain":
                return net.out(x)
            case "square" | "squared":
                return net.out(x).square()
            case other:
                raise ValueError(other)

    return forward, sets("kind", "square")


@captured()
def decorated_function(place, net):
    def doubling(function):
        @functools.wraps(function)
        def doubled(*args, **kwargs):
            return function(*args, **kwargs) * 2.0

        return doubled

    @doubling
    def scaled(out, net):
        return out * net.scale

    net.scale = 1.0
    return lambda net, x: scaled(net.out(x), net=net), sets("scale", 2.0)


@captured()
def try_and_except(place, net):
    net.config = {"scale": 1.0}

    def forward(net, x):
        try:
            weight = net.config["weight"]
        except KeyError:
            weight = 1.0
        return net.out(x) * weight

    return forward, lambda training, number: net.config.update(weight=2.0)
