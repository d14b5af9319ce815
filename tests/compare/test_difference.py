"""Where two runs differ, and by how much."""

from __future__ import annotations

import math

import pytest
import torch

from gapless.compare.difference import (
    element_difference,
    first_tensor_difference,
    relative_tensor_difference,
)
from gapless.compare.recorded_run import RecordedRun
from gapless.records.verification import RunSummary
from gapless.records.wait_stats import WaitStats


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        ([1.0, -4.0], [1.0, -3.0], 0.25),
        ([0.0, 0.0], [0.0, -0.0], 0.0),
        ([math.nan, 2.0], [math.nan, 1.0], 0.5),
        ([math.nan, 2.0], [1.0, 2.0], math.inf),
        ([math.inf, 2.0], [math.inf, 1.0], 0.5),
        ([math.inf, 2.0], [-math.inf, 2.0], math.inf),
        ([1.0], [1.0, 2.0], math.inf),
        ([], [], 0.0),
    ],
)
def test_the_relative_difference_of_tensors(ours, theirs, expected):
    """It is the largest distance over the largest size; NaN against a number is infinite."""
    assert expected == relative_tensor_difference(torch.tensor(ours), torch.tensor(theirs))


def test_tensors_off_the_device_are_compared_after_the_last_step():
    """A counter on the host has no checksum; its bits are compared at the end."""

    def run(counter):
        return RecordedRun(
            summary=RunSummary(plan="blocking", losses=[1.0, 2.0], waits=WaitStats(), passes=(2,)),
            tensors=[()] * 3,
            checksums=[[]] * 3,
            kept={"parameter weight": torch.ones(2), "step of weight": torch.tensor(counter)},
        )

    found = first_tensor_difference(run(2.0), run(3.0))

    assert (found.step, found.name, found.detail) == (2, "step of weight", None)
    assert (found.num_tensors, found.num_compared) == (1, 2)
    assert first_tensor_difference(run(2.0), run(2.0)) is None


def test_elements_differ_by_bits_and_are_measured_by_value():
    """A sign of zero is a difference of size 0, a NaN one without a size."""
    signs = element_difference(torch.tensor([0.0, 1.0, 2.0]), torch.tensor([-0.0, 1.0, 2.5]))
    nans = element_difference(torch.tensor([math.nan, 1.0]), torch.tensor([1.0, 1.0]))
    same = element_difference(torch.tensor([math.nan]), torch.tensor([math.nan]))

    assert (signs.num_differing, signs.num_elements, signs.max_abs) == (2, 3, 0.5)
    assert nans.num_differing == 1
    assert math.isnan(nans.max_abs)
    assert (same.num_differing, same.max_abs) == (0, 0.0)
