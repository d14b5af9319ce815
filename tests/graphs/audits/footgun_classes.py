"""Classes of footguns, each with the verdict that it must get and one to three cases as rows.

The first row of a class is the plainest; the others are what real scripts write, or what once failed.
"""

from __future__ import annotations

import builtins
import functools
import itertools
import math
import os
import random
import sys
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch.nn.modules.module import register_module_forward_hook

from graphs.audits.footguns import (
    AUDITED,
    CAPTURED,
    EITHER,
    GUARDED,
    NOT_AUDITED,
    REFUSED,
    Footgun,
)
from graphs.audits.harness import batch, values


if TYPE_CHECKING:
    from collections.abc import Sequence


LEVEL, SQRT = 1.0, math.sqrt
COUNTS = {"calls": 0}

this = sys.modules[__name__]


# ----------------------------------------------------------------------- forward passes


def plain(net, x):
    return net.layer(x)


def scaled(read):
    """Return a forward pass that multiplies by a number that it reads from the module."""
    return lambda net, x: net.layer(x) * read(net)


def through(function):
    """Return a forward pass that ends in a function, looked up in each call."""
    return lambda net, x: function()(net.layer(x))


def noted(effect):
    """Return a forward pass with an effect on the host, of which it uses nothing."""

    def forward(net, x):
        effect(net, x)
        return net.layer(x)

    return forward


def shifted(net, x):
    return net.layer(x) + net.mean


def dropped(net, x):
    return net.dropout(net.layer(x))


def counted(net, x):
    net.scale += 1.0
    return net.layer(x) * net.scale


def counted_in_a_dict(net, x):
    net.names["scale"] = net.names["scale"] + 1.0
    return net.layer(x) * net.names["scale"]


class Bent(torch.autograd.Function):
    """The identity, whose backward pass scales by a function of a library."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * math.cos(1.0)


def carried_on(net, x):
    out = net.layer(x) + net.state.sum()
    net.state = net.state * 0.5 + out.detach()
    return out


def averaged(net, x):
    out = net.layer(x)
    with torch.no_grad():
        net.mean.mul_(0.9).add_(out.mean() * 0.1)
    return out - net.mean


def averaged_into_a_new_tensor(net, x):
    out = net.layer(x)
    net.mean = net.mean * 0.9 + out.detach().mean() * 0.1
    return out - net.mean


def branched_on_the_device(net, x):
    return net.layer(x) * (2.0 if x.sum() > 1.0 else 1.0)


def chosen_by_a_mask(net, x):
    return net.layer(x[x > 0.0].sum().reshape(1) * x)


def drawn_on_the_host(net, x):
    return net.layer(x) * random.random()


def drawn_by_numpy(net, x):
    return net.layer(x) * float(np.random.rand())  # noqa: NPY002


def drawn_by_torch_on_the_host(net, x):
    return net.layer(x) * float(torch.rand(()))


def drawn_on_the_device(net, x):
    return net.layer(x) + torch.rand_like(x).sum()


def read_once(net, x):
    settings = net.names
    return net.layer(x) * settings["scale"]


def asked_by_attributes(net, x):
    return net.layer(x) * getattr(net, "_".join(["scale"]))


def cached(net, x):
    if not hasattr(net, "table"):
        net.table = x.new_full((3,), 2.0)
    return net.layer(x * net.table)


def measured(net, x):
    began = time.perf_counter()
    out = net.layer(x)
    return out * (2.0 if time.perf_counter() < began else 1.0)


# ----------------------------------------------------------------------- set-ups


def with_a_variable(training):
    k = 1.0

    def forward(net, x):
        return net.layer(x) * k

    def loosen():
        nonlocal k
        k = 2.0

    training.net.row_forward, training.loosen = forward, loosen


def with_a_default(training):
    def forward(net, x, k=[1.0]):  # noqa: B006  # which the loop changes
        return net.layer(x) * k[0]

    training.net.row_forward = forward


class AttrDict(dict):
    """Settings as many projects write them."""

    __getattr__ = dict.__getitem__


def with_settings(training):
    training.net.settings = AttrDict(loss=AttrDict(weight=1.0))


class Halved:
    """An object with a property."""

    k = 2.0

    @property
    def half(self):
        return self.k / 2.0


class Doubled(Halved):
    """The same, and twice as much."""

    @property
    def half(self):
        return self.k


class ByName:
    """Gives an object for an item, or one after the other."""

    def __init__(self):
        self._known = {"first": Halved()}

    def __getitem__(self, name):
        return self._known[name]

    def every(self):
        yield from self._known.values()


def with_an_object(training):
    training.net.held = Halved()


def with_norm(training):
    training.net.norm = torch.nn.BatchNorm1d(3).to(training.place.device.torch_device)


def with_a_list_of_layers(training):
    place = training.place
    training.net.stack = torch.nn.Sequential(torch.nn.Identity(), place.linear())


def with_adam(training):
    training.optimizer = torch.optim.AdamW(training.net.parameters(), lr=0.01)


def beside(name, make):
    """Return a set-up that keeps something at the module."""
    return lambda training: setattr(training.net, name, make())


def with_an_iterator(training):
    training.net.numbers = itertools.cycle([1.0, 2.0, 3.0])


def with_a_hidden_state(training):
    training.net.state = training.place.on([[0.0]])


def with_a_set(training):
    training.net.kinds = {"bias"}


def with_a_long_list(training):
    training.net.steps = [float(number) for number in range(20)]


def with_a_list_of_tensors(training):
    training.net.tensors = [training.place.on([1.0])]


def with_an_array_of_objects(training):
    training.net.objects = np.array([1.0, "text"], dtype=object)


def with_a_cache(training):
    training.net.cached = functools.cache(lambda: training.net.scale)


def with_a_hook(training):
    training.hook = training.net.layer.register_forward_hook(lambda module, args, out: out * 2.0)


def that_adds_gradients_up(training):
    training.zeroes = False


def that_forgets_gradients_at_the_end(training):
    training.zeroes, training.forgets = False, True


class Averaging(torch.optim.Optimizer):
    """An optimizer of a project, whose state is a new tensor after each step."""

    def __init__(self, weights):
        super().__init__(weights, {})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    state = self.state[weight]
                    state["average"] = state.get("average", 0.0 * weight) * 0.5 + weight.grad
                    weight.sub_(state["average"] * 0.01)


def with_an_optimizer_of_the_project(training):
    training.optimizer = Averaging(training.net.parameters())


# ----------------------------------------------------------------------- changes


def sets(name, value):
    return lambda training, number: setattr(training.net, name, value)


def on_net(do):
    """Return a change that does something to the module."""
    return lambda training, number: do(training.net)


def hooked(training, number):
    training.net.layer.register_forward_hook(lambda module, args, out: out * 2.0)


def hooked_everywhere(training, number):
    # Of linear layers alone: one form calls more modules than another.
    handle = register_module_forward_hook(
        lambda module, args, out: out * 2.0 if isinstance(module, torch.nn.Linear) else None
    )
    training.place.at_end(handle.remove)


def clipped(training, number):
    training.net.layer.weight.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))


def hooked_anew(training, number):
    training.hook.remove()
    training.net.layer.register_forward_hook(lambda module, args, out: out * 3.0)


def hooked_at_the_optimizer(training, number):
    def halve(optimizer, args, kwargs):
        for weight in optimizer.param_groups[0]["params"]:
            if weight.grad is not None:
                weight.grad.mul_(0.5)

    training.optimizer.register_step_pre_hook(halve)


class Tripled(torch.nn.Linear):
    """A layer with a forward pass of its own."""

    def forward(self, x):
        return super().forward(x) * 3.0


def replaced_weight(training, number):
    weight = training.net.layer.weight
    weight.data = weight.data * 0.5


def assigned_weight(training, number):
    training.net.layer.weight = torch.nn.Parameter(training.place.on([[2.0, 2.0, 2.0]]))


def in_place_weight(training, number):
    with torch.no_grad():
        training.net.layer.weight.mul_(0.5)


def loaded_weights(training, number):
    state = training.net.state_dict()
    training.net.load_state_dict({name: part * 0.5 for name, part in state.items()})


def new_optimizer_state(training, number):
    state = training.optimizer.state_dict()
    for one in state["state"].values():
        one["momentum_buffer"] = one["momentum_buffer"] * 2.0
    training.optimizer.load_state_dict(state)


def moved_optimizer_state(training, number):
    for state in training.optimizer.state.values():
        state["momentum_buffer"].data = state["momentum_buffer"].data * 2.0


def looked_at_gradients(training, number):
    # Those of the last call, and those of the call before, which the loop has held.
    held = getattr(training, "held", None)
    weight = training.net.layer.weight
    training.net.log.append(values([one for one in (held, weight.grad) if one is not None]))
    training.held = weight.grad


def cleared_cache(training, number):
    training.net.scale = 2.0
    training.net.cached.cache_clear()


def replaced_forward(training, number):
    layer = training.net.layer
    layer.forward = lambda x: (x @ layer.weight.T) * 3.0


def replaced_layer(training, number):
    training.net.layer = training.place.linear()


def replaced_part(training, number):
    layer = training.place.linear()
    with torch.no_grad():
        layer.weight.fill_(2.0)
    training.net.stack[1] = layer


def replaced_gradient(training, number):
    weight = training.net.layer.weight
    weight.grad = weight.grad * 0.5


def given_gradient(training, number):
    training.net.layer.weight.grad = training.place.on([[1.0, 1.0, 1.0]])


def another_layer(training, number):
    training.net.stack.append(torch.nn.Tanh())


def replaced_mean(training, number):
    training.net.mean = training.place.on([1.0])


def moved_mean(training, number):
    training.net.mean.data = training.place.on([1.0])


def mean_in_place(training, number):
    training.net.mean.fill_(1.0)


def state_forgotten(training, number):
    training.net.state = training.place.on([[0.0]])


def seeded(training, number):
    random.seed(5)
    np.random.seed(5)  # noqa: NPY002
    torch.manual_seed(5)


def frozen(training, number):
    training.net.layer.requires_grad_(False)


def added(training, number):
    # A name that the forward pass does not read.
    training.net.names[f"seen {number}"] = number


def in_groups(**numbers):
    return lambda training, number: training.optimizer.param_groups[0].update(numbers)


def deeper_rate(training, number):
    training.optimizer.param_groups[0]["lr"] = 0.01 * 0.9 ** (number - 10)


def another_group(training, number):
    training.optimizer.param_groups[0]["params"].pop()


def patched(holder, name, value):
    return lambda training, number: training.place.patch(holder, name, value)


def patched_at_times(training, number):
    training.place.patch(math, "sqrt", math.exp if number % 4 < 2 else SQRT)


def validated(training, number):
    training.net.eval()
    with torch.no_grad():
        training.net.log.append(str(training.net(batch(training.place, number)).shape))
    training.net.train()


def swapped_function(training, number):
    training.net.row_forward = lambda net, x: net.layer(x) * 3.0


def wrapped_function(training, number):
    before = training.net.row_forward
    training.net.row_forward = lambda net, x: before(net, x) * 3.0


def turned(training, number):
    training.net.names["scale"] = 2.0 if number % 4 < 2 else 1.0


def wider(training, number):
    training.place.at_end(torch.set_default_dtype, torch.get_default_dtype())
    torch.set_default_dtype(torch.float64)


def deterministic(training, number):
    training.place.at_end(torch.use_deterministic_algorithms, mode=False)
    torch.use_deterministic_algorithms(mode=True)


def environment(training, number):
    training.place.environ("FOOTGUN_SCALE", "2.0")


# ----------------------------------------------------------------------- the classes


@dataclass(frozen=True)
class FootgunClass:
    """One row of the page of footguns.

    Attributes:
        name: of the class.
        expect: the verdict of its rows.
        rows: its cases.
        words: what to do instead, if anything is to be done.
    """

    name: str
    expect: str
    rows: Sequence[Footgun]
    words: str = ""

    @property
    def key(self):
        """The name as one word, with which tests of its rows begin."""
        return self.name.replace(",", "").replace(" ", "_")


IN_PLACE_EITHER = {"in_place": EITHER}


def carried(*rows, shows=True):
    """Return rows whose state stays on the device; in place they may be plain for a while."""
    return [Footgun(*row, shows=shows, expect_of=IN_PLACE_EITHER) for row in rows]


CLASSES = [
    FootgunClass(
        "variables",
        GUARDED,
        [
            Footgun("global", scaled(lambda net: LEVEL), patched(this, "LEVEL", 2.0)),
            Footgun(
                "variable of a closure",
                plain,
                lambda training, number: training.loosen(),
                set_up=with_a_variable,
            ),
        ],
    ),
    FootgunClass(
        "attributes",
        GUARDED,
        [
            Footgun("attribute", scaled(lambda net: net.scale), sets("scale", 2.0)),
            Footgun(
                "attribute of a class",
                scaled(lambda net: net.kind_scale),
                lambda t, n: t.place.patch(type(t.net), "kind_scale", 2.0),
            ),
            Footgun(
                "property",
                scaled(lambda net: net.held.half),
                on_net(lambda net: setattr(net.held, "k", 4.0)),
                set_up=with_an_object,
            ),
        ],
    ),
    FootgunClass(
        "entries of dictionaries and lists",
        GUARDED,
        [
            Footgun("entry of a dict", read_once, on_net(lambda net: net.names.update(scale=2.0))),
            Footgun("entry of a dict, two of four calls", read_once, turned, "each call"),
            Footgun(
                "item of a list",
                scaled(lambda net: sum(net.terms)),
                on_net(lambda net: net.terms.__setitem__(0, 3.0)),
            ),
        ],
    ),
    FootgunClass(
        "sets, and lists as a whole",
        GUARDED,
        [
            Footgun(
                "list that grows outside",
                scaled(lambda net: sum(net.terms)),
                on_net(lambda net: net.terms.append(3.0)),
            ),
            Footgun(
                "set of names",
                scaled(lambda net: 2.0 if "weight" in net.kinds else 1.0),
                on_net(lambda net: net.kinds.add("weight")),
                set_up=with_a_set,
            ),
            Footgun(
                "long list of numbers",
                scaled(lambda net: max(net.steps)),
                on_net(lambda net: net.steps.__setitem__(3, 40.0)),
                set_up=with_a_long_list,
            ),
            Footgun(
                "tensor in a list",
                lambda net, x: net.layer(x) * sum(net.tensors),
                lambda t, n: t.net.tensors.__setitem__(0, t.place.on([2.0])),
                set_up=with_a_list_of_tensors,
            ),
        ],
    ),
    FootgunClass(
        "names that are computed",
        GUARDED,
        [
            Footgun("computed name", asked_by_attributes, sets("scale", 2.0)),
            Footgun(
                "settings with attributes",
                scaled(lambda net: net.settings.loss.weight),
                on_net(lambda net: net.settings["loss"].update(weight=2.0)),
                set_up=with_settings,
            ),
        ],
    ),
    FootgunClass(
        "functions and methods",
        GUARDED,
        [
            Footgun("function replaced", plain, swapped_function),
            Footgun("function wrapped", plain, wrapped_function),
            Footgun("method of a part replaced", plain, replaced_forward),
            Footgun(
                "default argument",
                plain,
                on_net(lambda net: net.row_forward.__defaults__[0].__setitem__(0, 2.0)),
                set_up=with_a_default,
            ),
            Footgun(
                "default argument replaced",
                plain,
                on_net(lambda net: setattr(net.row_forward, "__defaults__", ([2.0],))),
                set_up=with_a_default,
            ),
        ],
    ),
    FootgunClass(
        "modes of modules",
        GUARDED,
        [
            Footgun("training mode", dropped, on_net(lambda net: net.eval())),
            Footgun(
                "one part in evaluation",
                lambda net, x: net.layer(net.norm(x.repeat(2, 1)).mean(0)),
                on_net(lambda net: net.norm.eval()),
                set_up=with_norm,
                expect_of=IN_PLACE_EITHER,
            ),
            Footgun(
                "rate of dropout", dropped, on_net(lambda net: setattr(net.dropout, "p", 0.1))
            ),
        ],
    ),
    FootgunClass(
        "hooks of modules",
        GUARDED,
        [
            Footgun("hook of a part", plain, hooked),
            Footgun(
                "hook replaced",
                plain,
                hooked_anew,
                set_up=with_a_hook,
                expect_of={"in_place": REFUSED},
            ),
            Footgun("hook of all modules", plain, hooked_everywhere),
        ],
    ),
    FootgunClass("hooks of weights", GUARDED, [Footgun("hook of a weight", plain, clipped)]),
    FootgunClass(
        "parts of modules",
        GUARDED,
        [
            Footgun("layer replaced", plain, replaced_layer),
            Footgun(
                "class of a part",
                plain,
                on_net(lambda net: setattr(net.layer, "__class__", Tripled)),
            ),
            Footgun(
                "layer appended",
                lambda net, x: net.stack(net.layer(x) * x),
                another_layer,
                set_up=with_a_list_of_layers,
            ),
            Footgun(
                "layer of a sequence replaced",
                lambda net, x: net.stack(net.layer(x) * x),
                replaced_part,
                set_up=with_a_list_of_layers,
            ),
        ],
    ),
    FootgunClass(
        "memory of weights",
        GUARDED,
        [
            Footgun("memory of a weight replaced", plain, replaced_weight),
            Footgun("weight replaced", plain, assigned_weight),
        ],
    ),
    FootgunClass(
        "frozen weights",
        GUARDED,
        [Footgun("frozen weight", lambda net, x: net.layer(x) * net.gain, frozen)],
    ),
    FootgunClass(
        "numbers of optimizers",
        GUARDED,
        [
            Footgun("rate", plain, in_groups(lr=0.001)),
            Footgun("momentum", plain, in_groups(momentum=0.9)),
            Footgun("rate of AdamW", plain, in_groups(lr=0.001), set_up=with_adam),
        ],
    ),
    FootgunClass(
        "weights of optimizers",
        GUARDED,
        [Footgun("weight taken out", lambda net, x: net.layer(x) * net.gain, another_group)],
    ),
    FootgunClass(
        "hooks of optimizers",
        GUARDED,
        [Footgun("hook of the optimizer", plain, hooked_at_the_optimizer)],
    ),
    FootgunClass(
        "state of optimizers",
        GUARDED,
        [
            Footgun("optimizer state loaded", plain, new_optimizer_state),
            Footgun("optimizer state cleared", plain, lambda t, n: t.optimizer.state.clear()),
            Footgun("memory of the state replaced", plain, moved_optimizer_state),
        ],
    ),
    FootgunClass(
        "buffers",
        GUARDED,
        [
            Footgun("buffer replaced", shifted, replaced_mean),
            Footgun("memory of a buffer replaced", shifted, moved_mean),
        ],
    ),
    FootgunClass(
        "settings of torch",
        GUARDED,
        [
            Footgun(
                "default dtype",
                lambda net, x: net.layer(x).to(torch.get_default_dtype()),
                wider,
            ),
            Footgun(
                "deterministic algorithms",
                scaled(lambda net: 1.0 + torch.are_deterministic_algorithms_enabled()),
                deterministic,
            ),
        ],
    ),
    FootgunClass(
        "variables of the environment",
        EITHER,
        [
            Footgun(
                "environment variable",
                scaled(lambda net: float(os.environ.get("FOOTGUN_SCALE", "1.0"))),
                environment,
            )
        ],
    ),
    FootgunClass(
        "tensors on the host",
        EITHER,
        [
            Footgun(
                "tensor on the host",
                scaled(lambda net: net.on_host),
                on_net(lambda net: net.on_host.fill_(2.0)),
                set_up=beside("on_host", lambda: torch.ones(())),
            ),
            Footgun(
                "numpy array",
                scaled(lambda net: float(net.array[0])),
                on_net(lambda net: net.array.fill(2.0)),
                set_up=beside("array", lambda: np.ones(1)),
            ),
            Footgun(
                "numpy array of objects",
                scaled(lambda net: net.objects[0]),
                on_net(lambda net: net.objects.__setitem__(0, 2.0)),
                set_up=with_an_array_of_objects,
                expect=REFUSED,
            ),
        ],
        "Keep them on the device.",
    ),
    FootgunClass(
        "caches",
        EITHER,
        [
            Footgun(
                "cache that is cleared",
                scaled(lambda net: net.cached()),
                cleared_cache,
                set_up=with_a_cache,
            )
        ],
    ),
    FootgunClass(
        "weights and buffers in place",
        CAPTURED,
        carried(
            ("weight in place", plain, in_place_weight),
            ("weights loaded", plain, loaded_weights),
            ("running mean in place", averaged, mean_in_place),
        ),
    ),
    FootgunClass(
        "tensors that a step keeps",
        CAPTURED,
        [
            *carried(
                ("running mean in a new tensor", averaged_into_a_new_tensor, mean_in_place),
                (
                    "tensor kept from the first call",
                    cached,
                    on_net(lambda net: net.table.fill_(1.0)),
                ),
            ),
            Footgun(
                "kept tensor of another shape",
                carried_on,
                lambda t, n: setattr(t.net, "state", t.place.on([[0.0], [1.0]])),
                set_up=with_a_hidden_state,
                expect=EITHER,
            ),
        ],
    ),
    FootgunClass(
        "random numbers of the device",
        CAPTURED,
        carried(
            ("random numbers of the device", drawn_on_the_device, seeded),
            ("dropout", dropped, seeded),
        ),
    ),
    FootgunClass(
        "nothing that is read",
        CAPTURED,
        carried(
            ("plain", plain, None),
            ("entry that is not read", read_once, added, "each call"),
            shows=False,
        ),
    ),
    FootgunClass(
        "evaluation between",
        CAPTURED,
        carried(("evaluation between", plain, validated, "every fourth"), shows=False),
    ),
    FootgunClass(
        "gradients between calls",
        CAPTURED,
        [
            *carried(
                (
                    "gradients forgotten outside",
                    plain,
                    lambda t, n: t.optimizer.zero_grad(),
                    "every fourth",
                ),
                (
                    "gradients zeroed outside",
                    plain,
                    lambda t, n: t.optimizer.zero_grad(set_to_none=False),
                    "every fourth",
                ),
                ("gradients looked at", plain, looked_at_gradients, "each call"),
                shows=False,
            ),
            Footgun(
                "gradients that add up, and are forgotten",
                plain,
                lambda t, n: t.optimizer.zero_grad(),
                "each call",
                set_up=that_adds_gradients_up,
                expect=EITHER,
            ),
            Footgun(
                "gradients that add up, and are zeroed",
                plain,
                lambda t, n: t.optimizer.zero_grad(set_to_none=False),
                "every fourth",
                set_up=that_adds_gradients_up,
                expect=EITHER,
            ),
            Footgun(
                "gradients that add up, and are replaced",
                plain,
                replaced_gradient,
                "every fourth",
                set_up=that_adds_gradients_up,
                expect=EITHER,
            ),
            Footgun(
                "gradient given by the loop",
                plain,
                given_gradient,
                set_up=that_forgets_gradients_at_the_end,
                expect=EITHER,
            ),
        ],
    ),
    FootgunClass(
        "counts on the host",
        REFUSED,
        [
            Footgun("number counted on the host", counted, None, shows=False),
            Footgun("entry counted on the host", counted_in_a_dict, None, shows=False),
            Footgun(
                "global counted on the host",
                noted(lambda net, x: COUNTS.update(calls=COUNTS["calls"] + 1)),
                None,
                shows=False,
            ),
        ],
        "Count outside the step, or in a tensor on the device.",
    ),
    FootgunClass(
        "lists that grow",
        REFUSED,
        [Footgun("a line in a log", noted(lambda net, x: net.log.append("x")), None, shows=False)],
        "Return the value and append it outside.",
    ),
    FootgunClass(
        "reads of the device",
        REFUSED,
        [
            Footgun("branch on a value of the device", branched_on_the_device, None, shows=False),
            Footgun("rows chosen by a mask", chosen_by_a_mask, None, shows=False),
            Footgun("item", scaled(lambda net: net.mean.item() + 1.0), None, shows=False),
        ],
        "`torch.where`, or read outside the step.",
    ),
    FootgunClass(
        "printing",
        REFUSED,
        [Footgun("print", noted(lambda net, x: print(end="")), None, shows=False)],
    ),
    FootgunClass("clocks", REFUSED, [Footgun("time of the step", measured, None, shows=False)]),
    FootgunClass(
        "random numbers of the host",
        REFUSED,
        [
            Footgun("random numbers of Python", drawn_on_the_host, seeded),
            Footgun("random numbers of numpy", drawn_by_numpy, seeded),
            Footgun("random numbers of torch on the host", drawn_by_torch_on_the_host, seeded),
        ],
        "Draw on the device, or outside and pass it.",
    ),
    FootgunClass(
        "iterators",
        REFUSED,
        [
            Footgun(
                "next number of an iterator",
                scaled(lambda net: next(net.numbers)),
                None,
                shows=False,
                set_up=with_an_iterator,
            )
        ],
        "Take it outside, and pass it.",
    ),
    FootgunClass(
        "optimizers of projects",
        EITHER,
        [
            Footgun(
                "state replaced in each update",
                plain,
                in_place_weight,
                set_up=with_an_optimizer_of_the_project,
            )
        ],
    ),
    FootgunClass(
        "rates in each call",
        EITHER,
        [Footgun("rate, each call", plain, deeper_rate, "each call")],
        "Nothing: the update is called eagerly.",
    ),
    FootgunClass(
        "odd ways to read",
        EITHER,
        [
            Footgun(
                "name through globals()",
                scaled(lambda net: globals()["LEVEL"]),
                patched(this, "LEVEL", 2.0),
            ),
            Footgun(
                "partial object",
                scaled(lambda net: net.partial()["k"]),
                on_net(lambda net: net.partial.keywords.update(k=2.0)),
                set_up=beside("partial", lambda: functools.partial(dict, k=1.0)),
            ),
        ],
    ),
    FootgunClass(
        "objects made over",
        AUDITED,
        [
            Footgun(
                "class of an object",
                scaled(lambda net: net.held.half),
                on_net(lambda net: setattr(net.held, "__class__", Doubled)),
                set_up=with_an_object,
            ),
            Footgun(
                "attributes of an object",
                scaled(lambda net: net.held.half),
                on_net(lambda net: setattr(net.held, "__dict__", {"k": 4.0})),
                set_up=with_an_object,
            ),
        ],
    ),
    FootgunClass(
        "objects that methods give",
        AUDITED,
        [
            Footgun(
                "object given for an item",
                scaled(lambda net: net.held_by_name["first"].k),
                on_net(lambda net: setattr(net.held_by_name["first"], "k", 4.0)),
                set_up=beside("held_by_name", lambda: ByName()),
            ),
            Footgun(
                "object given by a generator",
                scaled(lambda net: sum(one.k for one in net.held_by_name.every())),
                on_net(lambda net: setattr(net.held_by_name["first"], "k", 4.0)),
                set_up=beside("held_by_name", lambda: ByName()),
            ),
        ],
    ),
    FootgunClass(
        "writes past the version of a tensor",
        AUDITED,
        [
            Footgun(
                "tensor on the host, past its version",
                scaled(lambda net: net.on_host),
                on_net(lambda net: net.on_host.data.fill_(2.0)),
                set_up=beside("on_host", lambda: torch.ones(())),
            )
        ],
    ),
    FootgunClass(
        "patched libraries",
        AUDITED,
        [
            Footgun(f"patched {name}", forward, change)
            for name, forward, change in [
                (
                    "function of math",
                    scaled(lambda net: math.cos(1.0)),
                    patched(math, "cos", math.sin),
                ),
                (
                    "function of torch",
                    through(lambda: torch.tanh),
                    patched(torch, "tanh", torch.sin),
                ),
                ("functional", through(lambda: F.softplus), patched(F, "softplus", torch.sin)),
                (
                    "method",
                    lambda net, x: net.layer(x).tanh(),
                    patched(torch.Tensor, "tanh", torch.Tensor.sin),
                ),
                (
                    "builtin",
                    scaled(lambda net: abs(-1.0)),
                    patched(builtins, "abs", lambda number: 2.0),
                ),
                (
                    "function in a backward pass",
                    lambda net, x: Bent.apply(net.layer(x)),
                    patched(math, "cos", math.sin),
                ),
            ]
        ],
    ),
    FootgunClass(
        "effects on the host alone",
        NOT_AUDITED,
        # Of which nothing on the device is told.
        [
            Footgun(
                "effect on the host alone",
                noted(lambda net, x: next(net.numbers)),
                None,
                shows=False,
                set_up=beside("numbers", itertools.count),
            )
        ],
    ),
    FootgunClass(
        "differences in some calls only",
        NOT_AUDITED,
        [
            Footgun(
                "patched function, two of four calls",
                scaled(lambda net: math.sqrt(2.0)),
                patched_at_times,
                "each call",
            )
        ],
    ),
]

FOOTGUNS = [
    replace(row, expect=row.expect or of_class.expect, of=of_class.key)
    for of_class in CLASSES
    for row in of_class.rows
]
