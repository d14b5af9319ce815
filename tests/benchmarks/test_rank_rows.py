"""One GPU beside several: every row trains the same, whoever sums its gradients."""

from __future__ import annotations

import json
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from statistics import fmean

import pytest
from benchmarks.ranks.rows import SILENT

from ranks.groups import fork_ranks


pytestmark = pytest.mark.xdist_group("processes: rank rows")

PROGRAM = Path(__file__).with_name("rank_rows_program.py")

SUMMED = ("ddp", "eager", "flat")


def run_rows(launcher, folder, *names, steps, world=2):
    """Return what each row found on each rank."""
    group = fork_ranks(launcher, PROGRAM, steps, *names, folder=folder, world=world)
    ended = group.end()
    ended.check_done()
    return [json.loads(rank.out.splitlines()[-1]) for rank in ended.ranks]


@pytest.fixture(scope="module")
def of_ranks(launcher_of_session, tmp_path_factory):
    """The rows of two ranks, after eight steps."""
    folder = tmp_path_factory.mktemp("rows") / "two"
    return run_rows(launcher_of_session, folder, *SUMMED, SILENT, steps=7)


def loss_of(of_ranks, name):
    return fmean(found[name]["loss"] for found in of_ranks)


@pytest.mark.parametrize("name", [name for name in SUMMED if name != "ddp"])
def test_every_row_of_two_ranks_trains_as_ddp_does(of_ranks, name):
    """The mean loss over ranks is the same after eight updates, and the clock has run."""
    assert loss_of(of_ranks, name) == pytest.approx(loss_of(of_ranks, "ddp"), abs=1e-5)
    assert all(found[name]["seconds"] > 0 for found in of_ranks)


def test_the_row_that_sums_nothing_trains_as_two_do_alone(of_ranks):
    """Its loss is another one, so that of the others shows that they sum."""
    assert loss_of(of_ranks, SILENT) != pytest.approx(loss_of(of_ranks, "flat"), abs=1e-4)


@pytest.mark.parametrize("name", [*SUMMED, SILENT])
def test_ranks_share_the_batches(of_ranks, name):
    """Each pair is on one rank, and both have as many batches."""
    first, second = (found[name]["pairs"] for found in of_ranks)

    assert len(first) == len(second)
    assert sorted(chain(*first, *second)) == list(range(200))


@pytest.mark.slow
@pytest.mark.skipif(find_spec("accelerate") is None, reason="Accelerate is not installed")
def test_accelerate_trains_as_ddp_does(launcher, of_ranks, tmp_path):
    """It wraps the model and deals the batches itself.

    It has processes of its own: a group that is made after Accelerate's may hang.
    """
    found = run_rows(launcher, tmp_path / "two", "accelerate-ddp", steps=7)

    assert loss_of(found, "accelerate-ddp") == pytest.approx(loss_of(of_ranks, "ddp"), abs=1e-5)
