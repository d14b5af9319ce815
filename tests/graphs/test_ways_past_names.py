"""A loop edits what a step comes to by methods that Python calls for it, or by names made at run time."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import unittest.mock
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

import gapless
from edited_parts import Part, total
from gapless.testing import SimulatedDevice
from graphs.audits.harness import lines_of_audits


class Settings(NamedTuple):
    table: dict[str, Any]
    weights: list[Any]


class Registry:
    """Gives its parts when it is asked for an item, an attribute or the result of an operator."""

    def __init__(self, **parts):
        self._parts = parts

    def __getitem__(self, name):
        return self._parts[name]

    def __truediv__(self, name):
        return self._parts[name]

    def __matmul__(self, name):
        return self._parts[name]


class ByAttribute(Registry):
    def __getattr__(self, name):
        return self._parts[name]


class Numbered(Sequence):
    def __init__(self, parts):
        self._parts = parts

    def __len__(self):
        return len(self._parts)

    def __getitem__(self, at):
        return self._parts[at]


class Given:
    """A field that another attribute stands behind."""

    def __get__(self, owner, kind=None):
        return self if owner is None else owner._part


class HasField:
    part = Given()


class Slotted:
    __slots__ = ("a", "b")


class Scope:
    def __init__(self, weights):
        self.weights = weights

    @contextlib.contextmanager
    def active(self):
        yield self.weights


def itself(part):
    return part


class Owner:
    """Has attributes, and a name that is made up at run time."""

    def __init__(self, **attributes):
        vars(self).update(attributes)


OF_THE_MODULE_a = Part()
NAME = Owner(name="a")


def adds(part, weight=2.0):
    return lambda: setattr(part, "weight", part.weight + weight)


def case(make):
    CASES[make.__name__] = make
    return make


CASES: dict[str, Any] = {}


@case
def dict_of_a_named_tuple():
    settings = Settings({"w": 1.0}, [])
    return lambda: settings.table["w"], lambda: settings.table.update(w=3.0)


@case
def item_of_a_registry():
    registry, part = Registry(loss=Part()), None
    part = registry["loss"]
    return lambda: registry["loss"].weight, adds(part)


@case
def attribute_of_a_registry():
    registry = ByAttribute(loss=Part())
    return lambda: registry.loss.weight, adds(registry.loss)


@case
def field_of_a_class():
    owner = HasField()
    owner._part = Part()
    return lambda: owner.part.weight, adds(owner._part)


@case
def loop_over_a_sequence():
    parts = [Part(), Part()]
    sequence = Numbered(parts)
    return lambda: sum(part.weight for part in sequence), adds(parts[1])


@case
def object_of_a_context_variable():
    variable = contextvars.ContextVar("part")
    variable.set(Part())
    return lambda: variable.get().weight, adds(variable.get())


@case
def default_of_getattr():
    owner, part = Owner(), Part()
    return lambda: getattr(owner, "part", part).weight, adds(part)


@case
def list_of_a_context():
    scope = Scope([1.0])

    def weight():
        with scope.active() as weights:
            return sum(weights)

    return weight, lambda: scope.weights.append(3.0)


@case
def module_by_a_name_made_at_run_time():
    model = nn.Module()
    model.a = nn.Identity()
    model.a.scale = 1.0
    return lambda: getattr(model, NAME.name).scale, lambda: setattr(model.a, "scale", 3.0)


@case
def global_by_a_name_made_at_run_time():
    return lambda: globals()[f"OF_THE_MODULE_{NAME.name}"].weight, adds(OF_THE_MODULE_a)


@case
def attribute_that_comes_later():
    owner = Owner()

    def weight():
        return 3.0 if hasattr(owner, f"hook_{NAME.name}") else 1.0

    return weight, lambda: setattr(owner, "hook_a", True)


@case
def array_of_objects():
    parts = np.array([Part(), Part()], dtype=object)
    return lambda: sum(part.weight for part in parts), adds(parts[1])


def of_local_class(method):
    """Return an object of a class whose method reads a variable of an enclosing function, and an edit."""
    weight = 1.0

    def read(*_):
        nonlocal weight
        return weight

    def edit():
        nonlocal weight
        weight = 3.0

    return type("Local", (), {method: read})(), edit


@case
def variable_that_a_call_reads():
    local, edit = of_local_class("__call__")
    return lambda: local(), edit


@case
def item_that_is_not_there_yet():
    history = []

    def weight():
        try:
            return history[-1]
        except IndexError:
            return 1.0

    return weight, lambda: history.append(3.0)


@case
def number_in_a_dictionary_of_parameters():
    numbers = nn.ParameterDict({"weight": nn.Parameter(torch.ones(1))})
    numbers["scale"] = 1.0
    return lambda: numbers["scale"], lambda: numbers.update({"scale": 3.0})


@case
def key_that_comes_into_a_dictionary_of_parameters():
    numbers = nn.ParameterDict()
    weight = lambda: 3.0 if "scale" in numbers else 1.0  # noqa: E731
    return weight, lambda: numbers.update({"scale": 3.0})


def of_another_class(kind):
    """Return an object that says it is of a class, as proxies do, and an edit of it."""

    class Proxy(Part):
        @property
        def __class__(self):
            return kind

    proxy = Proxy()
    held = {"proxy": proxy}
    return lambda: held["proxy"].weight * proxy.weight, adds(proxy)


for kind in (dict, list, nn.Module, torch.optim.Optimizer):
    CASES[f"proxy_of_{kind.__name__}"] = functools.partial(of_another_class, kind)


@case
def slot_by_a_name_made_at_run_time():
    owner = Slotted()
    owner.a = Part()
    return lambda: getattr(owner, NAME.name).weight, adds(owner.a)


@case
def lists_of_the_same_ends_and_length():
    ends, first, second = (Part(), Part()), [Part() for _ in range(150)], []
    second += [Part() for _ in range(150)]
    one, other = ends
    return (
        lambda: total([one, *first, other]) + 2 * total([one, *second, other]),
        adds(second[70]),
    )


@case
def attribute_of_a_number():
    class Rate(float):
        scale = 1.0

    owner, other = Owner(rate=Rate(0.5)), Rate(0.5)
    other.scale = 3.0
    return lambda: owner.rate.scale, lambda: setattr(owner, "rate", other)


@case
def mock_of_a_module():
    mock = unittest.mock.Mock(spec=nn.Module, weight=1.0)
    return lambda: mock.weight, adds(mock)


@case
def dictionary_that_counts_its_reads():
    class Sorted(dict):
        reads = 0

        def __iter__(self):
            return iter(sorted(dict.keys(self)))

        def __getitem__(self, key):
            raise AssertionError("gapless has read an item")

    table = Sorted(b=2.0, a=1.0)
    return lambda: table.get("a"), lambda: table.update(a=3.0)


# What methods of the user's give, by no name: audits tell.
AUDITED = {
    "attribute_of_a_registry",
    "field_of_a_class",
    "item_of_a_registry",
    "loop_over_a_sequence",
    "number_in_a_dictionary_of_parameters",
}


@pytest.mark.quick_cases(6)
@pytest.mark.parametrize("name", CASES)
def test_an_edit_counts(name):
    """By another graph, or as written."""
    weight, edit = CASES[name]()
    options = {"audit_every": 1} if name in AUDITED else {}
    with SimulatedDevice(scheduler="asap") as device, device.allow_waits():
        step = gapless.capture(lambda x: x.sum() * weight(), device=device, **options)
        for number in range(16):
            x = torch.full((2,), number + 1.0).to(device.torch_device)
            if number == 8:
                edit()

            assert step(x).item() == (x.sum() * weight()).item()
        report = step.report
        assert report.num_replays or report.refusals or lines_of_audits(str(report))


class Trainer:
    """Names what it calls, and counts in itself."""

    def __init__(self):
        self.kind, self.seen = "squares", 0

    def loss_squares(self, x):
        return x.square().sum()


class TestWhatTheLoopCountsBesideANameMadeAtRunTime:
    """Names that do not begin so are not read."""

    def test_in_the_object(self):
        trainer = Trainer()
        with SimulatedDevice(scheduler="asap") as device, device.allow_waits():
            step = gapless.capture(
                lambda x: getattr(trainer, f"loss_{trainer.kind}")(x), device=device
            )
            for number in range(12):
                x = torch.full((2,), number + 1.0).to(device.torch_device)

                assert step(x).item() == 2 * (number + 1.0) ** 2
                trainer.seen += 1
            assert step.report.num_replays


class TestAttributesOfACapturedFunction:
    """There is one value, whether it is read and written by the function or by what is captured."""

    def test_what_the_step_counts(self):
        def step(x):
            step.calls += 1
            return x.sum()

        step.calls = 0
        with SimulatedDevice() as device, device.allow_waits():
            captured = gapless.capture(step, device=device)
            for number in range(6):
                captured(torch.ones(2).to(device.torch_device))

                assert captured.calls == step.calls == number + 1

    @pytest.mark.parametrize("by", ["function", "captured"])
    def test_an_edit(self, by):
        def step(x):
            return x.sum() * step.weight

        step.weight = 1.0
        with SimulatedDevice() as device, device.allow_waits():
            captured = gapless.capture(step, device=device)
            x = torch.ones(2).to(device.torch_device)
            before = [captured(x).item() for _ in range(6)]
            edited = {"function": step, "captured": captured}[by]
            edited.weight = 3.0
            after = [captured(x).item() for _ in range(6)]

            assert (before, after) == ([2.0] * 6, [6.0] * 6)
            assert captured.weight == step.weight == 3.0
            assert captured.report.num_replays

    def test_an_edit_where_it_has_the_name_of_the_function(self):
        with SimulatedDevice() as device, device.allow_waits():

            @gapless.capture(device=device)
            def step(x):
                return x.sum() * step.weight

            step.weight = 1.0
            x = torch.ones(2).to(device.torch_device)
            before = [step(x).item() for _ in range(6)]
            step.weight = 3.0
            after = [step(x).item() for _ in range(6)]

            assert (before, after) == ([2.0] * 6, [6.0] * 6)
            assert step.report.num_replays
            del step.weight
            with pytest.raises(AttributeError, match="weight"):
                step(x)

    def test_those_of_an_object_that_is_called(self):
        class Step:
            weight = 1.0

            def __call__(self, x):
                return x.sum() * self.weight

        with SimulatedDevice() as device, device.allow_waits():
            captured = gapless.capture(Step(), device=device)
            x = torch.ones(2).to(device.torch_device)
            before = [captured(x).item() for _ in range(6)]
            captured.weight = 3.0

            assert before == [2.0] * 6
            assert [captured(x).item() for _ in range(6)] == [6.0] * 6
            assert captured.weight == 3.0
            assert "weight" in dir(captured)

    def test_its_own_stay_its_own(self):
        def step(x):
            return x.sum()

        step.report = "mine"
        with SimulatedDevice() as device:
            captured = gapless.capture(step, device=device)

            assert captured.report is not step.report
            assert not hasattr(captured, "another")
            assert "_captured" not in vars(step)
