"""The screens in docs/terminal.md, taken once more."""

from __future__ import annotations

import re

import pytest

from faults.runs import BATCHES, SIZES
from gapless.report.terminal_text import display_width
from terminal.screenshots import COLUMNS, FULL_BAR, HEADING, PAGE, shots
from terminal.sessions import ALL_DRAWN


# What each screen has to show, by its title.
SHOWN = {
    "A run after some epochs": FULL_BAR.pattern,
    "The same at its end": r"written to runs/train; try: gapless translate runs/train",
    "A run that was interrupted by Ctrl-C": r"  gapless train --resume interrupted",
    "A mistake in what was typed": r"gapless: error: argument --seed: ",
}


@pytest.mark.slow
def test_screens_are_as_the_page_shows_them(tmp_path, launcher):
    """Of a small model: the same moments, each of which shows what it is for, and no line is wider than 80 columns."""
    page = PAGE.read_text(encoding="utf-8").partition(HEADING)[2]
    taken = {
        shot.title: shot
        for shot in shots(tmp_path, *SIZES, *BATCHES, "--epochs", "12", before=ALL_DRAWN)
    }

    assert list(SHOWN) == list(taken)
    assert list(SHOWN) == re.findall(r"^(.+):\n\n```$", page, re.MULTILINE)
    for title, pattern in SHOWN.items():
        shot = taken[title]
        assert any(re.match(pattern, line) for line in shot.screen), title
        assert shot.wrapped == [], title
        assert f"```\n$ {shot.command.split(' --')[0]}" in page


def test_the_screens_of_the_page_fit():
    """Whoever edits them by hand is told."""
    page = PAGE.read_text(encoding="utf-8").partition(HEADING)[2]
    screens = re.findall(r"^```\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)

    assert len(screens) == len(SHOWN)
    lines = [line for screen in screens for line in screen.splitlines()]
    assert [line for line in lines if display_width(line) > COLUMNS] == []
