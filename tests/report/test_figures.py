"""Figures as text."""

from __future__ import annotations

import pytest

from gapless.report.figures import (
    count,
    counted,
    duration,
    megabytes,
    milliseconds,
    percent,
    share,
    short_number,
    time_left,
)


@pytest.mark.parametrize(
    ("write", "value", "text"),
    [
        *((milliseconds, *row) for row in ((None, "-"), (0.004, "0.00"), (9.994, "9.99"))),
        *((milliseconds, *row) for row in ((12.34, "12.3"), (1234.5, "1,234"))),
        *((count, *row) for row in ((3.0, "3"), (0.02, "0.02"), (2.55, "2.5"), (99.6, "100"))),
        *((count, *row) for row in ((37.2, "37"), (1234.5, "1,234"))),
        *((percent, *row) for row in ((0.0, "0 %"), (0.004, "< 1 %"), (0.126, "13 %"))),
    ],
)
def test_figures_have_the_digits_that_count(write, value, text):
    """What was not measured is a dash, and what is small is not nothing."""
    assert write(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0:00:00"), (59.4, "0:00:59"), (59.6, "0:01:00"), (3600, "1:00:00"), (90061, "25:01:01")],
)
def test_durations_are_hours_minutes_seconds(seconds, text):
    """Times are rounded to the second, and nothing is ever sixty."""
    assert text == duration(seconds)


def test_sizes_are_mebibytes():
    """Sizes have separators from a thousand on."""
    assert megabytes(2 << 30) == "2,048 MiB"


def test_a_share_is_a_percentage():
    """A share that does not exist is `-`, not zero."""
    assert [share(None), share(0.0), share(0.125)] == ["-", "0.0%", "12.5%"]


def test_nouns_agree_with_their_numbers():
    """One is singular, all other numbers are plural."""
    assert [counted(n, "graph") for n in (0, 1, 2)] == ["0 graphs", "1 graph", "2 graphs"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.2, "0:00"),
        (-3.0, "0:00"),
        (59.6, "1:00"),
        (3599, "59:59"),
        (3600, "1:00:00"),
        (11565, "3:12:45"),
        (86400 * 3 + 3600, "3d01h"),
    ],
)
def test_a_time_that_is_left_is_short(seconds, text):
    """Days have no minutes, and a time that has passed already is none."""
    assert text == time_left(seconds)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (7.6, "8"),
        (999.4, "999"),
        (999.6, "1.0k"),
        (8230, "8.2k"),
        (9960, "10k"),
        (82_345, "82k"),
        (999_600, "1.0M"),
        (3.2e9, "3.2G"),
        (5e12, "5T"),
    ],
)
def test_a_short_number_has_at_most_four_characters(number, text):
    """With a unit, and two digits at least where there is one."""
    assert text == short_number(number)
