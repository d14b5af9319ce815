"""Recipes compute the same before and after on a GPU; what they say of refusals is so there."""

from __future__ import annotations

import pytest
import torch

import recipes


pytestmark = pytest.mark.gpu

REPORT = (recipes.PAGES / "report.md").read_text(encoding="utf-8")


@pytest.fixture
def deterministic(numerics, monkeypatch):
    """Let no algorithm give other bits from run to run."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)


@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning")
# Once in each process, which may be here.
@pytest.mark.filterwarnings("ignore:Memory Efficient attention defaults:UserWarning")
@pytest.mark.parametrize("name", [name for name in recipes.NAMES if name != "ddp"])
def test_both_scripts_compute_the_same_on_a_gpu(name, deterministic):
    """Every printed digit and every bit of every weight is the same, and steps are replayed."""
    before, after = (recipes.run_recipe(name, kind, "cuda") for kind in ("before", "after"))
    torch.compiler.reset()

    assert recipes.changed_bits(before, after) == []
    assert [report.refusals for report in after.reports()] == [[]] * len(after.reports())
    assert min(report.num_replays for report in after.reports()) > 0


@pytest.mark.parametrize(("kind", "example"), recipes.examples_of(REPORT))
def test_an_example_is_refused_before_and_replayed_after_on_a_gpu(kind, example):
    """The report has the kind of the section; after the edit nothing is refused, and steps replay."""
    said, mended = (
        recipes.run_example(REPORT, code, torch.device("cuda"), num_batches=40) for code in example
    )

    # That one is a note: it forbids no graph.
    assert kind in [refusal.kind for refusal in said.refusals]
    assert mended.refusals == []
    assert mended.num_replays > 0
