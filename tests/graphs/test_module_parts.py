"""Parts of a module are found as torch finds them, without a call of anything of theirs."""

from __future__ import annotations

import pytest
from torch import nn

from gapless.graphs.reads.module_parts import named_parts, weights_within


class Unhashable(nn.Module):
    """A metric may read its state for its hash."""

    def __hash__(self):
        raise AssertionError("a part was asked for its hash")


def test_parts_are_those_of_torch_in_its_order():
    """A part that stands in two places has its first name, and one that is None is left out."""
    shared = nn.Linear(2, 2)
    inner = nn.ModuleDict({"a": shared, "b": nn.ReLU()})
    module = nn.ModuleDict({"first": inner, "second": shared, "third": nn.Sequential(nn.ReLU())})
    module.register_module("none", None)

    assert [*named_parts(module)] == [*module.named_modules()]


def test_no_part_is_asked_for_its_hash():
    """Code of a part that runs would be watched as code of the step."""
    part = Unhashable()
    module = nn.Sequential(nn.Linear(2, 2), part)

    with pytest.raises(AssertionError, match="hash"):
        list(module.named_modules())
    assert [name for name, _ in named_parts(module)] == ["", "0", "1"]


def test_weights_are_those_of_all_parts():
    """In the order in which torch has them."""
    module = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.BatchNorm1d(2), nn.ReLU()))

    assert [*map(id, weights_within(module))] == [*map(id, module.parameters())]
