"""A run that is killed at any moment ends, once it is resumed, as if nothing had been."""

from __future__ import annotations

import signal

import pytest

from faults.runs import UPDATES, check_same_run, checkpoints, newest_step, train_options
from faults.trials import run_trial


pytestmark = pytest.mark.xdist_group("processes: kill")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "plan", "workers", "real"),
    [
        (3, "gapless", 2, False),
        (100, "blocking", 0, False),
        (113, "four-stream", 2, False),
        (115, "captured", 2, False),
        (106, "auto", 0, False),
        (201, "gapless", 1, True),  # every process imports everything anew
    ],
)
def test_a_killed_run_is_resumed(launcher, data, finished, tmp_path, number, plan, workers, real):
    """Weights, state, history and summary are those of a run that nobody killed."""
    trial = run_trial(
        launcher,
        number=number,
        data=data,
        reference=finished,
        folder=tmp_path,
        plan=plan,
        workers=workers,
        real=real,
    )

    assert trial.found == []


def kill_after(process, run, step):
    """Kill a run when it has saved an update."""
    process.until(lambda: newest_step(run) >= step, what=f"update {step} was saved")
    process.send(signal.SIGKILL)
    assert process.end().code == -signal.SIGKILL


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        ["--accumulate", "3", "--schedule", "cosine"],
        ["--batch-tokens", "40", "--pack", "--precision", "bf16"],
        ["--batch-tokens", "40", "--fixed-shapes", "--keep", "1"],
        ["--plan", "interval", "--loss-interval", "7", "--val-interval", "2"],
        ["--save-every", "1", "--average", "1"],
    ],
    ids=" ".join,
)
def test_settings_of_a_run(start, run, data, tmp_path, more):
    """A kill within an epoch changes nothing under settings that the position depends on."""
    run(*train_options(data, tmp_path / "whole", epochs=2), *more).check_done()
    options = [*train_options(data, tmp_path / "run", epochs=2), *more]
    kill_after(start(*options), tmp_path / "run", 14 if "--accumulate" not in more else 5)

    run("train", "--resume", tmp_path / "run").check_done()

    check_same_run(tmp_path / "run", tmp_path / "whole")


def test_what_a_run_keeps(finished):
    """Three states, the newest of the last update; nothing is half-written."""
    assert len(checkpoints(finished)) == 3
    assert newest_step(finished) == 3 * UPDATES
    left = [path.name for path in finished.rglob("*") if path.name.endswith(".tmp")]
    assert left == []


@pytest.mark.slow
def test_a_run_that_is_killed_before_it_saved(start, run, data, tmp_path):
    """Without any checkpoint a resume says in one line that nothing is there."""
    process = start(*train_options(data, tmp_path / "run", save_every=100_000))
    config = tmp_path / "run" / "config.yaml"
    process.until(config.exists, what="the run folder was made")
    process.send(signal.SIGKILL)
    process.end()

    run("train", "--resume", tmp_path / "run").check_refused("holds no state")
