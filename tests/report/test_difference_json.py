"""What changed between two sessions, for scripts."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings

from doctor.any_session import sessions
from gapless.records.session_difference import SessionDifference
from gapless.report.difference_json import difference_json
from made_up_session import COPY, ITEM, LOADER, UNKNOWN, made_up_session


def test_findings_are_gone_new_changed_or_the_same():
    """A finding has the keys that it has in a session; a pair has it as it was and as it is."""
    made_up = made_up_session(num_steps=2)
    before = replace(made_up, findings=(ITEM, LOADER, UNKNOWN))
    after = replace(made_up, findings=(replace(LOADER, exposed_ms=0.2), UNKNOWN, COPY))

    found = json.loads(difference_json(SessionDifference.of(before, after)))

    assert (found["format"], found["version"]) == ("gapless doctor difference", 1)
    assert [one["code"] for one in found["gone"]] == ["GAP001"]
    assert [one["code"] for one in found["new"]] == ["GAP005"]
    (pair,) = found["changed"]
    assert (pair["before"]["exposed_ms"], pair["after"]["exposed_ms"]) == (0.93, 0.2)
    assert [pair["after"]["code"] for pair in found["same"]] == ["GAP021"]
    assert (found["speedup"], found["is_clear"]) == (1.0, False)
    assert found["before"]["wall_ms"]["median"] == made_up.steps.wall_ms.median


@given(sessions, sessions)
@settings(deadline=None, max_examples=20)
def test_each_finding_is_in_one_place(before, after):
    """Whatever the sessions are; and JSON has no number that is not finite."""
    text = difference_json(SessionDifference.of(before, after))
    found = json.loads(text, parse_constant=pytest.fail)

    pairs = len(found["changed"]) + len(found["same"])
    assert len(found["gone"]) + pairs == len(before.findings)
    assert len(found["new"]) + pairs == len(after.findings)
