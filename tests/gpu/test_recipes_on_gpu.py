"""Each recipe computes the same before and after on a GPU, and is really replayed."""

from __future__ import annotations

import pytest
import torch

import recipes


pytestmark = pytest.mark.gpu


@pytest.fixture
def deterministic(numerics, monkeypatch):
    """Let no algorithm give other bits from run to run."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)


@pytest.mark.parametrize("name", recipes.NAMES)
def test_both_scripts_compute_the_same_on_a_gpu(name, deterministic):
    """Every printed digit and every bit of every weight is the same, and steps are replayed."""
    before, after = (recipes.run_recipe(name, kind, "cuda") for kind in ("before", "after"))
    torch.compiler.reset()

    assert recipes.changed_bits(before, after) == []
    assert [report.refusals for report in after.reports()] == [[]] * len(after.reports())
    assert min(report.num_replays for report in after.reports()) > 0
