"""What changes beside what a step reads: it is not guarded, and the same graph goes on replaying."""

from __future__ import annotations

import argparse
import collections
import dataclasses
import functools
import os
import sys
import types

import torch
from torch import nn

from graphs.allow_list.harness import EITHER, Case, register


UNREAD: list[Case] = []

_captured, _, _either, _ = register(UNREAD, "unread")
captured = functools.partial(_captured, each_call=True, shows=False)
either = functools.partial(_either, each_call=True, shows=False)

SCALE, NUM_CALLS = 1.0, 0

this = sys.modules[__name__]


@captured()
def neighbours_of_an_item(place, net):
    state = {"weights": 1.0}
    return lambda net, x: net.out(x) * state["weights"], lambda training, number: state.update(
        {f"seen {number}": number}
    )


@captured()
def neighbours_of_an_item_read_into_a_name(place, net):
    state = {"weights": 1.0}

    def forward(net, x):
        k = state["weights"]
        return net.out(x) * k

    return forward, lambda training, number: state.update({f"seen {number}": number})


@captured()
def neighbours_of_an_item_of_a_dict_in_a_name(place, net):
    net.state = {"weights": 1.0}

    def forward(net, x):
        state = net.state
        scale = state["weights"]
        return net.out(x) * scale

    return forward, lambda training, number: net.state.update(num_steps=number)


@captured()
def list_that_grows_in_a_dict(place, net):
    state = {"weights": 1.0, "losses": []}

    def forward(net, x):
        k = state["weights"]
        return net.out(x) * k

    return forward, lambda training, number: state["losses"].append(number)


@captured()
def other_attributes_of_the_network(place, net):
    net.scale, net.num_batches = 1.0, 0
    return lambda net, x: net.out(x) * net.scale, lambda training, number: setattr(
        net, "num_batches", number
    )


@captured()
def other_attributes_of_the_trainer(place, net):
    net.scale = 1.0

    def change(training, number):
        training.num_steps = number
        training.seen = [*getattr(training, "seen", []), number]

    return lambda net, x: net.out(x) * net.scale, change


@captured()
def other_attributes_beside_a_constant_getattr(place, net):
    net.config = types.SimpleNamespace(weight=1.0, step=0)
    return lambda net, x: net.out(x) * getattr(net.config, "weight", 0.5), (
        lambda training, number: setattr(net.config, "step", number)
    )


@captured()
def values_of_others_beside_a_computed_name(place, net):
    # The keys of the object are guarded, not what other keys hold.
    net.config = types.SimpleNamespace(kind="main", weight_of_main=1.0, step=0)

    def forward(net, x):
        return net.out(x) * getattr(net.config, f"weight_of_{net.config.kind}")

    return forward, lambda training, number: setattr(net.config, "step", number)


@captured()
def other_entries_of_parsed_arguments(place, net):
    args = argparse.Namespace(weight=1.0, step=0, out="runs/0")

    def change(training, number):
        args.step, args.out = number, f"runs/{number}"

    return lambda net, x: net.out(x) * args.weight, change


@captured()
def other_fields_of_a_dataclass(place, net):
    @dataclasses.dataclass
    class State:
        weight: float = 1.0
        step: int = 0
        losses: list[int] = dataclasses.field(default_factory=list)

    state = State()

    def change(training, number):
        state.step = number
        state.losses.append(number)

    return lambda net, x: net.out(x) * state.weight, change


@captured()
def other_keys_of_a_config_in_a_config(place, net):
    config = {"loss": {"weight": 1.0}, "run": {"step": 0}}
    return lambda net, x: net.out(x) * config["loss"]["weight"], (
        lambda training, number: config["run"].update(step=number)
    )


@captured(expect_of={"in_place": EITHER})
def other_modules_of_a_module_dict(place, net):
    net.heads = nn.ModuleDict({"one": nn.Linear(4, 1), "two": nn.Linear(4, 1)})
    net.heads.to(place.device.torch_device)

    def change(training, number):
        net.heads["two"] = nn.Linear(4, number + 1).to(place.device.torch_device)

    return lambda net, x: net.heads["one"](net.hidden(x)), change


@captured(expect_of={"in_place": EITHER})
def state_of_other_modules_of_a_module_dict(place, net):
    net.heads = nn.ModuleDict({"one": nn.Linear(4, 1), "two": nn.Linear(4, 1)})
    net.heads.to(place.device.torch_device)

    def change(training, number):
        net.heads["two"].train(number % 2 == 0).weight.detach().fill_(0.5)
        net.heads["two"].num_seen = number

    return lambda net, x: net.heads["one"](net.hidden(x)), change


@captured()
def end_of_a_list(place, net):
    scales = [1.0]
    return lambda net, x: net.out(x) * scales[0], lambda training, number: scales.append(number)


@captured()
def metrics_of_the_trainer(place, net):
    metrics, recent = collections.defaultdict(list), collections.deque(maxlen=3)
    net.metrics, net.recent, net.scale = metrics, recent, 1.0

    def change(training, number):
        metrics["step"].append(number)
        recent.append(number)

    return lambda net, x: net.out(x) * net.scale, change


@captured()
def other_attributes_of_a_class(place, net):
    class Counted:
        scale, num_calls = 1.0, 0

    return lambda net, x: net.out(x) * Counted.scale, lambda training, number: setattr(
        Counted, "num_calls", number
    )


@captured()
def other_globals(place, net):
    return lambda net, x: net.out(x) * SCALE, lambda training, number: place.patch(
        this, "NUM_CALLS", number
    )


@captured()
def other_names_of_a_closure(place, net):
    scale, num_calls = 1.0, 0

    def change(training, number):
        nonlocal num_calls
        num_calls += 1
        assert scale == 1.0

    return lambda net, x: net.out(x) * scale, change


@captured()
def count_of_a_scheduler(place, net):
    held = []

    def change(training, number):
        if not held:
            optimizer = training.optimizer
            held.append(torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1.0))
        elif number > 0:
            held[0].step()

    return lambda net, x: net.out(x), change


@captured()
def other_environment_variables(place, net):
    net.scale = 1.0
    return (
        lambda net, x: net.out(x) * net.scale,
        lambda training, number: (
            os.environ.update(OF_THIS_TEST=str(number))
            or place.at_end(os.environ.pop, "OF_THIS_TEST", None)
        ),
    )


@either()
def neighbours_of_an_item_with_a_default(place, net):
    state = {"weights": 1.0}
    return lambda net, x: net.out(x) * state.get("weights", 0.5), (
        lambda training, number: state.update({f"seen {number}": number})
    )


@either()
def neighbours_of_items_of_a_loop(place, net):
    state = {"one": 1.0, "two": 0.5}

    def forward(net, x):
        out = net.out(x)
        for name in ("one", "two"):
            out = out * state[name]
        return out

    return forward, lambda training, number: state.update({f"seen {number}": number})
