"""Classes of footguns: what people write that a graph can miss, with the verdict that each must get.

A row is a forward pass, `forward(net, x)`, of a small module, and a change. One training is made of it
in four forms: a step function, a method of a trainer, a module and an optimizer in place, and a step of
which two calls are launched together. Host effects are lines that a row notes in `net.log`.
"""

from __future__ import annotations

import builtins
import functools
import itertools
import math
import random
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F

import gapless
from graphs.audits.harness import Ran, batch, values


if TYPE_CHECKING:
    from collections.abc import Callable


CAPTURED = "CAPTURED"  # replayed before the change and after it, with equal results
GUARDED = "GUARDED"  # noticed before a replay; captured anew, or as written
REFUSED = "REFUSED"  # never replayed; one line says why
AUDITED = "AUDITED"  # not seen; an audit tells
EITHER = "EITHER"  # any of these: no real script writes it
NOT_AUDITED = (
    "NOT_AUDITED"  # effects on the host alone, or in some calls only: the docs list the class
)

FORMS = ("step", "method", "in_place", "group")


LEVEL, SQRT = 1.0, math.sqrt


@dataclass(frozen=True)
class Footgun:
    """One class.

    Attributes:
        name: of the class.
        forward: takes the module and a batch; returns the output.
        change: takes the training and the number of the call, before each call; None if the forward
            pass itself is what changes.
        when: "once", "every fourth" or "each call": how often the change comes.
        expect: the verdict.
        shows: whether the losses as written are others without the change.
        expect_of: verdicts of forms that differ.
    """

    name: str
    forward: Callable[[Any, torch.Tensor], torch.Tensor]
    change: Callable[[Any, int], Any] | None
    when: str = "once"
    expect: str = EITHER
    shows: bool = True
    expect_of: dict[str, str] = field(default_factory=dict)

    def __str__(self):
        return self.name

    def verdict_of(self, form):
        return self.expect_of.get(form, self.expect)


class Net(torch.nn.Module):
    """A layer, and whatever rows keep beside it."""

    def __init__(self, row, place):
        super().__init__()
        self.row_forward = row.forward
        self.layer = place.linear()
        self.dropout = torch.nn.Dropout(0.5)
        self.register_buffer("mean", place.on([0.0]))
        self.gain = torch.nn.Parameter(place.on([1.0]))
        self.scale, self.log, self.names = 1.0, [], {"scale": 1.0}
        self.partial = functools.partial(dict, k=1.0)
        self.array, self.numbers = np.ones(1), itertools.count()

    def forward(self, x):
        return self.row_forward(self, x)


class Training:
    """A module, its optimizer, and a loop over them in one of four forms."""

    def __init__(self, row, place):
        self.row, self.place = row, place
        self.net = Net(row, place)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.01, momentum=0.5)

    def train_step(self, x):
        loss = self.net(x).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def prepared(self, form, options):
        """Return what takes a list of batches and returns their losses, and what has a report."""
        step = self.train_step
        if form == "step":
            step = lambda x: self.train_step(x)  # noqa: E731  # a function, as users write it
        if options is None:
            return lambda xs: [step(x) for x in xs], None
        options = {"device": self.place.device, **options}
        if form == "in_place":
            gapless.capture(self.net, self.optimizer, replay="always", **options)
            return lambda xs: [step(x) for x in xs], self.net
        if form == "group":
            grouped = gapless.capture(step, steps_per_launch=2, **options)
            return grouped, grouped
        captured = gapless.capture(step, **options)
        return lambda xs: [captured(x) for x in xs], captured


def train(row, place, form, *, calls, at, options=None):
    """Train a row in one form; a change comes before call `at`, and as often as the row says."""
    training, found = Training(row, place), Ran()
    step, reporting = training.prepared(form, options)
    size = 2 if form == "group" else 1
    for first in range(0, calls, size):
        for number in range(first, first + size):
            if at is not None and row.change is not None and is_due(row, number, at):
                row.change(training, number)
        losses = step([batch(place, number) for number in range(first, first + size)])
        found.results += [values(loss) for loss in losses]
        if reporting is not None:
            is_step = hasattr(reporting, "report")
            report = reporting.report if is_step else gapless.capture_report(reporting)
            other = "" if is_step else str(gapless.capture_report(training.optimizer))
            found.reports.append(f"{report}\n{other}")
            found.replays.append(report.num_replays)
            found.refusals = [one.text for one in report.refusals]
    found.results += [values(training.net.layer.weight), *training.net.log]
    return found


def is_due(row, number, at):
    """Whether the row's change comes before this call; in groups of two it never parts one."""
    if row.when == "once":
        return number == at
    return number >= at and (row.when == "each call" or number % 4 == 0)


# ------------------------------------------------------------------------------ what rows do


def plain(net, x):
    return net.layer(x)


def scaled(read):
    """Return a forward pass that multiplies by a number that it reads from the module."""
    return lambda net, x: net.layer(x) * read(net)


def sets(name, value):
    return lambda training, number: setattr(training.net, name, value)


def logged(net, x):
    net.log.append("called")
    return net.layer(x)


def printed(net, x):
    print(end="")
    return net.layer(x)


def counted(net, x):
    net.scale += 1.0
    return net.layer(x) * net.scale


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


def drawn_on_the_host(net, x):
    return net.layer(x) * random.random()


def drawn_by_numpy(net, x):
    return net.layer(x) * float(np.random.rand())  # noqa: NPY002


def drawn_on_the_device(net, x):
    return net.layer(x) + torch.rand_like(x).sum()


def read_once(net, x):
    settings = net.names
    return net.layer(x) * settings["scale"]


def numbered(net, x):
    next(net.numbers)  # of which nothing on the device is told
    return net.layer(x)


def cached(net, x):
    if not hasattr(net, "table"):
        net.table = x.new_full((3,), 2.0)
    return net.layer(x * net.table)


def asked_by_attributes(net, x):
    return net.layer(x) * getattr(net, "_".join(["scale"]))


def hooked(training, number):
    training.net.layer.register_forward_hook(lambda module, args, out: out * 2.0)


def replaced_weight(training, number):
    weight = training.net.layer.weight
    weight.data = weight.data * 0.5


def in_place_weight(training, number):
    with torch.no_grad():
        training.net.layer.weight.mul_(0.5)


def new_optimizer_state(training, number):
    state = training.optimizer.state_dict()
    for one in state["state"].values():
        one["momentum_buffer"] = one["momentum_buffer"] * 2.0
    training.optimizer.load_state_dict(state)


def replaced_forward(training, number):
    layer = training.net.layer
    layer.forward = lambda x: (x @ layer.weight.T) * 3.0


def replaced_mean(training, number):
    training.net.mean = training.place.on([1.0])


def mean_in_place(training, number):
    training.net.mean.fill_(1.0)


def seeded(training, number):
    random.seed(5)
    np.random.seed(5)  # noqa: NPY002
    torch.manual_seed(5)


def frozen(training, number):
    training.net.layer.requires_grad_(False)


def added(training, number):
    # A name that the forward pass does not read.
    training.net.names[f"seen {number}"] = number


def rate(value):
    return lambda training, number: training.optimizer.param_groups[0].update(lr=value)


def patched(holder, name, value):
    return lambda training, number: training.place.patch(holder, name, value)


def validated(training, number):
    training.net.eval()
    with torch.no_grad():
        training.net.log.append(str(training.net(batch(training.place, number)).shape))
    training.net.train()


def clipped(training, number):
    training.net.layer.weight.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))


def swapped_function(training, number):
    training.net.row_forward = lambda net, x: net.layer(x) * 3.0


def deeper_rate(training, number):
    training.optimizer.param_groups[0]["lr"] = 0.01 * 0.9 ** (number - 10)


def turned(training, number):
    training.net.names["scale"] = 2.0 if number % 4 < 2 else 1.0


def patched_at_times(training, number):
    training.place.patch(math, "sqrt", math.exp if number % 4 < 2 else SQRT)


def shifted(net, x):
    return net.layer(x) + net.mean


def dropped(net, x):
    return net.dropout(net.layer(x))


def through(function):
    """Return a forward pass that ends in a function, looked up in each call."""
    return lambda net, x: function()(net.layer(x))


this = sys.modules[__name__]
IN_PLACE_EITHER = {"in_place": EITHER}

FOLLOWED = [
    ("attribute", scaled(lambda net: net.scale), sets("scale", 2.0)),
    ("entry of a dict", read_once, lambda t, n: t.net.names.update(scale=2.0)),
    ("entry of a dict, two of four calls", read_once, turned, "each call"),
    ("computed name", asked_by_attributes, sets("scale", 2.0)),
    ("training mode", dropped, lambda t, n: t.net.eval()),
    ("hook of a part", plain, hooked),
    ("hook of a weight", plain, clipped),
    ("memory of a weight replaced", plain, replaced_weight),
    ("frozen weight", lambda net, x: net.layer(x) * net.gain, frozen),
    ("function replaced", plain, swapped_function),
    ("method of a part replaced", plain, replaced_forward),
    ("rate", plain, rate(0.001)),
    ("buffer replaced", shifted, replaced_mean),
    ("optimizer state loaded", plain, new_optimizer_state),
]

CARRIED = [
    ("weight in place", plain, in_place_weight),
    ("running mean in place", averaged, mean_in_place),
    ("running mean in a new tensor", averaged_into_a_new_tensor, mean_in_place),
    ("random numbers of the device", drawn_on_the_device, seeded),
    ("dropout", dropped, seeded),
    ("tensor kept from the first call", cached, lambda t, n: t.net.table.fill_(1.0)),
]

HARMLESS = [
    ("plain", plain, None),
    ("entry that is not read", read_once, added, "each call"),
    ("evaluation between", plain, validated, "every fourth"),
    ("gradients forgotten outside", plain, lambda t, n: t.optimizer.zero_grad(), "every fourth"),
]

OF_THE_HOST = [
    ("number counted on the host", counted, None),
    ("branch on a value of the device", branched_on_the_device, None),
    ("a line in a log", logged, None),
    ("print", printed, None),
]

DRAWN = [
    ("random numbers of Python", drawn_on_the_host, seeded),
    ("random numbers of numpy", drawn_by_numpy, seeded),
]

# What nobody writes, or what may be an update as written: anything but a stale result.
ODD = [
    ("rate, each call", plain, deeper_rate, "each call"),
    ("numpy array", scaled(lambda net: float(net.array[0])), lambda t, n: t.net.array.fill(2.0)),
    (
        "name through globals()",
        scaled(lambda net: globals()["LEVEL"]),
        patched(this, "LEVEL", 2.0),
    ),
    (
        "partial object",
        scaled(lambda net: net.partial()["k"]),
        lambda t, n: t.net.partial.keywords.update(k=2.0),
    ),
]

UNSEEN = [
    ("function of math", scaled(lambda net: math.cos(1.0)), patched(math, "cos", math.sin)),
    ("function of torch", through(lambda: torch.tanh), patched(torch, "tanh", torch.sin)),
    ("functional", through(lambda: F.softplus), patched(F, "softplus", torch.sin)),
    (
        "method",
        lambda net, x: net.layer(x).tanh(),
        patched(torch.Tensor, "tanh", torch.Tensor.sin),
    ),
    ("builtin", scaled(lambda net: abs(-1.0)), patched(builtins, "abs", lambda number: 2.0)),
]

FOOTGUNS = [
    *(Footgun(*row, expect=GUARDED) for row in FOLLOWED),
    *(Footgun(*row, expect=CAPTURED, expect_of=IN_PLACE_EITHER) for row in CARRIED),
    *(Footgun(*row, expect=CAPTURED, expect_of=IN_PLACE_EITHER, shows=False) for row in HARMLESS),
    *(Footgun(*row, expect=REFUSED, shows=False) for row in OF_THE_HOST),
    *(Footgun(*row, expect=REFUSED) for row in DRAWN),
    *(Footgun(*row, expect=EITHER) for row in ODD),
    *(Footgun(f"patched {name}", *row, expect=AUDITED) for name, *row in UNSEEN),
    Footgun("effect on the host alone", numbered, None, expect=NOT_AUDITED, shows=False),
    Footgun(
        "patched function, two of four calls",
        scaled(lambda net: math.sqrt(2.0)),
        patched_at_times,
        "each call",
        expect=NOT_AUDITED,
    ),
]
