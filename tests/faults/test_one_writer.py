"""One process writes a run folder; a second is refused, and the dead hold nothing."""

from __future__ import annotations

import os
import signal
import socket
import time

import pytest

from faults.injected import SLOW
from faults.runs import check_same_run, newest_step, train_options


pytestmark = pytest.mark.xdist_group("processes: one writer")


@pytest.fixture
def training(start, data, tmp_path):
    """A slow run that has saved."""

    def call(*more):
        process = start(*train_options(data, tmp_path / "run"), *more, before=SLOW)
        process.until(lambda: newest_step(tmp_path / "run") >= 20, what="an update was saved")
        return process

    return call


@pytest.mark.slow
def test_a_second_writer_is_refused(training, run, data, finished, tmp_path):
    """It is told who writes, and the first goes on as if nothing had been."""
    first = training()

    # Stopped, so that it still holds the lock however slow the others are.
    first.send(signal.SIGSTOP)
    again = run("train", "--resume", tmp_path / "run")
    new = run(*train_options(data, tmp_path / "run"))
    first.send(signal.SIGCONT)

    again.check_refused(socket.gethostname(), first.pid, "run")
    new.check_refused("run")
    first.end().check_done()
    check_same_run(tmp_path / "run", finished)


@pytest.mark.slow
def test_readers_of_a_run_that_trains(training, run, tmp_path):
    """Listing, verifying, translating and scoring need no lock and see whole checkpoints."""
    first = training()
    first.until((tmp_path / "run/checkpoints/best").is_dir, what="there were best weights")

    for command in (
        ["checkpoint", "list", tmp_path / "run"],
        ["checkpoint", "verify", tmp_path / "run"],
        ["translate", tmp_path / "run", "--device", "cpu", "red dog"],
    ):
        run(*command).check_done()

    first.end().check_done()


@pytest.mark.slow
def test_two_new_runs_in_one_folder(start, data, finished, tmp_path):
    """Of two that begin at once, one trains and the other is refused."""
    pair = [start(*train_options(data, tmp_path / "run")) for _ in range(2)]

    ended = sorted((process.end() for process in pair), key=lambda one: one.code)

    ended[0].check_done()
    ended[1].check_refused("run")
    check_same_run(tmp_path / "run", finished)


@pytest.mark.slow
def test_two_resumes_at_once(training, start, finished, tmp_path):
    """Of two that go on with a killed run at once, one does and the other is refused."""
    first = training()
    first.send(signal.SIGKILL)
    first.end()
    pair = [start("train", "--resume", tmp_path / "run") for _ in range(2)]

    ended = sorted((process.end() for process in pair), key=lambda one: one.code)

    ended[0].check_done()
    ended[1].check_refused("run")
    check_same_run(tmp_path / "run", finished)


@pytest.mark.slow
def test_workers_that_outlive_their_run_hold_no_lock(training, run, finished, tmp_path):
    """A worker that is stopped when its run is killed keeps nobody from going on."""
    first = training("--workers", 2)
    workers = first.children()
    assert len(workers) >= 2
    for worker in workers:
        os.kill(worker, signal.SIGSTOP)
    first.send(signal.SIGKILL)
    while first.is_running:
        time.sleep(0.002)

    resumed = run("train", "--resume", tmp_path / "run")

    resumed.check_done()
    check_same_run(tmp_path / "run", finished)
    first.stop()
