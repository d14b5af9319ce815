"""Recipes for several GPUs, on two gloo ranks: each computes what the script before it does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import recipes
from ranks import recipe_program


pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("processes: recipes on ranks")]

PROGRAM = Path(recipe_program.__file__)


def run_on_ranks(fork, folder, name, kind, device, *, world=2):
    """Run one script of a recipe on so many ranks; return what came of it on each."""
    folder = folder / f"{name}-{kind}"
    folder.mkdir()
    group = fork(PROGRAM, name, kind, device, folder, name=f"{name}-{kind}-ranks", world=world)
    group.end().check_done()
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(world)]


def check_ranks(before, after):
    """Check that the first rank alone prints, all have the same bits, and all reports agree."""
    assert before[0]["lines"]
    assert after[0]["lines"][: len(before[0]["lines"])] == before[0]["lines"]
    assert [rank["lines"] for rank in before[1:] + after[1:]] == [[]] * (2 * len(before) - 2)
    assert [rank["weights"] for rank in after] == [before[0]["weights"]] * len(after)
    assert [rank["reports"] for rank in after] == [after[0]["reports"]] * len(after)
    assert after[0]["reports"]


@pytest.mark.parametrize("name", recipes.ON_RANKS)
def test_both_scripts_compute_the_same_on_two_ranks(name, fork, tmp_path):
    """Every printed digit and every bit of every weight is the same; ranks have the same weights."""
    if not recipes.is_installed(name):
        pytest.skip("its framework is absent")
    before, after = (
        run_on_ranks(fork, tmp_path, name, kind, "cpu") for kind in ("before", "after")
    )

    check_ranks(before, after)
