"""What a script does once is told from what its loop does by when its lines held the host up."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from gapless.doctor.diagnose.done_once import say_done_once, split_done_once
from gapless.doctor.seen_waits import SeenWait
from gapless.records.finding import Site


MS = 1_000_000
SECOND = 1000 * MS


def wait(line, ended_ms, *, took_ms=0.5, path="infer.py", **others):
    """Return a wait of a line, which lasted until a time."""
    return SeenWait(
        cause="item",
        call="Tensor.item",
        site=None if line is None else Site(path=path, line=line),
        thread="main",
        step=0,
        start_ns=round((ended_ms - took_ms) * MS),
        end_ns=round(ended_ms * MS),
        **others,
    )


def lines_left(waits, *, watched_ns=SECOND):
    """Return the lines that a script comes back to."""
    again, once = split_done_once(waits, watched_ns=watched_ns)
    assert {one.site.line for one in again}.isdisjoint(one.site.line for one in once)
    return {one.site.line for one in again}


@pytest.mark.parametrize(
    "waits",
    [
        pytest.param([wait(1, 10)], id="a line of its own"),
        pytest.param([wait(1, 990 + n / 10) for n in range(12)], id="a tensor is printed"),
        pytest.param([wait(1, 900, took_ms=900), wait(1, 901)], id="all that was queued"),
        pytest.param([wait(1, 10, count=5000)], id="an event is asked until it is done"),
    ],
)
def test_what_is_done_at_one_moment_is_done_once(waits):
    """Before the loop or behind it, however long it takes."""
    assert lines_left(waits) == set()


@pytest.mark.parametrize(
    ("waits", "watched_ms"),
    [
        pytest.param([wait(1, 500 + n) for n in range(20)], 1000, id="a burst"),
        pytest.param([wait(1, 100), wait(1, 200)], 1000, id="now and then"),
        pytest.param([wait(1, 300, took_ms=300), wait(1, 600, took_ms=300)], 900, id="long turns"),
        pytest.param([wait(1, 80 + 40 * n) for n in range(6)], 300, id="a short script"),
    ],
)
def test_what_a_loop_does_is_done_again(waits, watched_ms):
    """In a short time it comes often, in a long one it comes back."""
    assert lines_left(waits, watched_ns=watched_ms * MS) == {1}


@pytest.mark.parametrize(
    ("cause", "call"),
    [("print", "Tensor.__repr__"), ("save", "save"), ("copy", "Module.to"), ("cpu", "Module.cpu")],
)
def test_a_call_that_waits_for_each_of_its_numbers_or_tensors_is_one(cause, call):
    """A vector is printed behind the loop, or a model moved before it; in a loop they come back."""
    waits = [replace(wait(1, 500 + n / 10), cause=cause, call=call) for n in range(400)]
    later = replace(waits[0], end_ns=700 * MS)

    assert lines_left(waits) == set()
    assert lines_left([*waits, later]) == {1}
    assert lines_left([*waits, *(wait(1, 500 + n) for n in range(20))]) == {1}


def test_the_calls_of_one_line_are_taken_together():
    """Of a line in a loop, what it does at its first turn alone is not done by another line."""
    first = replace(wait(1, 0), cause="copy", call="Tensor.to", thread="other")

    assert split_done_once([first, wait(1, 500)], watched_ns=SECOND) == ([first, wait(1, 500)], [])
    assert lines_left([wait(1, 0), wait(2, 500)]) == set()
    assert split_done_once([wait(1, 0), wait(1, 500, path="b.py")], watched_ns=SECOND)[0] == []


def test_a_wait_of_which_only_the_beginning_is_known_is_then():
    """Torch's warnings come when a wait is over."""
    known = [replace(wait(1, at), end_ns=None) for at in (100, 600)]

    assert split_done_once(known, watched_ns=SECOND) == (known, [])
    assert split_done_once(known[:1], watched_ns=SECOND) == ([], known[:1])


def test_nothing_is_left_out_where_no_time_was_measured():
    """Then all of it may be one moment."""
    assert split_done_once([wait(1, 3)], watched_ns=0) == ([wait(1, 3)], [])


def test_all_lines_that_are_left_out_are_named():
    """Once each; a wait without a line by its call."""
    waits = [wait(7, 1), wait(3, 2), wait(7, 1.5), wait(None, 3)]

    assert say_done_once(waits) == (
        "3 lines held the host up at one moment of the watched time only, which is what a script does "
        "once, and no finding: infer.py:7, infer.py:3, an unknown line (Tensor.item)."
    )
    assert say_done_once(waits[:1]).startswith("1 line held ")


WAITS = st.lists(
    st.builds(wait, st.sampled_from([None, 1, 2, 3]), st.integers(0, 1000)), max_size=80
)


def test_a_tenth_of_the_time_is_no_moment():
    """Less is."""
    assert lines_left([wait(1, 100), wait(1, 200)]) == {1}
    assert lines_left([wait(1, 100), wait(1, 199)]) == set()


@given(WAITS, st.integers(0, 2000))
def test_every_wait_is_told_of_and_no_line_is_cut_in_two(waits, watched_ms):
    """Also none that comes often or over a good part of the time is called once."""
    again, once = split_done_once(waits, watched_ns=watched_ms * MS)

    assert [one for one in waits if one in again] == again
    assert [one for one in waits if one in once] == once
    assert len(again) + len(once) == len(waits)
    assert {one.site for one in again}.isdisjoint(one.site for one in once)
    said = say_done_once(once)
    for site in {one.site for one in once}:
        ends = [one.end_ns for one in once if one.site == site]
        assert len(ends) < 20
        assert 10 * (max(ends) - min(ends)) < watched_ms * MS
        assert (str(site) if site else "an unknown line") in said
    for site in {one.site for one in again}:
        ends = [one.end_ns for one in again if one.site == site]
        assert len(ends) >= 20 or 10 * (max(ends) - min(ends)) >= watched_ms * MS
