"""Tables and figures as text."""

from __future__ import annotations

import pytest

from gapless.report.text import columns, counted, duration, megabytes, share


def test_rows_are_left_and_right_aligned():
    """The first column stands to the left, all others to the right."""
    assert columns([("a", "1"), ("bbb", "22")]) == ["a     1", "bbb  22"]


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
    """A share that does not exist is n/a, not zero."""
    assert [share(None), share(0.0), share(0.125)] == ["n/a", "0.0%", "12.5%"]


def test_nouns_agree_with_their_numbers():
    """One is singular, all other numbers are plural."""
    assert [counted(n, "graph") for n in (0, 1, 2)] == ["0 graphs", "1 graph", "2 graphs"]
