"""Tables and lines of text of a limited width."""

from __future__ import annotations

import pytest

from gapless.report.terminal_text import cut, display_width, table_lines, wrapped


def test_rows_are_left_and_right_aligned():
    """The first column stands to the left, all others to the right; Chinese takes two columns."""
    rows = [("a", "1"), ("bbb", "22"), ("中文", "三")]

    assert table_lines(rows) == ["a      1", "bbb   22", "中文  三"]
    assert table_lines(rows[:2], num_left=0) == ["  a   1", "bbb  22"]


def test_chinese_characters_take_two_columns():
    """As wide letters do; marks that are drawn over the character before them take none."""
    assert display_width("a中文\uff21e\u0301") == 8


@pytest.mark.parametrize(
    ("columns", "text"), [(0, ""), (1, "a"), (2, "a"), (3, "a中"), (4, "a中b")]
)
def test_a_cut_does_not_cut_through_a_wide_character(columns, text):
    """What is left fits."""
    assert text == cut("a中b", columns)


def test_a_long_line_is_broken_at_spaces():
    """Later lines are indented, long words stay whole, and a line that fits is left alone."""
    assert wrapped("data  中文 and more", 15, indent=6) == ["data  中文 and", "      more"]
    assert wrapped("a /a/long/path b", 8, indent=2) == ["a", "  /a/long/path", "  b"]
    assert wrapped("  two   spaces", 14) == ["  two   spaces"]
