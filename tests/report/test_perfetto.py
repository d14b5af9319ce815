"""Timelines are traces that the Perfetto UI opens: its importer is played here, by its rules."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st

from doctor.any_session import findings, timelines
from gapless.records.timeline import Gap, Lane, Span, Timeline
from gapless.report.perfetto import _us, perfetto_json
from made_up_session import FINDINGS, made_up_timeline


def ns(us):
    """Return a time as the importer reads it: cut to nanoseconds."""
    return int(us * 1000.0)


class Importer:
    """What the importer of Perfetto makes of a trace, without the spans and arrows that it drops."""

    def __init__(self, text):
        trace = json.loads(text, parse_constant=pytest.fail)
        json.dumps(trace, ensure_ascii=False).encode("utf-8")
        self.processes, self.threads = {}, {}
        self.slices, self.arrows = defaultdict(list), []
        self.dropped = []
        self._open, self._begun = defaultdict(list), {}
        events = trace["traceEvents"]
        for event in (one for one in events if one["ph"] == "M"):
            self._name(event)
        for event in sorted(
            (one for one in events if one["ph"] != "M"), key=lambda e: ns(e["ts"])
        ):
            getattr(self, f"_{event['ph']}")(event)

    def _name(self, event):
        if event["name"] == "process_name":
            self.processes[event["pid"]] = event["args"]["name"]
        if event["name"] == "thread_name":
            assert event["tid"] not in self.threads, "threads are known by their number alone"
            assert event["tid"] not in {0, *self.processes}
            self.threads[event["tid"]] = (self.processes[event["pid"]], event["args"]["name"])

    def _stack(self, event):
        stack = self._open[event["tid"]]
        while stack and stack[-1]["end"] <= ns(event["ts"]):
            stack.pop()
        return stack

    def _X(self, event):
        stack = self._stack(event)
        one = event | {"end": ns(event["ts"]) + ns(event["dur"])}
        if stack and one["end"] > stack[-1]["end"]:
            self.dropped.append(event)
            return
        stack.append(one)
        self.slices[self.threads[event["tid"]]].append(one)

    def _s(self, event):
        stack = self._stack(event)
        if not stack or event["id"] in self._begun:
            self.dropped.append(event)
            return
        self._begun[event["id"]] = stack[-1]

    def _f(self, event):
        assert event["bp"] == "e"
        stack = self._stack(event)
        if not stack or event["id"] not in self._begun:
            self.dropped.append(event)
            return
        self.arrows.append((self._begun[event["id"]], stack[-1]))


@given(timelines, st.lists(findings, max_size=6))
@settings(deadline=None, max_examples=20)
def test_of_any_timeline_nothing_is_dropped(timeline, found):
    """All spans, gaps and steps are there; arrows lead from waits to what they exposed."""
    steps = tuple(sorted(timeline.step_starts_us))
    end_us = max([timeline.end_us, *steps])
    gaps = _apart(timeline.gaps)
    timeline = replace(timeline, gaps=gaps, step_starts_us=steps, end_us=end_us)
    trace = Importer(perfetto_json((timeline, found)))

    assert trace.dropped == []
    num_spans = sum(len(lane.spans) for lane in timeline.lanes)
    num_others = len(timeline.gaps) + len(timeline.step_starts_us)
    assert sum(map(len, trace.slices.values())) == num_spans + num_others
    for wait, gap in trace.arrows:
        assert trace.threads[wait["tid"]][0].endswith("host")
        assert gap["cat"] == "idle"
        assert wait.get("args") == gap.get("args")


def _apart(gaps):
    """Return gaps as they are in truth: one after the other."""
    kept, reached = [], 0.0
    for gap in sorted(gaps, key=lambda gap: gap.start_us):
        if gap.start_us >= reached and gap.end_us > gap.start_us + 1.0:
            kept.append(gap)
            reached = gap.end_us
    return tuple(kept)


@given(st.integers(0, 10**15))
def test_a_time_that_is_cut_loses_no_nanosecond(time):
    """Else a span could end after the one that holds it."""
    assert ns(_us(time)) == time


def test_a_made_up_run_has_its_processes_threads_and_names():
    """Host threads and streams are tracks of two processes."""
    trace = Importer(perfetto_json((made_up_timeline(num_steps=3), FINDINGS)))

    assert trace.dropped == []
    assert list(trace.threads.values())[:4] == [
        ("host", "steps"),
        ("host", "main thread"),
        ("host", "autograd thread"),
        ("host", "loader thread"),
    ]
    assert ("device", "idle") in trace.threads.values()
    assert ("device", "stream 7, compute") in trace.threads.values()
    assert [one["name"] for one in trace.slices["host", "steps"]] == ["step 0", "step 1", "step 2"]
    kernels = {one["name"] for one in trace.slices["device", "stream 7, compute"]}
    assert "flash_fwd_kernel<bfloat16, 64>" in kernels


def test_arrows_lead_from_each_wait_to_the_gap_that_it_exposed():
    """The finding is named at both ends, with its cause and its mend."""
    timeline = made_up_timeline(num_steps=3)
    trace = Importer(perfetto_json((timeline, FINDINGS)))

    assert len(trace.arrows) == sum(gap.finding is not None for gap in timeline.gaps) > 0
    wait, gap = trace.arrows[0]
    assert wait["args"]["finding"].startswith("GAP0")
    assert wait.get("args") == gap.get("args")
    assert "instead" in gap["args"]
    assert wait["ts"] < gap["ts"] + gap["dur"]


def test_spans_that_overlap_in_a_lane_get_a_track_more():
    """Kernels of one graph may run side by side on one stream; those inside of others stay."""
    spans = (
        Span(name="a", kind="kernel", start_us=0.0, end_us=10.0),
        Span(name="in a", kind="kernel", start_us=2.0, end_us=10.0),
        Span(name="beside", kind="kernel", start_us=5.0, end_us=15.0),
        Span(name="behind", kind="kernel", start_us=10.0, end_us=20.0),
    )
    lane = Lane(name="stream 7", is_device=True, spans=spans)
    trace = Importer(perfetto_json((Timeline(lanes=(lane,), end_us=20.0), ())))

    assert trace.dropped == []
    first, second = (trace.slices["device", name] for name in ("stream 7", "stream 7 (2)"))
    assert [one["name"] for one in first] == ["a", "in a", "behind"]
    assert [one["name"] for one in second] == ["beside"]


def test_spans_that_begin_together_lie_in_each_other():
    """The longer holds the shorter, in whatever order they are."""
    spans = tuple(
        Span(name=name, kind="launch", start_us=1.0, end_us=end)
        for name, end in (("b", 2.0), ("a", 3.0))
    )
    lane = Lane(name="main thread", is_device=False, spans=spans)
    trace = Importer(perfetto_json((Timeline(lanes=(lane,), end_us=3.0), ())))

    assert [one["name"] for one in trace.slices["host", "main thread"]] == ["a", "b"]


def test_a_wait_that_began_when_the_gap_was_over_did_not_expose_it():
    """The one before it did."""
    waits = tuple(
        Span(name=name, kind="wait", start_us=start, end_us=start + 1.0, finding=0)
        for name, start in (("first", 5.0), ("second", 9.0))
    )
    gap = Gap(start_us=4.0, end_us=9.0, cause="host wait", finding=0)
    lane = Lane(name="main thread", is_device=False, spans=waits)
    trace = Importer(perfetto_json((Timeline(lanes=(lane,), gaps=(gap,), end_us=10.0), FINDINGS)))

    assert [wait["name"] for wait, _ in trace.arrows] == ["first"]


def test_a_wait_that_began_after_its_gap_has_an_arrow_all_the_same():
    """Arrows lead forward in time, so it ends within the gap."""
    wait = Span(name="item", kind="wait", start_us=5.0, end_us=8.0, finding=0)
    gap = Gap(start_us=4.0, end_us=9.0, cause="host wait", finding=0)
    lane = Lane(name="main thread", is_device=False, spans=(wait,))
    trace = Importer(perfetto_json((Timeline(lanes=(lane,), gaps=(gap,), end_us=9.0), FINDINGS)))

    ((one, other),) = trace.arrows
    assert (one["name"], other["name"]) == ("item", "idle: host wait")


def test_several_runs_stand_apart_in_one_trace():
    """Each has its processes under its name, and arrows that stay in it: before and after, or plans."""
    runs = [(made_up_timeline(num_steps=2, kernels=30, title=name), FINDINGS) for name in "ab"]
    trace = Importer(perfetto_json(*runs))

    assert trace.dropped == []
    assert list(trace.processes.values()) == ["a: host", "a: device", "b: host", "b: device"]
    leads = {
        (trace.threads[wait["tid"]][0], trace.threads[gap["tid"]][0]) for wait, gap in trace.arrows
    }
    assert leads == {("a: host", "a: device"), ("b: host", "b: device")}
    assert json.loads(perfetto_json())["traceEvents"] == []
