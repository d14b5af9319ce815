"""Signals end a run with what it did saved, or make it save; lost output does not end it."""

from __future__ import annotations

import os
import pty
import random
import signal
import termios
import time

import pytest

from faults.injected import BLOCKED_FSYNC, SLOW
from faults.processes import LIMIT_OF_FAULTS
from faults.runs import UPDATES, check_same_run, newest_step, train_options


pytestmark = pytest.mark.xdist_group("processes: signals")

CODES = {signal.SIGTERM: 143, signal.SIGINT: 130, signal.SIGHUP: 129}


@pytest.fixture
def training(start, data, tmp_path):
    """Start a slow run that nothing but its updates keeps busy; return it when it has saved."""

    def call(*more, save_every=20, before="", until=20, **options):
        arguments = [*train_options(data, tmp_path / "run", save_every=save_every), *more]
        process = start(*arguments, before=SLOW + before, **options)
        if until:
            process.until(
                lambda: newest_step(tmp_path / "run") >= until, what=f"update {until} was saved"
            )
        return process

    return call


@pytest.mark.slow
def test_saving_on_demand(training, finished, tmp_path):
    """SIGUSR1 saves at once and the run goes on, with the bits of one that did not save."""
    run = tmp_path / "run"
    process = training(save_every=100_000, until=0)
    process.until(lambda: "batches" in process.out, what="the run began")
    before = newest_step(run)

    # A signal before the first update may find nothing to save.
    while not newest_step(run) and process.is_running:
        process.send(signal.SIGUSR1)
        time.sleep(0.1)

    assert before < newest_step(run) < UPDATES
    process.end().check_done()
    check_same_run(run, finished)


@pytest.mark.slow
def test_a_second_interrupt_while_the_first_saves(training, tmp_path):
    """A save that does not end holds nobody who asks twice."""
    process = training("--grace", 500, before=BLOCKED_FSYNC)
    (tmp_path / "block").touch()
    process.send(signal.SIGINT)
    process.until((tmp_path / "blocked").exists, what="the save began")

    # Two signals that come together may be one press of Ctrl-C.
    time.sleep(0.5)
    process.send(signal.SIGINT)
    ended = process.end(limit=LIMIT_OF_FAULTS)

    assert ended.code == 130
    ended.check_no_traceback()


@pytest.mark.slow
def test_a_save_that_outlasts_the_grace(training, run, finished, tmp_path):
    """A run ends when its grace is over, names what it has, and goes on from there."""
    process = training("--grace", 1, before=BLOCKED_FSYNC)
    (tmp_path / "block").touch()

    process.send(signal.SIGTERM)
    ended = process.end(limit=LIMIT_OF_FAULTS)

    assert ended.code == CODES[signal.SIGTERM]
    ended.check_no_traceback()
    assert f"gapless train --resume {tmp_path / 'run'}" in ended.err
    (tmp_path / "block").unlink()
    run("train", "--resume", tmp_path / "run").check_done()
    check_same_run(tmp_path / "run", finished)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_two_interrupts_at_any_moment(start, data, tmp_path, seed):
    """From its first moment to its last a run ends after two interrupts."""
    draw = random.Random(seed)
    workers = ["--workers", draw.choice([0, 2])]
    process = start(*train_options(data, tmp_path / "run"), *workers, before=SLOW)

    time.sleep(draw.random() * 2.5)
    process.send_all(signal.SIGINT)
    time.sleep(draw.choice([0.3, 0.5, 1.0]))
    process.send_all(signal.SIGINT)
    ended = process.end(limit=LIMIT_OF_FAULTS)

    assert ended.code in (130, 0)
    assert ended.code == 130 or "written to" in ended.out
    ended.check_no_traceback()


@pytest.mark.slow
@pytest.mark.parametrize(("number", "delay"), [(signal.SIGINT, 0.3), (signal.SIGTERM, 1.8)])
def test_a_signal_while_a_process_starts(start, data, tmp_path, number, delay):
    """Before there is anything to save, a signal ends the process with its code and no traceback."""
    process = start(*train_options(data, tmp_path / "run"), real=True)

    time.sleep(delay)
    process.send(number)
    ended = process.end(limit=LIMIT_OF_FAULTS)

    # Python itself has not always come to a line of ours.
    assert ended.code in (CODES[number], -number, 0)
    if delay > 0.5:
        ended.check_no_traceback()


@pytest.mark.slow
def test_output_that_nobody_reads_any_more(training, finished, tmp_path):
    """`gapless train 2>&1 | head -1` trains to its end."""
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb") as pipe:
        process = training(stdout=pipe, stderr=pipe, until=0)
    with os.fdopen(reading, "rb") as pipe:
        assert pipe.readline()

    assert process.end().code == 0
    check_same_run(tmp_path / "run", finished)


@pytest.mark.slow
def test_a_terminal_that_is_gone(training, finished, tmp_path):
    """A terminal that was closed does not end a run that ignores the hangup."""
    master, slave = pty.openpty()
    with os.fdopen(slave, "wb") as terminal:
        process = training(stdout=terminal, stderr=terminal, ignored=["SIGHUP"], until=0)
    os.read(master, 10)
    os.close(master)

    assert process.end().code == 0
    check_same_run(tmp_path / "run", finished)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "times"), [(signal.SIGTERM, 1), (signal.SIGINT, 2)])
def test_a_terminal_is_left_as_it_was(training, tmp_path, number, times):
    """The cursor is shown again, and no mode of the terminal has changed."""
    master, slave = pty.openpty()
    before = termios.tcgetattr(slave)
    os.set_blocking(master, False)
    with os.fdopen(os.dup(slave), "wb") as terminal:
        process = training(stdout=terminal, stderr=terminal)
    seen = b""

    for _ in range(times):
        process.send(number)
    while process.is_running:
        try:
            seen += os.read(master, 1 << 16)
        except BlockingIOError:
            time.sleep(0.01)
    process.end(limit=LIMIT_OF_FAULTS)

    with pytest.raises(BlockingIOError):
        while True:
            seen += os.read(master, 1 << 16)
    assert seen.count(b"\x1b[?25l") <= seen.count(b"\x1b[?25h")
    assert termios.tcgetattr(slave) == before
    assert b"Traceback" not in seen
    os.close(slave)
    os.close(master)
