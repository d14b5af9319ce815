"""Loops as people write them are right on a GPU."""

from __future__ import annotations

import pytest
import torch

from hazards.harness import GPU, judge
from hazards.themes import CASES


pytestmark = pytest.mark.gpu

# Where a race shows in some runs only.
NUM_RUNS = 3
HOLDS_ONCE = ("memory", "metrics_memory")


@pytest.fixture(autouse=True)
def no_cached_blocks():
    """Leave no cached blocks of other tests, whose reuse would hide or show a lifetime bug."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


@pytest.mark.parametrize(
    "one", [pytest.param(one, id=str(one)) for one in CASES if GPU in one.devices]
)
def test_on_a_gpu(one):
    """The loop gives what the plain loop gives, in each of several runs."""
    for _ in range(1 if one.theme in HOLDS_ONCE else NUM_RUNS):
        assert judge(one, GPU) == []
