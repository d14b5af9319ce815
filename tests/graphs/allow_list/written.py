"""What people write in training steps: it is read through and compared, or refused for what it does."""

# The cases are ways to write things, some of them old ones.
# ruff: noqa: UP031

from __future__ import annotations

import argparse
import collections
import contextlib
import copy
import dataclasses
import enum
import functools
import itertools
import logging
import math
import operator
import sys
import types
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from graphs.allow_list.harness import EITHER, Case, register


WRITTEN: list[Case] = []

captured, refused, either = register(WRITTEN, "written")

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


# ------------------------------------------------------------------------ torch's own state


@captured()
def training_mode(place, net):
    def forward(net, x):
        out = net.out(x)
        return out * 2.0 if net.training else out

    return forward, lambda training, number: training.net.eval()


@captured()
def probability_of_dropout(place, net):
    net.dropout = nn.Dropout(0.5)
    return lambda net, x: net.last(net.dropout(net.hidden(x))), lambda training, number: setattr(
        net.dropout, "p", 0.0
    )


@captured(expect_of={"in_place": EITHER})
def hook_that_reads(place, net):
    net.scale = 1.0
    net.first.register_forward_hook(lambda module, args, out: out * net.scale)
    return lambda net, x: net.out(x), sets("scale", 2.0)


@captured(expect_of={"in_place": EITHER})
def hook_that_comes_later(place, net):
    return lambda net, x: net.out(x), lambda training, number: net.first.register_forward_hook(
        lambda module, args, out: out * 2.0
    )


@captured(own_step=True)
def grad_mode_and_no_grad(place, net):
    net.scale = 1.0

    def step(training, x):
        out = training.net.out(x)
        with torch.no_grad():
            target = training.net.out(x) * (3.0 if torch.is_grad_enabled() else net.scale)
        loss = (out - target - 1.0).square().mean()
        training.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        training.optimizer.step()
        return loss.detach()

    return step, sets("scale", 2.0)


@captured()
def autocast_by_a_flag(place, net):
    net.amp = False

    def forward(net, x):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=net.amp):
            out = net.out(x) * (2.0 if torch.is_autocast_enabled("cpu") else 1.0)
        return out.float()

    return forward, sets("amp", True)


@captured()
def context_by_a_flag(place, net):
    net.frozen = False

    def forward(net, x):
        with torch.no_grad() if net.frozen else contextlib.nullcontext():
            hidden = net.hidden(x)
        return net.last(hidden)

    return forward, sets("frozen", True)


@captured()
def dtype_of_an_attribute(place, net):
    net.dtype = torch.float32
    return lambda net, x: net.out(x).to(net.dtype).float(), sets("dtype", torch.bfloat16)


@captured()
def rate_of_a_scheduler(place, net):
    held = []

    def change(training, number):
        # The loop steps it at the end of an epoch.
        if not held:
            held.append(torch.optim.lr_scheduler.StepLR(training.optimizer, 1, 0.5))
        training.optimizer.step()
        held[0].step()

    return lambda net, x: net.out(x), change


@captured(own_step=True)
def number_of_a_parameter_group(place, net):
    def step(training, x):
        loss = training.net.out(x).square().mean()
        loss = loss * training.optimizer.param_groups[0]["lr"]
        training.optimizer.zero_grad()
        loss.backward()
        for group in training.optimizer.param_groups:
            for weight in group["params"]:
                weight.grad.mul_(1.0 + group["weight_decay"])
        training.optimizer.step()
        return loss.detach()

    return step, lambda training, number: training.optimizer.param_groups[0].update(
        weight_decay=0.5
    )


@captured(own_step=True)
def gradients_clipped_to_an_attribute(place, net):
    net.max_norm = 1.0

    def step(training, x):
        loss = training.net.out(x).square().mean() * 9.0
        training.optimizer.zero_grad()
        loss.backward()
        if training.net.max_norm > 0:
            nn.utils.clip_grad_norm_(training.net.parameters(), training.net.max_norm)
        training.optimizer.step()
        return loss.detach()

    return step, sets("max_norm", 0.01)


@captured(own_step=True)
def moving_average_of_weights(place, net):
    average, decay = copy.deepcopy(net), {"now": 0.9}

    def step(training, x):
        out = training.net.out(x)
        with torch.no_grad():
            target = average.out(x)
        loss = (out - target - 1.0).square().mean()
        training.optimizer.zero_grad()
        loss.backward()
        training.optimizer.step()
        with torch.no_grad():
            ours, theirs = list(average.parameters()), list(training.net.parameters())
            torch._foreach_lerp_(ours, theirs, 1.0 - decay["now"])
        return loss.detach()

    return step, lambda training, number: decay.update(now=0.5)


@either(own_step=True, shows=False)
def gradients_scaled_by_a_scaler(place, net):
    # On the CPU it reads a value of the device; on a GPU it is captured.
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)

    def step(training, x):
        loss = training.net.out(x).square().mean()
        training.optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(training.optimizer)
        scaler.update()
        return loss.detach()

    return step, None


# ------------------------------------------------------------------------ counts and metrics


@either(each_call=True)
def warm_up_count_of_the_loop(place, net):
    net.step_number, net.warm_up_steps = 0, 4

    def change(training, number):
        training.net.step_number = number // 2  # two calls may be launched together

    return lambda net, x: net.out(x) * min(1.0, (net.step_number + 1) / net.warm_up_steps), change


@refused("num_calls", "count")
def warm_up_count_of_the_step(place, net):
    net.num_calls = 0

    def forward(net, x):
        net.num_calls += 1
        return net.out(x) * min(1.0, net.num_calls / 100)

    return forward, None


@refused("metrics", "append")
def losses_kept_in_a_default_dict(place, net):
    net.metrics = collections.defaultdict(list)

    def forward(net, x):
        out = net.out(x)
        net.metrics["out"].append(len(x))
        return out

    return forward, None


@refused("counts")
def calls_counted_by_a_counter(place, net):
    net.counts = collections.Counter()

    def forward(net, x):
        net.counts["calls"] += 1
        return net.out(x)

    return forward, None


@refused("recent", "append")
def lengths_kept_in_a_deque(place, net):
    net.recent = collections.deque(maxlen=100)

    def forward(net, x):
        net.recent.append(len(x))
        return net.out(x)

    return forward, None


@either()
def mean_of_a_deque(place, net):
    net.recent = collections.deque([1.0, 0.5], maxlen=3)
    return lambda net, x: net.out(x) * (sum(net.recent) / len(net.recent)), (
        lambda training, number: net.recent.append(2.0)
    )


@either()
def item_of_a_default_dict(place, net):
    net.weights = collections.defaultdict(lambda: 1.0, main=0.5)
    return lambda net, x: net.out(x) * net.weights["main"], (
        lambda training, number: net.weights.update(main=2.0)
    )


@either()
def number_of_numpy(place, net):
    net.scale = np.float64(1.0)
    return lambda net, x: net.out(x) * float(net.scale), sets("scale", np.float64(2.0))


@either(shows=False)
def log_below_its_level(place, net):
    log = logging.getLogger("allow_list")

    def forward(net, x):
        out = net.out(x)
        log.debug("shape %s", out.shape)
        return out

    return forward, None
