"""Two ranks train as one rank that accumulates, to the bit; and as themselves after a resume."""

from __future__ import annotations

import shutil

import pytest

from faults.runs import differences
from ranks.faults import SLOW
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


pytestmark = pytest.mark.xdist_group("processes: bits")

# For three ranks on machines with two cores.
EIGHT_CORES = "import os; os.sched_getaffinity, os.cpu_count = lambda _: set(range(8)), lambda: 8"


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
    ended = fork_ranks(launcher_of_session, *arguments, folder=folder / "ranks").end()
    ended.check_done()
    # The update is of twice as many batches, and one line says so.
    assert [line for line in ended.out.splitlines() if "2 x 1" in line and "update" in line]
    return folder / "run"


def test_two_ranks_are_accumulation_over_two(train, two_ranks):
    """Weights, validations and scores are the same, to the last digit."""
    one, _ = train("one", *ONE_SHAPE, "--accumulate", 2, world=1, epochs=4)

    assert final_weights(two_ranks) == final_weights(one)
    assert validations(two_ranks) == validations(one)
    for key in ("steps", "epochs", "target_tokens", "bleu"):
        assert summary(two_ranks)[key] == summary(one)[key], key


@pytest.mark.slow
def test_neither_plans_nor_slow_ranks_change_bits(train):
    """With dropout, whose draws differ by rank."""
    even = train("even")[0]
    uneven = train("uneven", before=["", SLOW])[0]
    other = train("four-stream", plan="four-stream")[0]

    assert differences(uneven, even) == []
    assert final_weights(other) == final_weights(even)
    assert validations(other) == validations(even)


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
def test_a_world_that_does_not_divide_the_update_is_refused(two_ranks, fork, tmp_path):
    """By one line, that says which worlds would do; the run is as before."""
    run = shutil.copytree(two_ranks, tmp_path / "run")

    ended = fork(
        *resume_options(run), "--epochs", 5, name="three", world=3, before=EIGHT_CORES
    ).end()

    ended.check_refused("3 ranks cannot share", "a number of them that divides 2")
    assert final_weights(run) == final_weights(two_ranks)
