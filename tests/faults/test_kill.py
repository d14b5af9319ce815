"""A run that is killed at any moment ends, once it is resumed, as if nothing had been."""

from __future__ import annotations

import shutil
import signal

import pytest

from faults.runs import UPDATES, check_same_run, checkpoints, newest_step, train_options
from faults.trials import run_trial


pytestmark = pytest.mark.xdist_group("processes: kill")

PLANS = ["blocking", "deferred-loss", "events-interval", "four-stream", "full", "captured", "auto"]


@pytest.fixture
def trial(launcher, data, finished, tmp_path):
    """Run one trial; return in what it differs."""

    def call(number, *, plan="gapless", workers=0, real=False):
        return run_trial(
            launcher,
            number=number,
            data=data,
            reference=finished,
            folder=tmp_path,
            plan=plan,
            workers=workers,
            real=real,
        )

    return call


@pytest.mark.parametrize(
    ("number", "workers"), [pytest.param(2, 0, marks=pytest.mark.slow), (3, 2)]
)
def test_a_killed_run_is_resumed(trial, number, workers):
    """Weights, state, history and summary are those of a run that nobody killed."""
    assert trial(number, workers=workers).found == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plan", "workers"), [(plan, number % 2 * 2) for number, plan in enumerate(PLANS)]
)
def test_a_killed_run_is_resumed_under_every_plan(trial, plan, workers):
    """The same under every plan, and under each second one with loader workers."""
    assert trial(100 + PLANS.index(plan) + 10 * workers, plan=plan, workers=workers).found == []


@pytest.mark.slow
@pytest.mark.parametrize("number", range(2))  # without loader workers, and with one
def test_a_killed_process_of_its_own_is_resumed(trial, number):
    """The same where every process imports everything anew."""
    assert trial(200 + number, workers=number % 2, real=True).found == []


def kill_after(process, run, step):
    """Kill a run when it has saved an update."""
    process.until(lambda: newest_step(run) >= step, what=f"update {step} was saved")
    process.send(signal.SIGKILL)
    assert process.end().code == -signal.SIGKILL


def test_a_resume_within_the_first_epoch(start, run, data, tmp_path):
    """What the first epoch did before the kill is not done again, and not lost."""
    options = train_options(data, tmp_path / "run", save_every=7, epochs=1)
    run(*train_options(data, tmp_path / "whole", save_every=7, epochs=1)).check_done()
    kill_after(start(*options), tmp_path / "run", 7)
    saved = newest_step(tmp_path / "run")
    assert 7 <= saved < UPDATES

    resumed = run("train", "--resume", tmp_path / "run")

    resumed.check_done()
    check_same_run(tmp_path / "run", tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        ["--accumulate", "3"],
        ["--batch-tokens", "40", "--pack"],
        ["--batch-tokens", "40", "--fixed-shapes"],
        ["--plan", "interval", "--loss-interval", "7"],
        ["--schedule", "cosine"],
        ["--val-interval", "2"],
        ["--average", "1"],
        ["--precision", "bf16"],
        ["--keep", "1"],
        ["--save-every", "1"],
    ],
    ids=" ".join,
)
def test_settings_of_a_run(start, run, data, tmp_path, more):
    """A kill within an epoch changes nothing under settings that the position depends on."""
    run(*train_options(data, tmp_path / "whole"), *more).check_done()
    options = [*train_options(data, tmp_path / "run"), *more]
    kill_after(start(*options), tmp_path / "run", 14 if "--accumulate" not in more else 5)

    run("train", "--resume", tmp_path / "run").check_done()

    check_same_run(tmp_path / "run", tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after"),
    [(["--workers", 0], ["--workers", 2]), (["--workers", 2], ["--workers", 0])],
)
def test_a_resume_with_other_workers(start, run, data, finished, tmp_path, before, after):
    """The number of workers may change between two processes of a run, and no bit does."""
    options = [*train_options(data, tmp_path / "run"), *before]
    kill_after(start(*options), tmp_path / "run", 40)

    run("train", "--resume", tmp_path / "run", *after).check_done()

    check_same_run(tmp_path / "run", finished)


@pytest.mark.slow
@pytest.mark.parametrize("plan", ["blocking", "four-stream", "captured"])
def test_a_resume_under_another_plan(start, run, data, finished, tmp_path, plan):
    """The plan may change as well."""
    kill_after(start(*train_options(data, tmp_path / "run")), tmp_path / "run", 40)

    run("train", "--resume", tmp_path / "run", "--plan", plan).check_done()

    check_same_run(tmp_path / "run", finished)


def test_what_a_run_keeps(finished):
    """Three states, the newest of the last update; nothing is half-written."""
    assert len(checkpoints(finished)) == 3
    assert newest_step(finished) == 3 * UPDATES
    left = [path.name for path in finished.rglob("*") if path.name.endswith(".tmp")]
    assert left == []


@pytest.mark.slow
def test_a_moved_run_is_resumed(start, run, data, finished, tmp_path):
    """A run folder that was moved goes on from where it is."""
    kill_after(start(*train_options(data, tmp_path / "run")), tmp_path / "run", 40)
    moved = shutil.move(tmp_path / "run", tmp_path / "moved")

    run("train", "--resume", moved).check_done()

    check_same_run(tmp_path / "moved", finished)


def test_a_run_that_is_killed_before_it_saved(start, run, data, tmp_path):
    """Without any checkpoint a resume begins anew or says in one line that nothing is there."""
    process = start(*train_options(data, tmp_path / "run", save_every=100_000))
    config = tmp_path / "run" / "config.yaml"
    process.until(config.exists, what="the run folder was made")
    process.send(signal.SIGKILL)
    process.end()

    resumed = run("train", "--resume", tmp_path / "run")

    if resumed.code:
        resumed.check_refused("run")
    else:
        resumed.check_done()
