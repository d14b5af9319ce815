"""How long a run still takes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gapless.nmt.run import run_report
from gapless.nmt.run.run_report import Pace


@pytest.fixture
def run(monkeypatch):
    """A run of 100 updates that was resumed and has made its next, and a clock that a test sets."""
    made = SimpleNamespace(
        now=1000.0,
        total_updates=100,
        step=SimpleNamespace(num_updates=20, learning_rate=lambda: 0.5),
        time_limit=SimpleNamespace(seconds_left=None),
    )
    monkeypatch.setattr(run_report, "perf_counter", lambda: made.now)
    return made


def test_the_pace_is_that_of_this_process(run):
    """From its second update on: the first one compiles and captures."""
    pace = Pace(run)
    first = pace.progress().seconds_left
    run.now, run.step.num_updates = 1010.0, 25
    found = pace.progress()

    assert first is None
    assert (found.num_updates, found.total_updates, found.learning_rate) == (25, 100, 0.5)
    assert found.seconds_left == pytest.approx(10.0 / 5 * 75)


def test_a_limit_of_time_ends_a_run_earlier(run):
    """It is known before the first update, too."""
    run.time_limit.seconds_left = 30.0
    pace = Pace(run)
    first = pace.progress().seconds_left
    run.now, run.step.num_updates = 1100.0, 30

    assert (first, pace.progress().seconds_left) == (30.0, 30.0)
    run.time_limit.seconds_left = 3000.0
    assert pace.progress().seconds_left == pytest.approx(700.0)
