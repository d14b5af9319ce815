"""What a terminal shows of two sessions."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings

from doctor.any_session import sessions
from gapless.records.comparison import Spread
from gapless.records.session_difference import SessionDifference
from gapless.report.difference_text import difference_text
from made_up_session import COPY, ITEM, LOADER, UNKNOWN, made_up_session


def text_of(before, after, **options):
    return difference_text(SessionDifference.of(before, after), **options)


def session(*findings, ms=(10.0, 10.1), **changed):
    made_up = made_up_session(num_steps=2)
    steps = replace(made_up.steps, wall_ms=Spread.of(ms))
    return replace(made_up, findings=findings, steps=steps, **changed)


@given(sessions, sessions)
@settings(deadline=None, max_examples=20)
def test_any_two_sessions_have_a_text_that_a_terminal_only_shows(before, after):
    """No name in it can move the cursor."""
    text = text_of(before, after)

    assert all(line.isprintable() for line in text.splitlines())


@pytest.mark.parametrize(
    ("ms", "said"),
    [
        ((8.0, 8.1), "A step takes 20 % less time than before: 10.1 ms before, 8.05 ms after."),
        ((12.0, 12.3), "A step takes 21 % longer than before: 10.1 ms before, 12.2 ms after."),
        ((9.9, 10.3), "A step takes about as long as before: 10.1 ms before, 10.1 ms after."),
    ],
)
def test_the_first_line_says_what_became_of_the_step(ms, said):
    """Where times do not lie apart, nothing is claimed."""
    assert text_of(session(), session(ms=ms)).splitlines()[0] == said


def test_findings_are_gone_new_changed_or_as_before():
    """Each with its cost; those that are as before are counted."""
    text = text_of(
        session(ITEM, LOADER, UNKNOWN), session(replace(LOADER, exposed_ms=0.2), UNKNOWN, COPY)
    )

    assert "Gone: 1 finding\n  GAP001  train.py:57 in train\n" in text
    assert "      1 a step, waited 6.84 ms, idle 1.92 ms\n" in text
    assert "New: 1 finding\n  GAP005  train.py:49 in train\n" in text
    assert "Changed: 1 finding\n  GAP016  train.py:47 in train\n" in text
    assert "      before: 1 a step, waited 1.10 ms, idle 0.93 ms\n" in text
    assert "      after:  1 a step, waited 1.10 ms, idle 0.20 ms\n" in text
    assert text.endswith("\n1 finding as before.\n")


def test_two_devices_are_not_compared_in_silence():
    """Times of two cards differ for other reasons."""
    assert "devices differ" in text_of(session(), session(device="NVIDIA A100"))
    assert "devices differ" not in text_of(session(), session())


def test_without_steps_nothing_is_said_of_their_time():
    """A session may have seen none."""
    assert text_of(session(), replace(session(), steps=None)).startswith(
        "Times of steps are not known of both runs.\n"
    )


def test_what_the_syntax_alone_shows_has_no_cost():
    """Nothing was counted there, which is not the same as never."""
    unseen = replace(ITEM, certainty="maybe", per_step=None, waited_ms=None, exposed_ms=None)

    text = text_of(session(unseen), session())

    assert "      from the syntax, not timed\n" in text
    assert "0 a step" not in text
