"""Runs in a real terminal: the bar fits, and whatever ends a run leaves the terminal in order."""

from __future__ import annotations

import os
import re
import signal
import time

import pytest

from faults.processes import all_processes
from faults.runs import SIZES, write_data
from terminal.sessions import ALL_DRAWN, Session


pytestmark = pytest.mark.xdist_group("processes: terminal")

# A run whose validation never ends, as if a disk or a device did not answer.
STUCK = """
import time
from gapless.nmt.run import validation
validation.validate = lambda *_, **__: time.sleep(600)
"""


# The thread that hears of signals is slow between two writes, and meanwhile the bar is drawn.
SLOW_WRITES = """
import os, time
from gapless.cli import progress
progress.BAR_SECONDS = 0.0
write, queued = os.write, progress.TrainingProgress.batch_queued
def write_slowly(descriptor, text):
    done = write(descriptor, text)
    time.sleep(1.0 if descriptor == 2 else 0.0)
    return done
def queue_slowly(*arguments, **named):
    time.sleep(0.1)
    queued(*arguments, **named)
os.write, progress.TrainingProgress.batch_queued = write_slowly, queue_slowly
"""

# It hears of them when all is said.
LATE = """
import time
from gapless.cli.signals import Signals
receive = Signals._received
def late(*arguments):
    found = receive(*arguments)
    time.sleep(5.0 if found else 0.0)
    return found
Signals._received = late
"""

BOTH_WIDTHS = pytest.mark.parametrize("columns", [80, pytest.param(40, marks=pytest.mark.slow)])


@pytest.fixture
def session(tmp_path, launcher):
    """Start a run in a terminal; what is left of it is ended with the test."""
    write_data(tmp_path / "data", train=2400)
    opened = []

    def start(*more, **how):
        # No long path is printed, which could not be broken.
        arguments = ["train", "--data", "data", "--run-dir", "run", "--store", "stores"]
        sizes = [*SIZES, "--batch-size", "8", "--workers", "0"]
        started = Session(*arguments, *sizes, *more, folder=tmp_path, **how)
        opened.append(started)
        return started

    yield start
    for each in opened:
        each.close()


def bar_of(screen):
    """Return the line of the cursor if it holds the bar, and nothing else."""
    line = screen.line()
    return line if re.fullmatch(r"(epoch )?\d+/\d+( [=-]+)?  .*loss .*ETA [\d:]+", line) else ""


def until_bar(session):
    session.until(bar_of, what="a bar with the time left")


def check_in_order(screen):
    """Check that the cursor is there, in a line of its own, and that no bar is left."""
    assert screen.is_cursor_visible
    assert screen.column == 0
    assert screen.line() == ""
    assert [line for line in screen.lines() if "ETA" in line or "validating" in line] == []


@BOTH_WIDTHS
def test_the_bar_of_a_run_fits_its_terminal(session, columns):
    """Every bar is in one line, shows what there is room for, and is gone at the end."""
    run = session("--epochs", "2", "--batch-size", "64", columns=columns, before=ALL_DRAWN)
    bars = []

    def look(screen):
        if bar_of(screen):
            bars.append(bar_of(screen))
            assert screen.row not in screen.wrapped
        return any(line.startswith("translating") for line in screen.lines())

    run.until(look, what="the test sentences")

    assert run.wait() == 0
    check_in_order(run.screen)
    assert max(map(len, bars)) <= columns - 3
    assert re.search(r"loss \d+\.\d\d  mean \d+\.\d\d", bars[-1])
    if columns >= 80:
        assert re.search(r"lr \S+  \S+ tok/s .*BLEU \d+\.\d  ETA", bars[-1])
    shown = run.screen.lines()
    assert len([line for line in shown if re.match(r"epoch \d/2  loss", line)]) == 2
    assert len([line for line in shown if line.startswith("host waits")]) == 1


@BOTH_WIDTHS
def test_an_interrupt_leaves_the_terminal_in_order(session, columns):
    """Ctrl-C is typed while the bar is there; its ^C breaks no line, and does not stay behind one."""
    run = session("--epochs", "1000", columns=columns)
    until_bar(run)
    run.press("\x03")

    assert run.wait() == 130
    check_in_order(run.screen)
    assert run.screen.lines()[-1] == "  gapless train --resume run"
    # At most the ^C itself is left, in front of what was printed next.
    assert [line for line in run.screen.lines() if "loss" in line or "^C" in line[2:]] == []


@pytest.mark.slow
@pytest.mark.parametrize("before", ["", SLOW_WRITES, LATE], ids=["", "slow writes", "late"])
def test_a_signal_leaves_the_terminal_in_order(session, before):
    """SIGTERM saves, says how to go on, and takes the bar away, whatever a busy machine runs first."""
    run = session("--epochs", "20", before=before)
    until_bar(run)
    run.send(signal.SIGTERM)

    assert run.wait() == 143
    check_in_order(run.screen)
    assert run.screen.lines()[-1] == "  gapless train --resume run"


@pytest.mark.slow
def test_a_killed_worker_leaves_the_terminal_in_order(session):
    """The error begins on a line of its own, where the bar was."""
    run = session("--epochs", "1000", "--workers", "1")
    until_bar(run)
    for number, parent, _ in all_processes():
        if parent == run.pid:
            os.kill(number, signal.SIGKILL)

    assert run.wait() == 1
    check_in_order(run.screen)
    assert "\ngapless: error: " in "\n".join(run.screen.lines())


@pytest.mark.slow
def test_a_second_interrupt_leaves_the_terminal_in_order(session):
    """Also where a thread ends a process whose main thread is stuck."""
    run = session("--epochs", "1", "--batch-size", "64", before=STUCK)
    run.until(lambda screen: "validating" in screen.line(), what="the validation")
    run.press("\x03")
    run.until(lambda screen: "stopping" in "\n".join(screen.lines()), what="the first ^C")
    # Two within a quarter of a second count as one.
    time.sleep(0.5)
    run.press("\x03")

    assert run.wait() == 130
    check_in_order(run.screen)
    assert "gapless: error: stopped at once" in "\n".join(run.screen.lines())


@pytest.mark.slow
def test_a_killed_run_leaves_the_cursor(session):
    """Nobody can take the bar away then, but the cursor was never hidden."""
    run = session("--epochs", "1000")
    until_bar(run)
    run.send(signal.SIGKILL)

    assert run.wait() == -signal.SIGKILL
    assert run.screen.is_cursor_visible
    assert run.screen.row not in run.screen.wrapped


def test_a_dry_run_fits_its_terminal(session):
    """A line that is longer goes on in the next one, broken at a space."""
    run = session("--dry-run", "--epochs", "2")

    assert run.wait() == 0
    assert run.screen.wrapped == set()
    assert any(line.startswith("time: about") for line in run.screen.lines())


def test_the_table_of_plans_fits_a_terminal(tmp_path, launcher):
    """In 80 columns."""
    with Session("plans", folder=tmp_path) as run:
        assert run.wait() == 0
        assert run.screen.wrapped == set()
