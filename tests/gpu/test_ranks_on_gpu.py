"""Two ranks on two GPUs: bits, faults with graphs alive, refusals, and loops of users under NCCL."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

import recipes
from faults.processes import Launcher
from faults.runs import write_data
from ranks import user_loops
from ranks.fault_table import ON_GPU, try_fault
from ranks.faults import FAULTS, SLOW
from ranks.groups import fork_ranks
from ranks.runs import (
    ONE_SHAPE,
    final_weights,
    kill_when_saved,
    options,
    resume_options,
    summary,
    validations,
)
from ranks.test_recipes_on_ranks import check_ranks, run_on_ranks
from ranks.test_user_loops import check_loop, results_in
from ranks.user_loops import LOOPS


TRIALS = 3

CAPTURED = (*ON_GPU, "--plan", "captured")


@pytest.fixture(scope="module")
def launcher():
    """Starts ranks; multicast of NVLink stays off, which not all machines have."""
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    made = Launcher()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def nothing_is_left(launcher):
    """Kill what a test leaves running."""
    yield
    launcher.stop_all()


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A folder of parallel text."""
    return write_data(tmp_path_factory.mktemp("data") / "text")


@pytest.fixture
def train(launcher, data, tmp_path):
    """Train on so many GPUs to the end; return the run."""

    def call(name, *more, world=2):
        arguments = [*options(data, tmp_path / name, epochs=2), *more]
        folder = tmp_path / f"{name}-ranks"
        fork_ranks(launcher, *arguments, folder=folder, world=world).end().check_done()
        return tmp_path / name

    return call


@pytest.fixture(scope="module")
def undisturbed(launcher, data, tmp_path_factory):
    """The folder of a finished run of two ranks with captured steps."""
    folder = tmp_path_factory.mktemp("undisturbed")
    arguments = [*options(data, folder / "run"), *CAPTURED]
    fork_ranks(launcher, *arguments, folder=folder / "ranks").end().check_done()
    return folder / "run"


@pytest.mark.multi_gpu
@pytest.mark.parametrize("plan", ["gapless", "captured"])
def test_two_gpus_are_accumulation_over_two(train, plan):
    """Weights, validations and scores are the same, to the last digit."""
    more = [*ONE_SHAPE, "--device", "cuda", "--plan", plan]
    two = train("two", *more)
    one = train("one", *more, "--accumulate", 2, world=1)

    assert final_weights(two) == final_weights(one)
    assert validations(two) == validations(one)


@pytest.mark.multi_gpu
@pytest.mark.parametrize("accumulate", [1, 2])
def test_captured_ranks_have_the_bits_of_eager_ones(train, accumulate):
    """With dropout, and in several shapes."""
    more = [*ON_GPU, "--accumulate", accumulate]
    eager = train("eager", *more, "--plan", "gapless")
    captured = train("captured", *more, "--plan", "captured")

    assert final_weights(eager) == final_weights(captured)
    assert validations(eager) == validations(captured)


@pytest.mark.parametrize(
    "world",
    [pytest.param(1, marks=pytest.mark.gpu), pytest.param(2, marks=pytest.mark.multi_gpu)],
)
def test_a_validation_costs_no_graph(train, world):
    """It is the first to use torch's own attention, which has torch order its kernels."""
    more = ["--device", "cuda", "--plan", "captured", "--no-compile"]
    more += ["--pack", "--batch-tokens", 32]
    run = train("run", *more, world=world)

    capture = summary(run)["capture"]
    assert capture["changes"] == []
    assert capture["num_graphs"] == 1


@pytest.mark.multi_gpu
def test_the_same_world_resumes_to_the_bit(launcher, data, undisturbed, tmp_path):
    """Killed after a save and resumed: as if nothing had been."""
    run = tmp_path / "run"
    arguments = [*options(data, run), *CAPTURED]
    kill_when_saved(fork_ranks(launcher, *arguments, folder=tmp_path / "killed", before=SLOW), run)

    fork_ranks(launcher, *resume_options(run), folder=tmp_path / "again").end().check_done()

    assert final_weights(run) == final_weights(undisturbed)


@pytest.mark.multi_gpu
@pytest.mark.parametrize("trial", range(TRIALS))
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_of_one_rank_with_graphs_alive(
    fault, trial, launcher, data, undisturbed, tmp_path
):
    """Under torchrun: all are gone in time, one says why, and a resume has the same bits."""
    tried = try_fault(fault, launcher, tmp_path / "fault", data, undisturbed, more=CAPTURED)

    assert tried.wrong == [], tried.text


@pytest.mark.multi_gpu
@pytest.mark.parametrize("trial", range(TRIALS))
def test_a_killed_rank_trains_again(trial, launcher, data, undisturbed, tmp_path):
    """torchrun starts both again, and the end is the same."""
    [fault] = [one for one in FAULTS if one.name == "rank 1 is killed"]

    tried = try_fault(
        fault,
        launcher,
        tmp_path / "fault",
        data,
        undisturbed,
        more=CAPTURED,
        restarts=True,
    )

    assert tried.wrong == [], tried.text


@pytest.mark.gpu
@pytest.mark.parametrize("is_told", [True, False], ids=["the same number", "hidden from each"])
def test_two_ranks_on_one_gpu(launcher, data, tmp_path, is_told):
    """It is found before NCCL hangs on it: one line, on all ranks exit code 2."""
    arguments = [*options(data, tmp_path / "run"), "--device", "cuda:0" if is_told else "cuda"]
    visible = {} if is_told else {"CUDA_VISIBLE_DEVICES": 0, "LOCAL_RANK": 0}

    ended = fork_ranks(launcher, *arguments, folder=tmp_path / "ranks", **visible).end(limit=90)

    ended.check_refused("GPU")
    assert not (tmp_path / "run").exists()


@pytest.mark.gpu
def test_more_ranks_than_gpus(launcher, data, tmp_path):
    """The last rank has no device of its own."""
    arguments = [*options(data, tmp_path / "run"), "--device", "cuda"]
    world = torch.cuda.device_count() + 1

    group = fork_ranks(launcher, *arguments, folder=tmp_path / "ranks", world=world)

    group.end(limit=90).check_refused("GPU", world)
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def loops(launcher, tmp_path_factory):
    """What came of each loop of a user on each of two GPUs, each loop in a group of its own."""

    def run(name):
        folder = tmp_path_factory.mktemp("user-loops")
        arguments = [Path(user_loops.__file__), "cuda", folder, name]
        fork_ranks(launcher, *arguments, folder=folder / "ranks").end().check_done()
        return results_in(folder)[name]

    return run


@pytest.mark.multi_gpu
@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_of_a_user(name, loops):
    """The word is an expected one, and the same on both ranks."""
    check_loop(name, loops(name))


@pytest.fixture
def fork(launcher, tmp_path):
    """Start ranks in a folder of the test."""

    def call(*arguments, name, **options):
        return fork_ranks(launcher, *arguments, folder=tmp_path / name, **options)

    return call


@pytest.mark.parametrize(
    "world", [pytest.param(1, marks=pytest.mark.gpu), pytest.param(2, marks=pytest.mark.multi_gpu)]
)
@pytest.mark.parametrize("name", recipes.ON_RANKS)
def test_a_recipe_for_several_gpus(name, world, fork, tmp_path):
    """Both scripts have the same digits and bits, all ranks the same weights, and steps are replayed."""
    if not recipes.is_installed(name):
        pytest.skip("its framework is absent")
    before, after = (
        run_on_ranks(fork, tmp_path, name, kind, "cuda", world=world)
        for kind in ("before", "after")
    )

    check_ranks(before, after)
    for report in after[0]["reports"]:
        assert report["refusals"] == []
        assert report["counts"][1] > 0
