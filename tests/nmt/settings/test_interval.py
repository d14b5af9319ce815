"""How often a run saves its state."""

from __future__ import annotations

import pytest

from gapless.errors import UserError
from gapless.nmt.settings import interval
from gapless.nmt.settings.config import make_config
from gapless.nmt.settings.interval import DueClock, Interval


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("200", Interval(updates=200)),
        ("30s", Interval(seconds=30.0)),
        ("10min", Interval(seconds=600.0)),
        ("1.5 h", Interval(seconds=5400.0)),
    ],
)
def test_an_interval_is_updates_or_a_time(text, expected):
    """A number alone counts updates; a unit makes it a time."""
    assert Interval.of(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "0s",
        "-3",
        "1.5",
        "ten",
        "10 days",
        "nan",
        "1e3",
        "9" * 310,
        "9" * 310 + "h",
        "9" * 308 + "h",
    ],
)
def test_what_is_no_interval_is_refused(text):
    """Before a run begins, with the setting's name and what it may be."""
    with pytest.raises(UserError, match="`save_every` must be a number of updates such as 200"):
        make_config({"save_every": text})


def test_a_state_is_due_at_multiples_of_the_interval():
    """Also if one was saved in between, as at the end of an epoch."""
    clock = DueClock(Interval(updates=20), updates=7)
    due = []
    for updates in range(8, 100):
        if clock.is_due(updates):
            due.append(updates)
        if clock.is_due(updates) or updates == 50:
            clock.done(updates)

    assert due == [20, 40, 60, 80]


def test_a_state_is_due_after_a_time(monkeypatch):
    """Since the last one was saved."""
    now = [100.0]
    monkeypatch.setattr(interval, "perf_counter", lambda: now[0])
    clock = DueClock(Interval(seconds=10.0), updates=0)

    now[0] = 109.0
    assert not clock.is_due(5)
    now[0] = 110.0
    assert clock.is_due(6)
    clock.done(6)
    assert not clock.is_due(7)


def test_a_state_that_is_owed_is_due_at_once():
    """Because another was being written when it was due."""
    clock = DueClock(Interval(updates=20), updates=0)
    clock.owe()

    assert clock.is_due(1)
    clock.done(1)
    assert not clock.is_due(2)
