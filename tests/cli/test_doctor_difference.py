"""`gapless doctor --diff`: two saved sessions, as text and for scripts."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from gapless.report.json_reports import session_json
from made_up_session import COPY, ITEM, made_up_session


@pytest.fixture
def saved(tmp_path):
    """Return the names of two saved sessions; the second has another finding."""
    made_up = made_up_session(num_steps=1)
    names = []
    for name, finding in (("before", ITEM), ("after", COPY)):
        path = tmp_path / f"{name}.session"
        path.write_text(session_json(replace(made_up, findings=(finding,))), encoding="utf-8")
        names.append(str(path))
    return names


def test_two_sessions_are_compared_as_text_or_as_json(gapless, saved):
    """Both say what is gone and what is new."""
    text = gapless("doctor", "--diff", *saved)
    found = json.loads(gapless("doctor", "--format", "json", "--diff", *saved).out)

    assert "Gone: 1 finding\n  GAP001" in text.out
    assert "New: 1 finding\n  GAP005" in text.out
    assert [one["code"] for one in found["gone"]] == ["GAP001"]
    assert [one["code"] for one in found["new"]] == ["GAP005"]


def test_a_file_that_is_no_session_is_refused_in_one_line(gapless, saved, tmp_path):
    """Also one that is no text at all."""
    other = tmp_path / "other"
    other.write_bytes(bytes(range(256)))
    outcome = gapless("doctor", "--diff", saved[0], str(other))

    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith(f"gapless: error: {other} is not a whole session of the doctor")
    assert outcome.err.count("\n") == 1


def test_two_sessions_have_no_sarif(gapless, saved):
    """It is of the findings of one."""
    outcome = gapless("doctor", "--format", "sarif", "--diff", *saved)

    assert (outcome.code, outcome.out) == (2, "")
    assert "--format sarif" in outcome.err
