"""What people write is captured, what is odd is refused in one line, and what is not read is not guarded."""

from __future__ import annotations

import pytest

from graphs.allow_list.harness import (
    AT,
    AUDITED,
    CALLS,
    CAPTURED,
    EITHER,
    REFUSED,
    faults_of,
    train,
    trained_eagerly,
)
from graphs.allow_list.not_yet import NOT_YET
from graphs.allow_list.odd import ODD
from graphs.allow_list.unread import UNREAD
from graphs.allow_list.written_code import CODE
from graphs.allow_list.written_state import STATE
from graphs.allow_list.written_training import TRAINING


CASES = [*STATE, *CODE, *TRAINING, *ODD, *UNREAD]

_OF_A_CASE = [
    pytest.param(
        case,
        form,
        id=f"{case.name}-{form}",
        marks=[
            pytest.mark.xfail(reason=NOT_YET[case.name], strict=False)
            for _ in range(case.name in NOT_YET and case.verdict_of(form) == case.expect)
        ],
    )
    for case in CASES
    for form in case.forms
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("allow_list")


def test_there_are_many_cases():
    """Each has a name of its own; each verdict occurs; those that are not met yet exist."""
    names = {case.name for case in CASES}

    assert len(names) == len(CASES) >= 60
    assert {case.expect for case in CASES} == {CAPTURED, REFUSED, EITHER, AUDITED}
    assert set(NOT_YET) <= names
    assert all(case.names for case in CASES if case.expect == REFUSED)


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_eager_loop_repeats_itself(case, folder):
    """And its losses are others from the change on, if the case says so."""
    eager = trained_eagerly(case, folder)
    unchanged = train(case, folder, at=None, captured=False).results

    assert train(case, folder, captured=False).results == eager
    if case.expect != REFUSED and not case.each_call and case.shows:
        assert (eager[:AT], eager[AT:CALLS]) != (unchanged[:AT], unchanged[AT:CALLS])


@pytest.mark.quick_cases(16)
@pytest.mark.parametrize(("case", "form"), _OF_A_CASE)
def test_each_case_has_its_verdict(case, form, folder):
    """No result is stale, and what is captured, refused or left unguarded is as the case says."""
    eager = trained_eagerly(case, folder)
    found = train(case, folder, form=form)

    assert faults_of(case, form, found, eager) == [], found.refusals or found.changes
