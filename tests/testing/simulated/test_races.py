"""What the race checker reports, and how it says it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gapless.testing.simulated.history import History
from gapless.testing.simulated.races import HOST, RaceChecker


HERE = Path(__file__).name


@pytest.fixture
def checker():
    checker = RaceChecker()
    checker.add_stream("copy")
    checker.add_stream("compute")
    return checker


def access(checker, agent, kind, history, site, *, span=(0, 8)):
    if agent != HOST:
        checker.launch(agent)
    what = "copy H2D" if kind == "write" else "aten.add"
    checker.access(agent, kind, history, span, buffer="block 1", what=what, site=site)


def test_a_race_names_both_sites_the_buffer_and_the_missing_edge(checker):
    """The message says which calls would order the accesses, and where they belong."""
    history = History()
    access(checker, "copy", "write", history, "a.py:1")
    access(checker, "compute", "read", history, "b.py:2")

    assert str(checker.report.races[0]) == (
        "race on block 1: copy writes it in copy H2D at a.py:1; compute reads it in aten.add at "
        "b.py:2; nothing orders the two. Missing edge: record_event on copy after a.py:1, and "
        "wait_event on compute before b.py:2"
    )


def test_a_race_with_the_host_asks_it_to_look(checker):
    """For a race with the host, the message asks the host to see the event done."""
    history = History()
    access(checker, "copy", "write", history, "a.py:1")
    access(checker, HOST, "read", history, "b.py:2")

    assert checker.report.races[0].missing_edge == (
        "record_event on copy after a.py:1, and let the host see it done before b.py:2"
    )


def test_the_same_two_lines_are_reported_once_with_a_count(checker):
    """A race in every step is one finding with a count."""
    for _ in range(3):
        history = History()
        access(checker, "copy", "write", history, "a.py:1")
        access(checker, "compute", "read", history, "b.py:2")

    (race,) = checker.report.races
    assert race.count == 3
    assert "race on block 1 (3 times)" in str(race)


def test_other_lines_are_another_race(checker):
    """Two consumers that both do not wait are two findings."""
    history = History()
    access(checker, "copy", "write", history, "a.py:1")
    access(checker, "compute", "read", history, "b.py:2")
    access(checker, "compute", "read", history, "c.py:3")

    assert [race.second.site for race in checker.report.races] == ["b.py:2", "c.py:3"]
    assert str(checker.report).endswith("3 accesses recorded, 2 unordered pairs among them")


def test_the_checker_goes_on_after_a_race(checker):
    """Later accesses are checked against a write that raced."""
    history = History()
    for agent, site in (("copy", "a.py:1"), ("compute", "b.py:2"), ("copy", "c.py:3")):
        access(checker, agent, "write", history, site)

    assert [(race.first.site, race.second.site) for race in checker.report.races] == [
        ("a.py:1", "b.py:2"),
        ("b.py:2", "c.py:3"),
    ]


def test_a_write_takes_the_place_of_what_came_before(checker):
    """After a write has raced with a reader, later writes are not checked against that reader."""
    history = History()
    access(checker, "copy", "read", history, "a.py:1")
    access(checker, "compute", "write", history, "b.py:2")
    access(checker, "compute", "write", history, "c.py:3")

    assert [race.second.site for race in checker.report.races] == ["b.py:2"]


def test_a_clean_report_claims_no_more_than_it_saw(checker):
    """A clean report says how much was recorded, never that there is no race."""
    access(checker, "copy", "write", History(), "a.py:1")
    checker.report.serialised["aten.poisson"] = 2

    assert str(checker.report) == (
        "1 accesses recorded, no unordered pair among them\n"
        "ran alone, which may hide races: aten.poisson x2"
    )


def test_a_launch_orders_a_stream_behind_the_host(checker):
    """The host may fill a buffer and then launch the work that reads it."""
    history = History()
    access(checker, HOST, "write", history, "a.py:1")
    access(checker, "copy", "read", history, "b.py:2")

    assert checker.report.races == []


def test_the_host_is_not_behind_what_it_launched(checker):
    """A launch does not order the host after the launched work."""
    history = History()
    access(checker, "copy", "read", history, "a.py:1")
    access(checker, HOST, "write", history, "b.py:2")

    assert len(checker.report.races) == 1


def test_what_the_host_saw_is_handed_to_streams_it_launches_on(checker):
    """A host that waited for one stream orders another by a launch on it."""
    history = History()
    access(checker, "copy", "write", history, "a.py:1")
    checker.order(HOST, checker.snapshot("copy"))
    access(checker, "compute", "read", history, "b.py:2")

    assert checker.report.races == []


def test_a_partial_overwrite_leaves_the_rest_to_its_writer(checker):
    """Each byte has its own last writer."""
    history = History()
    access(checker, "copy", "write", history, "a.py:1")
    checker.order("compute", checker.snapshot("copy"))
    access(checker, "copy", "write", history, "c.py:3", span=(4, 8))
    access(checker, "compute", "read", history, "d.py:4", span=(0, 4))
    assert checker.report.races == []
    access(checker, "compute", "read", history, "e.py:5", span=(3, 5))

    assert [(race.first.site, race.second.site) for race in checker.report.races] == [
        ("c.py:3", "e.py:5")
    ]
