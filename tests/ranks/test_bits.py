"""Two ranks train as one rank that accumulates, to the bit; and as themselves after a resume."""

from __future__ import annotations

import pytest

from faults.runs import differences, train_options
from ranks.faults import SLOW
from ranks.groups import fork_ranks
from ranks.runs import (
    ONE_SHAPE,
    final_weights,
    kill_when_saved,
    largest_difference,
    options,
    resume_options,
    summary,
    validations,
)


pytestmark = pytest.mark.xdist_group("processes: bits")

# For three ranks on machines with two cores.
EIGHT_CORES = "import os; os.sched_getaffinity, os.cpu_count = lambda _: set(range(8)), lambda: 8"

# Of a weight after a few dozen updates in fp32, whose gradients were summed in another order.
OTHER_ORDER = 1e-4


@pytest.fixture
def train(launcher, data, tmp_path):
    """Train on so many ranks to the end; return the run and how it ended."""

    def call(name, *more, world=2, plan="gapless", epochs=2, **given):
        arguments = options(data, tmp_path / name, plan=plan, epochs=epochs)
        folder = tmp_path / f"{name}-ranks"
        group = fork_ranks(launcher, *arguments, *more, folder=folder, world=world, **given)
        ended = group.end()
        ended.check_done()
        return tmp_path / name, ended

    return call


@pytest.fixture(scope="session")
def two_ranks(launcher_of_session, data, tmp_path_factory):
    """A run of two ranks whose updates are the same on one; nothing interrupted it."""
    folder = tmp_path_factory.mktemp("two-ranks")
    arguments = [*options(data, folder / "run"), *ONE_SHAPE]
    fork_ranks(launcher_of_session, *arguments, folder=folder / "ranks").end().check_done()
    return folder / "run"


def test_two_ranks_are_accumulation_over_two(train, two_ranks):
    """Weights, validations and scores are the same, to the last digit."""
    one, _ = train("one", *ONE_SHAPE, "--accumulate", 2, world=1, epochs=4)

    assert final_weights(two_ranks) == final_weights(one)
    assert validations(two_ranks) == validations(one)
    for key in ("steps", "epochs", "target_tokens", "bleu"):
        assert summary(two_ranks)[key] == summary(one)[key], key


@pytest.mark.slow
def test_two_ranks_that_accumulate_are_nearly_one_that_does(train):
    """Four batches an update: only the order of sums differs."""
    # Adam makes much of a small difference where a gradient is nearly 0; the rate bounds it.
    more = [*ONE_SHAPE, "--lr", 1e-4]
    one, _ = train("one", *more, "--accumulate", 4, world=1)
    two, _ = train("two", *more, "--accumulate", 2)

    assert largest_difference(one, two) < OTHER_ORDER
    assert summary(one)["steps"] == summary(two)["steps"]
    assert summary(one)["target_tokens"] == summary(two)["target_tokens"]


@pytest.mark.slow
@pytest.mark.parametrize("plan", ["captured", "four-stream"])
def test_plans_have_the_same_bits(train, plan):
    """With dropout, whose draws differ by rank."""
    runs = [train(name, plan=name)[0] for name in ("gapless", plan)]

    assert final_weights(runs[0]) == final_weights(runs[1])
    assert validations(runs[0]) == validations(runs[1])


@pytest.mark.slow
def test_equal_runs_have_equal_bits(train):
    """Whatever the order in which ranks come: the second rank is slow in one of them."""
    runs = [train("even")[0], train("uneven", before=["", SLOW])[0]]

    assert differences(runs[1], runs[0]) == []


@pytest.mark.slow
def test_uneven_batches_lose_no_pair(train):
    """Every target token is trained on once an epoch, whatever does not fill an update."""
    more = ["--batch-tokens", 100, "--fixed-shapes", "--dropout", 0, "--no-compile"]
    one, _ = train("one", *more, world=1)
    two, _ = train("two", *more)

    assert summary(one)["target_tokens"] == summary(two)["target_tokens"]


@pytest.mark.slow
def test_the_same_world_resumes_to_the_bit(launcher, data, train, tmp_path):
    """Killed after a save and resumed: as if nothing had been, dropout included."""
    whole, _ = train("whole", epochs=4)
    arguments = options(data, tmp_path / "run")
    group = fork_ranks(launcher, *arguments, folder=tmp_path / "killed", before=SLOW)
    kill_when_saved(group, tmp_path / "run")

    again = fork_ranks(
        launcher, *resume_options(tmp_path / "run"), folder=tmp_path / "again"
    ).end()

    again.check_done()
    assert differences(tmp_path / "run", whole) == []


@pytest.mark.slow
def test_another_world_resumes_the_same_updates(launcher, data, two_ranks, tmp_path):
    """From two ranks to one, which accumulates, and back: here even the bits are the same."""
    arguments = [*options(data, tmp_path / "run"), *ONE_SHAPE]
    group = fork_ranks(launcher, *arguments, folder=tmp_path / "two", before=SLOW)
    kill_when_saved(group, tmp_path / "run")

    resumed = resume_options(tmp_path / "run")
    one = fork_ranks(launcher, *resumed, folder=tmp_path / "one", world=1, before=SLOW)
    kill_when_saved(one, tmp_path / "run", update=30)
    last = fork_ranks(launcher, *resumed, folder=tmp_path / "two-again").end()

    last.check_done()
    said = [line for line in last.err.splitlines() if "ranks" in line or "with 2" in line]
    assert len(said) == 1, last.err
    assert "rounded" in said[0]
    assert final_weights(tmp_path / "run") == final_weights(two_ranks)


@pytest.mark.slow
def test_a_world_that_does_not_divide_the_update_is_refused(train, fork):
    """By one line, that names the worlds that would do; the run is as before."""
    run, _ = train("run", *ONE_SHAPE)
    before = final_weights(run)

    ended = fork(
        *resume_options(run), "--epochs", 3, name="three", world=3, before=EIGHT_CORES
    ).end()

    ended.check_refused("3", "1 or 2")
    assert final_weights(run) == before


@pytest.mark.slow
def test_a_changed_update_is_said(train):
    """Two ranks without more make updates of twice as many batches: one line says so."""
    _, ended = train("two", *ONE_SHAPE, "--accumulate", 1, epochs=1)

    assert [line for line in ended.out.splitlines() if "2 x 1" in line and "update" in line]


def test_one_rank_of_torchrun_is_a_process_alone(launcher, data, train, tmp_path):
    """World 1: the bits of a run without torchrun."""
    alone = tmp_path / "alone"
    launcher.run(
        *train_options(data, alone, epochs=1, save_every=10), folder=tmp_path
    ).check_done()

    ranked, _ = train("ranked", world=1, epochs=1)

    assert differences(ranked, alone) == []
