"""Progress as lines, where there is no terminal."""

from __future__ import annotations

from gapless.cli.step_lines import StepLines


def test_a_title_is_written_at_once_and_then_seldom(capsys):
    """A hundred steps of a title are one line; the next title is another."""
    lines = StepLines(every_seconds=3600.0)
    for step in range(100):
        lines.show("first", step, of=100)
    lines.show("second", 0, of=5)
    lines.close()

    written = capsys.readouterr().err.splitlines()
    assert [line.partition("  ")[2] for line in written] == ["first  0/100", "second  0/5"]


def test_a_long_title_is_written_again(capsys):
    """Lines of one title come again and again."""
    lines = StepLines(every_seconds=0.0)
    for step in range(3):
        lines.show("first", step, of=3)

    assert capsys.readouterr().err.count("first") == 3


def test_short_work_may_stay_silent(capsys):
    """Nothing is written before it has taken a while."""
    lines = StepLines(every_seconds=3600.0, at_once=False)
    lines.show("first", 1, of=2)
    lines.show("second", 2, of=2)

    assert capsys.readouterr().err == ""
