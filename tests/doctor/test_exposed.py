"""Each moment in which the device is idle is charged to one cause, and the charges add up."""

import pytest
from hypothesis import given, settings, strategies as st

from gapless.doctor.replay.exposed import DeviceSpan, HostSpan, busy_us, charge_gaps


def work(start, end, launch):
    return DeviceSpan(
        start_us=start, end_us=end, launch_us=launch, ready_us=min(start, launch + 10)
    )


def host(kind, start, end, owner=None):
    return HostSpan(kind=kind, start_us=start, end_us=end, owner=owner)


def causes(gaps):
    return [[(one.cause, one.owner, one.us) for one in gap.charges] for gap in gaps]


FIRST = work(0, 100, -10)


def test_a_gap_that_opens_in_a_wait_is_the_waits_until_the_next_work():
    """The return from the wait, and the work of the host behind it that could have been queued before."""
    gaps = charge_gaps(
        [FIRST, work(300, 400, 295)], [host("wait", 20, 110, 3)], begin_us=0, end_us=400
    )

    assert causes(gaps) == [[("wait", 3, 200)]]


def test_work_that_was_queued_in_time_makes_the_gap_the_devices_own():
    """Where the next work was queued before the gap began, no line of the host is to blame."""
    gaps = charge_gaps(
        [FIRST, work(130, 200, 50)], [host("wait", 60, 140, 0)], begin_us=0, end_us=200
    )

    assert causes(gaps) == [[("device", None, 30)]]


def test_work_that_was_queued_late_and_held_up_then_is_charged_to_both():
    """The host until the work could have begun, the device from then on."""
    gaps = charge_gaps(
        [FIRST, work(300, 400, 190)], [host("wait", 20, 110, 3)], begin_us=0, end_us=400
    )

    assert causes(gaps) == [[("wait", 3, 100), ("device", None, 100)]]


def test_a_launch_that_is_on_its_way_when_the_gap_begins_is_launching():
    """The host was late, if only by what a launch takes."""
    gaps = charge_gaps(
        [FIRST, work(106, 200, 97)], [host("launch", 97, 103)], begin_us=0, end_us=200
    )

    assert causes(gaps) == [[("launch", None, 6)]]


def test_a_second_wait_in_the_gap_takes_what_comes_after_it():
    """From its beginning on the second wait is what keeps the host."""
    waits = [host("wait", 20, 110, 0), host("wait", 150, 160, 1)]

    gaps = charge_gaps([FIRST, work(300, 400, 295)], waits, begin_us=0, end_us=400)

    assert causes(gaps) == [[("wait", 0, 50), ("wait", 1, 150)]]


def test_a_loader_behind_a_wait_is_charged_for_its_own_time():
    """And a pause of the garbage collector as well."""
    spans = [host("wait", 20, 110, 0), host("loader", 120, 220, 5), host("gc", 230, 240, 6)]

    gaps = charge_gaps([FIRST, work(300, 400, 295)], spans, begin_us=0, end_us=400)

    assert ("loader", 5, 100) in causes(gaps)[0]
    assert ("gc", 6, 10) in causes(gaps)[0]


def test_short_gaps_between_launches_are_launching_and_long_ones_the_hosts_code():
    """Where no wait opened the gap, what the host was at is the cause."""
    works = [FIRST, work(150, 160, 140), work(5000, 5100, 4990)]
    spans = [host("launch", 140, 148), host("launch", 4990, 4995)]

    gaps = charge_gaps(works, spans, begin_us=0, end_us=5100)

    assert causes(gaps)[0] == [("launch", None, 50)]
    assert causes(gaps)[1] == [("host code", None, 4830), ("launch", None, 10)]


TIMES = st.floats(0, 1000)
SPANS = st.tuples(TIMES, TIMES).map(sorted)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(SPANS, st.floats(0, 400)), max_size=12),
    st.lists(SPANS, max_size=8),
    st.lists(
        st.tuples(st.sampled_from(["loader", "gc", "launch", "allocation"]), SPANS), max_size=8
    ),
)
def test_charges_fill_each_gap_and_busy_and_idle_fill_the_stretch(works, waits, others):
    """No charge is longer than its gap, none overlap, and nothing is left over."""
    device = [work(start, end, start - early) for (start, end), early in works]
    spans, reached = [], 0.0
    for number, (start, end) in enumerate(sorted(waits)):
        if start >= reached:
            spans.append(host("wait", start, end, number))
            reached = end
    spans += [host(kind, start, end) for kind, (start, end) in others]

    gaps = charge_gaps(device, spans, begin_us=0, end_us=1000)

    busy = busy_us((max(0, one.start_us), min(1000, one.end_us)) for one in device)
    assert sum(gap.us for gap in gaps) + busy == pytest.approx(1000)
    for gap in gaps:
        assert [gap.start_us, *(one.end_us for one in gap.charges)] == [
            *(one.start_us for one in gap.charges),
            gap.end_us,
        ]
        assert all(one.us >= 0 for one in gap.charges)
