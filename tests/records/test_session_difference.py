"""Two sessions are compared: which findings are the same, which are new, which are gone."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st

from doctor.any_session import sessions
from gapless.records.comparison import Spread
from gapless.records.session_difference import SessionDifference
from gapless.report.difference_text import verdict_of
from made_up_session import ITEM, LOADER, PRINT, UNKNOWN, made_up_session


def session(*findings):
    return replace(made_up_session(num_steps=1), findings=findings)


def difference(before, after):
    return SessionDifference.of(session(*before), session(*after))


def at(finding, line, **changed):
    return replace(finding, site=replace(finding.site, line=line, **changed))


@given(sessions, sessions)
@settings(deadline=None, max_examples=25)
def test_each_finding_is_in_one_place(before, after):
    """It is kept, gone or new, whatever the sessions are."""
    found = SessionDifference.of(before, after)

    assert Counter(map(repr, before.findings)) == Counter(
        map(repr, [*(one for one, _ in found.kept), *found.gone])
    )
    assert Counter(map(repr, after.findings)) == Counter(
        map(repr, [*(one for _, one in found.kept), *found.new])
    )
    assert all(one.code == other.code for one, other in found.kept)


@given(sessions)
@settings(deadline=None, max_examples=25)
def test_a_session_does_not_differ_from_itself(session):
    """Nothing is new, gone or changed."""
    found = SessionDifference.of(session, session)

    assert (found.new, found.gone, found.changed) == ((), (), ())


@given(sessions, st.integers(1, 100))
@settings(deadline=None, max_examples=25)
def test_lines_that_have_moved_are_known_by_their_text(session, by):
    """A line was put in above; those that have a text are the same all the same."""
    with_text = [one for one in session.findings if one.site is not None and one.site.source]
    moved = [at(one, one.site.line + by) for one in with_text]
    found = SessionDifference.of(
        replace(session, findings=tuple(with_text)), replace(session, findings=tuple(moved))
    )

    assert (found.new, found.gone) == ((), ())


def test_of_two_lines_with_one_text_the_upper_stays_the_upper():
    """Lines moved down by three; the order in which findings are reported says nothing."""
    found = difference([at(ITEM, 10), at(ITEM, 50)], [at(ITEM, 53), at(ITEM, 13)])

    assert [(one.site.line, other.site.line) for one, other in found.kept] == [(10, 13), (50, 53)]


def test_a_line_that_stayed_is_not_taken_for_one_that_moved():
    """The upper of two equal lines was mended, the lower has its number still."""
    found = difference([at(ITEM, 10), at(ITEM, 50)], [at(ITEM, 50)])

    assert [one.site.line for one in found.gone] == [10]


def test_a_text_that_is_in_two_files_stays_in_its_file():
    """Both have moved, and the order of files is another one."""
    found = difference(
        [at(ITEM, 10, path="a.py"), at(ITEM, 20, path="b.py")],
        [at(ITEM, 11, path="b.py"), at(ITEM, 12, path="a.py")],
    )

    assert [(one.site.path, other.site.path) for one, other in found.kept] == [
        ("a.py", "a.py"),
        ("b.py", "b.py"),
    ]


def test_another_text_on_the_same_line_is_another_finding():
    """Where the text is known, the number alone says nothing."""
    found = difference([ITEM], [replace(ITEM, site=replace(ITEM.site, source="x.item()"))])

    assert (len(found.kept), len(found.gone), len(found.new)) == (0, 1, 1)


def test_a_file_that_was_renamed_has_the_same_findings():
    """The text of the line is the same."""
    found = difference([ITEM], [at(ITEM, 7, path="other.py")])

    assert len(found.kept) == 1


def test_without_text_the_number_of_the_line_counts():
    """As in sessions that hold no source."""
    bare = at(ITEM, 10, source="")
    found = difference([bare, at(ITEM, 20, source="")], [bare, at(ITEM, 21, source="")])

    assert [one.site.line for one, _ in found.kept] == [10]
    assert [one.site.line for one in found.gone] == [20]
    assert [one.site.line for one in found.new] == [21]


def test_findings_without_a_line_are_known_by_their_call():
    """They have nothing else."""
    other = replace(UNKNOWN, call="cudaEventSynchronize")
    found = difference([UNKNOWN], [other, replace(UNKNOWN, waited_ms=9.0)])

    assert len(found.changed) == 1
    assert found.new == (other,)


def test_only_a_cost_that_clearly_differs_is_a_change():
    """Two runs of one script differ by a few percent, and small costs by more."""
    found = difference(
        [ITEM, LOADER, PRINT],
        [
            replace(ITEM, exposed_ms=1.99),
            replace(LOADER, exposed_ms=0.3),
            replace(PRINT, waited_ms=0.05),
        ],
    )

    assert [one.code for one, _ in found.changed] == [LOADER.code]


def test_the_speedup_is_clear_only_where_the_times_lie_apart():
    """Step times before and after."""
    session = made_up_session(num_steps=2)
    mended = made_up_session(num_steps=2, mended=True)
    found = SessionDifference.of(session, mended)

    assert found.speedup == session.steps.wall_ms.median / mended.steps.wall_ms.median
    assert found.speedup > 1.0
    assert found.is_clear
    assert not SessionDifference.of(session, session).is_clear
    assert SessionDifference.of(session, replace(mended, steps=None)).speedup is None


@pytest.mark.parametrize(("before", "after"), [(0.0, 1.0), (1.0, 0.0), (0.0, 0.0)])
def test_a_clock_that_stood_still_gives_no_speedup(before, after):
    """A step of no time cannot be compared, and its text says nothing of times."""
    sessions = [
        replace(session(), steps=replace(session().steps, wall_ms=Spread.of([ms])))
        for ms in (before, after)
    ]
    found = SessionDifference.of(*sessions)

    assert found.speedup is None
    assert verdict_of(found) == "Times of steps are not known of both runs."
