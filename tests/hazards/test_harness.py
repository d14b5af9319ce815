"""The harness judges rightly: the plain loop passes, planted mistakes do not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hazards import harness, table
from hazards.harness import CPU, EVERYWHERE, SIMULATED, judge_the_plain_loop, places, result_of
from hazards.themes import CASES


PLAIN = [(one, kind) for one in CASES for kind in (CPU, SIMULATED) if kind in one.devices]


# Of all cases, one in so many is run by `make test`; `make check` runs the others.
_ONE_IN = 12


@pytest.mark.parametrize(
    ("one", "kind"),
    [
        pytest.param(
            one, kind, id=f"{one}-{kind}", marks=[pytest.mark.slow] if number % _ONE_IN else []
        )
        for number, (one, kind) in enumerate(PLAIN)
        if one.holds_plainly
    ],
)
def test_the_plain_loop_is_right(one, kind):
    """Each case accepts the plain loop, on the CPU and with copies in place of moves."""
    assert judge_the_plain_loop(one, kind) == []


def every_tensor(change):
    """Return a plain pass that hands out each batch changed by `change`."""

    def read(batches, place):
        for batch in batches:
            moved = harness.move(batch, place.torch_device)
            yield torch.utils._pytree.tree_map_only(torch.Tensor, change, moved)

    return read


def one_slot():
    """Return a change that hands out the same memory for each batch of one size."""
    slots = {}

    def change(tensor):
        slot = slots.setdefault(tensor.shape, torch.empty_like(tensor))
        return slot.copy_(tensor)

    return change


def read_ahead(batches, place):
    """Read the next batch before the step of the last one runs."""
    ahead = None
    for batch in batches:
        moved = [harness.move(batch, place.torch_device)]
        if ahead is not None:
            yield ahead[0]
        ahead = moved
    if ahead is not None:
        yield ahead[0]


MISTAKES = {
    "memory used again": (lambda: every_tensor(one_slot()), "kept_views-first_column"),
    "memory used again, saved": (
        lambda: every_tensor(one_slot()),
        "kept_views-window_of_three",
    ),
    "read ahead": (lambda: read_ahead, "looking_ahead-torchs_generator_is_shared"),
    "read ahead of a break": (
        lambda: read_ahead,
        "looking_ahead-state_of_the_loader",
    ),
    "strides lost": (lambda: every_tensor(torch.Tensor.contiguous), "forms-channels_last_3d"),
    "dtype lost": (lambda: every_tensor(torch.Tensor.float), "forms-dtype_float16"),
    "subclass lost": (
        lambda: every_tensor(lambda tensor: tensor.as_subclass(torch.Tensor)),
        "forms-subclass",
    ),
    "gradients lost": (lambda: every_tensor(torch.Tensor.detach), "forms-parameter"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_planted_mistake_is_found(mistake, monkeypatch):
    """A prefetcher with a known mistake fails the case for it."""
    make, name = MISTAKES[mistake]
    (one,) = [case for case in CASES if str(case) == name]

    reference, _ = places(SIMULATED)
    right = result_of(one, reference)
    monkeypatch.setattr(harness, "_plain_pass", make())

    assert result_of(one, reference) != right


def test_the_table_is_that_of_the_cases():
    """README.md lists the cases as they are."""
    readme = Path(__file__).with_name("README.md").read_text(encoding="utf-8")

    assert table.readme() == readme


def test_there_are_enough_cases_everywhere():
    """No place is left out by a mistake in a list of devices."""
    for kind in EVERYWHERE:
        assert sum(kind in one.devices for one in CASES) > 100
