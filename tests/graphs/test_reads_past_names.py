"""What a step reads in ways that its names alone do not show is guarded."""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
import random
import sys
import types
import weakref
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from hazards import captured_elsewhere
from watched_steps import change, names, watched


@pytest.fixture(autouse=True)
def _elsewhere():
    yield
    captured_elsewhere.restore()


def _set_scale():
    captured_elsewhere.SCALE = 0.2


# --- modules ---


def _import_of_a_name(batch):
    from hazards.captured_elsewhere import SCALE

    return batch * SCALE


def _import_of_a_module(batch):
    import hazards.captured_elsewhere

    return batch * hazards.captured_elsewhere.SCALE


def _table_of_modules(batch):
    return batch * sys.modules["hazards.captured_elsewhere"].SCALE


@pytest.mark.parametrize(
    "step",
    [
        _import_of_a_name,
        _import_of_a_module,
        _table_of_modules,
    ],
)
def test_a_value_of_a_module_that_is_looked_up(step):
    first = change(step, _set_scale)
    assert (first.name.rpartition(".")[2], first.before, first.after) == ("SCALE", "1.0", "0.2")


def test_a_module_that_is_replaced_in_the_table(monkeypatch):
    other = types.ModuleType("other")
    other.SCALE = 1.0
    first = change(
        _table_of_modules,
        lambda: monkeypatch.setitem(sys.modules, "hazards.captured_elsewhere", other),
    )
    assert first.name == "hazards.captured_elsewhere"


def test_a_value_of_a_module_that_is_made_at_run_time(monkeypatch):
    other = types.ModuleType("made_at_run_time")
    other.SCALE = 1.0
    monkeypatch.setitem(sys.modules, "made_at_run_time", other)

    def step(batch):
        from made_at_run_time import SCALE

        return batch * SCALE

    assert change(step, lambda: setattr(other, "SCALE", 2.0)).name == "made_at_run_time.SCALE"


def test_a_first_import_is_no_write():
    def step(batch):
        import colorsys

        return batch * len(sys.modules["colorsys"].__name__) * hasattr(colorsys, "rgb_to_hls")

    def batch():
        sys.modules.pop("colorsys", None)
        return (torch.ones(3),)

    _, run = watched(step, num_runs=3, batch=batch)
    assert names(run) == []


def test_a_write_to_a_module_that_is_looked_up():
    def step(batch):
        sys.modules["hazards.captured_elsewhere"].NUM_SEEN += 1
        return batch

    _, run = watched(step)
    assert [name.rpartition(".")[2] for name in names(run)] == ["NUM_SEEN"]


# --- attributes that are not there yet, and what hides others ---


class Base:
    scale = 1.0


class Mixin:
    pass


class Child(Mixin, Base):
    pass


def test_an_attribute_that_an_object_has_not_yet():
    thing = Child()

    def step(batch):
        return batch * 2 if hasattr(thing, "late") else batch * getattr(thing, "other", 1.0)

    assert change(step, lambda: setattr(thing, "late", 1)).name == "thing.late"
    assert change(step, lambda: setattr(thing, "other", 3.0)).name == "thing.other"


def test_a_method_of_torch_that_an_object_hides():
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(batch):
        model(batch).sum().backward()
        optimizer.step()

    assert change(step, lambda: setattr(optimizer, "step", lambda: None)).name == "optimizer.step"


def test_the_forward_of_a_module_that_is_replaced():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def step(batch):
        return model(batch)

    def double(x):
        return 2 * x

    assert change(step, lambda: setattr(model[1], "forward", double)).name == "model.1.forward"


@pytest.mark.parametrize(
    "parts",
    [
        lambda model: model.parameters(),
        lambda model: [weight for _, weight in model.named_parameters()],
        lambda model: model.modules(),
        lambda model: [model.get_submodule("0")],
    ],
)
def test_an_attribute_of_a_part_of_a_module(parts):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    for part in (*model.parameters(), *model.modules()):
        part.scale = 1.0

    def by_parameters(batch):
        return batch * sum(weight.scale for weight in model.parameters())

    def by_names(batch):
        total = 0.0
        for _, weight in model.named_parameters():
            total += weight.scale
        return batch * total

    def by_modules(batch):
        return batch * sum([getattr(part, "scale", 0.0) for part in model.modules()])

    def by_name(batch):
        return batch * model.get_submodule("0").scale

    for step, part in (
        (by_parameters, model[1].bias),
        (by_names, model[0].weight),
        (by_modules, model),
        (by_name, model[0]),
    ):
        first = change(step, functools.partial(setattr, part, "scale", 2.0))
        assert (first.before, first.after) == ("1.0", "2.0")
        part.scale = 1.0


# --- containers of Python's library ---


def test_a_default_that_is_set():
    values = {}

    def step(batch):
        return batch * values.setdefault("scale", 1.0)

    assert change(step, lambda: values.update(scale=2.0)).name == "values['scale']"


class Term:
    def __init__(self, weight):
        self.weight = weight


def test_an_object_that_is_let_go_is_not_held():
    terms = [Term(1.0), Term(2.0)]
    living, last = weakref.WeakSet(terms), weakref.ref(terms[1])

    def step(batch):
        return batch * sum(term.weight for term in living)

    assert change(step, terms.pop) is not None
    assert last() is None


# --- what a function of Python's library reads ---


@dataclass
class Inner:
    weight: float = 1.0


@dataclass
class Outer:
    inner: Inner = field(default_factory=Inner)
    items: list = field(default_factory=lambda: [Inner()])


def test_what_such_a_function_is_not_given_is_not_guarded():
    settings, other = Outer(), SimpleNamespace(count=0)

    def step(batch):
        other.last = dataclasses.asdict(settings)
        return batch

    assert change(step, lambda: setattr(other, "count", 1)) is None


# --- torch ---


def test_hooks_on_saved_tensors():
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda x: x * 2, lambda x: x)
    try:
        first = change(lambda batch: batch * 2, hooks.__enter__)
    finally:
        hooks.__exit__()
    assert first.name == "torch.autograd.graph.saved_tensors_hooks"


# --- work of the host ---


def test_subclasses_that_are_asked_for_are_told():
    def step(batch):
        return batch * len(Base.__subclasses__())

    _, run = watched(step)
    assert names(run) == ["__subclasses__"]


def test_random_numbers_that_are_seeded_each_time_are_writes():
    def step(batch):
        random.seed(3)
        return batch * random.random()

    state = random.getstate()
    try:
        _, run = watched(step, num_runs=3)
    finally:
        random.setstate(state)
    assert names(run) == ["random"]
    assert run.writes[0].site.startswith("test_reads_past_names.py")


def test_a_method_of_a_generator_that_is_kept_is_not_followed():
    uniform = np.random.default_rng(0).uniform

    def step(batch):
        return batch * uniform(0.5, 1.5)

    _, run = watched(step)
    assert ["uniform" in read.name for read in run.odd] == [True]


def test_the_date_is_work_of_the_host():
    def step(batch):
        return batch * dt.datetime.now().hour

    _, run = watched(step)
    assert names(run) == ["datetime.now"]


# --- objects that are handed on, and walks ---


def _weight_in(given, group, name):
    return given[group][name].weight


def test_objects_in_containers_that_are_handed_on():
    groups = {"main": {"ce": [Term(1.0)][0]}}

    def step(batch):
        return batch * _weight_in(groups, "main", "ce")

    assert change(step, lambda: setattr(groups["main"]["ce"], "weight", 2.0)).after == "2.0"


def test_objects_that_allow_no_weak_reference():
    settings, seen = {"a": SimpleNamespace(weight=1.0)}, []

    def found():
        return settings["a"]

    def weight_of(thing):
        return thing.weight

    def step(batch):
        made = SimpleNamespace(weight=Term(1.0))
        seen[:] = [weakref.ref(made.weight)]
        return batch * weight_of(found()) * weight_of(made).weight

    watch, _ = watched(step)
    assert seen[0]() is None
    guards = watch.guards()
    assert guards.holds()
    settings["a"].weight = 2.0
    assert not guards.holds()


def test_a_name_that_leads_elsewhere_without_a_loop_is_no_walk():
    settings = SimpleNamespace(inner=SimpleNamespace(weight=1.0, other=1))

    def step(batch):
        node = settings
        node = node.inner
        return batch * node.weight

    assert change(step, lambda: setattr(settings.inner, "other", 2)) is None


# --- partials, and what functions made in C return ---


def test_what_a_step_makes_is_not_held_after_it():
    """Neither in one role nor in two."""
    died = []

    class Dies:
        def __del__(self):
            died.append(self)

    def add(batch, part):
        return batch + part.number

    def subtract(batch, part):
        return batch - part.number

    def step(batch):
        part = SimpleNamespace(number=1.0, witness=Dies())
        return subtract(add(batch, part), part)

    watched(step, num_runs=3)

    assert len(died) == 3
