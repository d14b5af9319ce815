"""Timelines of plans: what was measured of host and streams on one clock, and the gaps between."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from gapless.compare.bench import run_bench
from gapless.compare.plan_timeline import plan_timeline
from gapless.records.timeline import Lane, Span
from toys import compare_settings, small_workload


def host(kind, start, end):
    return Span(name=kind, kind=kind, start_us=float(start), end_us=float(end))


def stream(*times, name="stream 7"):
    spans = tuple(Span(name="k", kind="kernel", start_us=a, end_us=b) for a, b in times)
    return Lane(name=name, is_device=True, spans=spans)


def test_a_timeline_begins_with_the_first_work():
    """What the host did before is no part of it, but for what reaches into the first copy."""
    timeline = plan_timeline(
        "full",
        [host("data", 0, 9000), host("data", 9010, 9100), host("step", 9200, 9300)],
        [stream((9050.0, 9150.0))],
    )

    assert [(span.start_us, span.end_us) for span in timeline.lanes[0].spans] == [
        (0.0, 50.0),
        (150.0, 250.0),
    ]
    assert timeline.step_starts_us == (150.0,)
    assert timeline.end_us == 250.0


def test_spans_stand_in_the_order_of_their_beginning():
    """They are noted as they end; all times count from the first step."""
    timeline = plan_timeline(
        "blocking",
        [host("wait", 130, 190), host("step", 100, 120), host("step", 200, 230)],
        [stream((110.0, 180.0), (210.0, 260.0))],
    )

    assert [span.start_us for span in timeline.lanes[0].spans] == [0.0, 30.0, 100.0]
    assert timeline.step_starts_us == (0.0, 100.0)
    assert [lane.is_device for lane in timeline.lanes] == [False, True]
    assert timeline.end_us == 160.0
    assert [(gap.start_us, gap.end_us) for gap in timeline.gaps] == [(80.0, 110.0)]


@pytest.mark.parametrize(
    ("spans", "cause"),
    [
        ([host("wait", 0, 90)], "host wait"),
        ([host("data", 40, 90)], "data"),
        ([host("step", 40, 95)], "launch"),
        ([host("step", 0, 95), host("wait", 20, 80)], "host wait"),
        ([host("step", 0, 95), host("wait", 50, 60)], "launch"),
        ([host("step", 0, 20)], "host code"),
        ([], "host code"),
    ],
)
def test_a_gap_is_charged_to_what_the_host_did_for_longest(spans, cause):
    """A wait within a step is a wait, and counts but once."""
    (gap,) = plan_timeline("p", spans, [stream((0.0, 30.0), (100.0, 130.0))]).gaps

    assert gap.cause == cause


times = st.lists(
    st.tuples(st.integers(0, 2000), st.integers(0, 200)).map(lambda one: (one[0], sum(one))),
    max_size=20,
)


@given(first=times, second=times, waits=times)
def test_gaps_and_work_fill_the_time_between_the_first_and_the_last_work(first, second, waits):
    """No gap overlaps work of any stream, and together they are the whole."""
    lanes = [stream(*sorted(spans)) for spans in (first, second)]
    timeline = plan_timeline("p", [host("wait", *span) for span in waits], lanes)
    work = {us for start, end in first + second for us in range(start, end)}
    begin = min((start for start, _ in first + second or waits), default=0)
    idle = [
        us
        for gap in timeline.gaps
        for us in range(round(gap.start_us) + begin, round(gap.end_us) + begin)
    ]

    assert len(idle) == len(set(idle))
    assert work & set(idle) == set()
    if work:
        end = max(end for _, end in first + second)
        assert set(range(min(s for s, _ in first + second), end)) == work | set(idle)


def test_every_plan_has_a_timeline_if_one_is_asked_for():
    """A plan that waits in each batch has a wait a step; none is taken for a table alone."""
    settings = compare_settings(("blocking", "gapless"))
    plain = run_bench(small_workload(), settings)
    found = run_bench(small_workload(), replace(settings, timelines=True))
    waits = [
        sum(span.kind == "wait" for span in timeline.lanes[0].spans)
        for timeline in found.timelines
    ]
    kinds = {span.kind for timeline in found.timelines for span in timeline.lanes[0].spans}

    assert plain.timelines == ()
    assert [timeline.title for timeline in found.timelines] == ["blocking", "gapless"]
    assert [len(timeline.step_starts_us) for timeline in found.timelines] == [
        settings.rounds.steps
    ] * 2
    assert waits[0] >= settings.rounds.steps > waits[1]
    assert kinds == {"step", "wait", "data"}
    assert all(not timeline.gaps for timeline in found.timelines)
