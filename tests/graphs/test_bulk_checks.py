"""What a step reads is compared many things at a time, and each change is seen all the same."""

from __future__ import annotations

import collections

import pytest
import torch
from torch import nn

from gapless.graphs.reads import read_tables
from gapless.graphs.reads.guard_rows import GuardRows
from gapless.graphs.reads.read_check import check_of
from gapless.graphs.reads.read_tables import Table, Tables
from gapless.graphs.reads.value_places import MISSING
from watched_steps import watched


ALPHA = 0.5


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
        self.scale = 2.0

    def forward(self, x, *, shifts=(1, 2)):
        return self.parts(x) * self.scale + shifts[0]


class Other(Net):
    def forward(self, x):
        return x


class Counted(Table):
    """What is compared of a dictionary, which counts how often it is read by itself."""

    def __init__(self, entries, key):
        super().__init__(entries)
        self.num = 0
        self.add(
            key, check_of(lambda: entries.get(key, MISSING), entries.get(key, MISSING), name=key)
        )

    def hold(self):
        self.num += 1
        return super().hold()


def compared(*tables):
    """Return rows that compare dictionaries."""
    rows = GuardRows()
    Tables(tables, rows)
    return rows


@pytest.fixture(params=["versions", "no versions"])
def versions(request, monkeypatch):
    """Torch that tells the version of a dictionary, and one that does not."""
    if request.param == "no versions":
        monkeypatch.setattr(read_tables, "dict_version", None)
    elif read_tables.dict_version is None:
        pytest.skip("this torch has no versions of dictionaries")
    return request.param


@pytest.fixture
def guarded():
    """Return a model and the guards of a step that calls it."""
    model = Net()

    def step(batch):
        return model(batch).sum() * ALPHA

    watch, _ = watched(step)
    return model, watch.guards()


# --- dictionaries ---


def test_a_dictionary_that_nobody_wrote_to_is_read_once():
    if read_tables.dict_version is None:
        pytest.skip("this torch has no versions of dictionaries")
    table = {"a": 1}
    comparison = Counted(table, "a")
    tables = compared(comparison)

    assert [tables.hold() for _ in range(5)] == [True] * 5
    assert comparison.num == 1


def test_a_dictionary_that_is_written_to_now_and_then_is_read_then():
    if read_tables.dict_version is None:
        pytest.skip("this torch has no versions of dictionaries")
    table = {"a": 1}
    comparison = Counted(table, "a")
    tables = compared(comparison)
    tables.hold()

    for number in range(3):
        table["other"] = object()
        assert all(tables.hold() for _ in range(10)), number
    assert comparison.num == 4


def test_dictionaries_that_are_all_written_to_are_not_read_for_ever():
    """As `eval()` and `train()` write to those of all modules, time and again."""
    if read_tables.dict_version is None:
        pytest.skip("this torch has no versions of dictionaries")
    comparisons = [Counted({"training": True}, "training") for _ in range(100)]
    tables = compared(*comparisons)
    for _ in range(5):
        for comparison in comparisons:
            comparison.entries |= {"training": False}
            comparison.entries |= {"training": True}
        assert tables.hold()
    num = comparisons[0].num

    assert all(tables.hold() for _ in range(10))
    assert {comparison.num for comparison in comparisons} == {num}


@pytest.mark.parametrize("kind", [dict, collections.OrderedDict])
def test_a_dictionary_that_is_written_to_all_the_time_is_still_compared(versions, kind):
    table = kind(a=1)
    tables = compared(Counted(table, "a"))

    for _ in range(10):
        table["other"] = object()
        assert tables.hold()
    table["a"] = 2
    assert not tables.hold()
    table["a"] = 1
    assert tables.hold()


def test_a_dictionary_that_others_have_found_to_be_written_to_is_compared_by_all():
    """Rows that are asked in two places know of each other's changes."""
    table = {"a": 1}
    tables = compared(Counted(table, "a"))
    others = GuardRows(tables.asked)
    others.add_all(tables)
    assert others.hold()

    for _ in range(10):
        table["other"] = object()
        assert tables.hold()
    assert others.hold()
    table["a"] = 2

    assert not others.hold()


# --- guards ---


def _name_an_attribute(model):
    model.parts[1].forward = lambda x: x


def _put_a_hook_in_by_hand(model):
    model.parts[0]._forward_hooks[0] = lambda *_: None


def _give_another_table_of_hooks(model):
    table = collections.OrderedDict()
    model.parts[0]._forward_hooks = table
    model.parts[1].register_forward_hook(lambda *_: None).remove()
    model.parts[0].register_forward_hook(lambda *_: None)


def _mix_the_parts(model):
    parts = model.parts._modules
    parts["0"] = parts.pop("0")


def _write_a_value(model):
    model.scale = 3.0


def _train_less(model):
    model.parts[2].bias.requires_grad_(False)


def _another_memory(model):
    model.parts[2].bias.data = torch.zeros(4)


def _another_class(model):
    model.parts[1].__class__ = nn.Sigmoid


def _write_to_a_class(model):
    Net.forward = Other.forward


def _write_a_global(model):
    global ALPHA
    ALPHA = 0.25


CHANGES = [
    (_name_an_attribute, "model.parts.1.forward changed from nothing to <lambda>"),
    (_put_a_hook_in_by_hand, "hooks of model.parts.0 changed from 0 hooks to 1 hooks"),
    (_give_another_table_of_hooks, "hooks of model.parts.0 changed from 0 hooks to 1 hooks"),
    (_mix_the_parts, "model.parts changed from 3 items to another order"),
    (_write_a_value, "self.scale changed from 2.0 to 3.0"),
    (_train_less, "model.parts.2.bias.requires_grad changed from True to False"),
    (_another_memory, "model.parts.2.bias changed from its memory to other memory"),
    (_another_class, "the class of model.parts.1 changed from ReLU to Sigmoid"),
    (_write_to_a_class, "model.forward changed from forward to another function"),
    (_write_a_global, "ALPHA changed from 0.5 to 0.25"),
]


@pytest.mark.parametrize(("change", "text"), CHANGES)
@pytest.mark.parametrize("is_early", [True, False])
def test_each_change_is_seen_and_named(guarded, monkeypatch, change, text, is_early):
    """At the first call and after others."""
    monkeypatch.setitem(globals(), "ALPHA", 0.5)
    monkeypatch.setattr(Net, "forward", Net.forward)
    model, guards = guarded
    if not is_early:
        assert all(guards.holds() for _ in range(3))

    change(model)
    seen = guards.holds()
    first = guards.first_changed()

    assert not seen
    assert f"{first.name} changed from {first.before} to {first.after}" == text


def test_a_mode_that_is_left_is_a_change():
    """Torch raises where it is asked for one that is not there."""
    model = Net()

    def step(batch):
        return model(batch).sum()

    with torch.device("cpu"):
        guards = watched(step)[0].guards()
        assert guards.holds()

    assert not guards.holds()
    with torch.device("cpu"):
        assert guards.holds()


def test_what_is_written_anew_with_an_equal_value_is_no_change(guarded):
    model, guards = guarded
    guards.holds()

    for _ in range(5):
        model.scale = float("2.0")
        model.train(not model.training)
        model.train(not model.training)
        assert guards.holds(), guards.first_changed()
    model.scale = -0.0
    assert not guards.holds()


def test_hooks_that_come_and_go_elsewhere_are_no_change(guarded):
    _, guards = guarded
    other = nn.Linear(2, 2)

    for _ in range(3):
        handle = other.register_forward_hook(lambda *_: None)
        assert guards.holds()
        handle.remove()
        assert guards.holds()
