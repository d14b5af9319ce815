"""The page of a session as text: well formed, nothing of the script's own taken for HTML."""

from __future__ import annotations

import base64
import json
import re
import zlib
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser

import pytest

from gapless.records.comparison import Spread
from gapless.records.finding import Session
from gapless.records.timeline import Gap, Lane, Span, Timeline
from gapless.report.html.packed_timeline import first_steps, packed
from gapless.report.html.session_page import session_page, step_bars
from made_up_session import FINDINGS, HOSTILE, made_up_session, made_up_timeline


class Page(HTMLParser):
    """Elements and text of a page; raises where an element is not closed in its turn."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.texts, self.links = [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.links += [value for name, value in attributes if name in ("src", "href", "action")]
        if tag not in ("meta", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def data_of(text):
    return json.loads(
        re.search(r'<script type="application/json" id="data">(.*)</script>', text)[1]
    )


def unpacked(text):
    numbers, shift, value = [], 0, 0
    for byte in zlib.decompress(base64.b64decode(text)):
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            numbers.append(value)
            value = shift = 0
    return [tuple(numbers[at : at + 3]) for at in range(0, len(numbers), 3)]


def test_what_a_script_holds_is_text_on_the_page():
    """A source line with tags and quotes is shown as it is, and ends no element."""
    page = Page(session_page(made_up_session()))

    assert HOSTILE in page.texts
    assert page.tags.count("script") == 2


def test_a_page_links_to_nothing_and_its_policy_forbids_the_network():
    """There is no address in it but its empty icon."""
    text = session_page(made_up_session())

    assert Page(text).links == ["data:,"]
    assert "http://" not in text
    assert "https://" not in text
    assert "default-src 'none'" in unescape(text)


def test_every_finding_has_its_figures_its_cause_and_its_mend():
    """The table holds every finding in the order of the session."""
    text = session_page(made_up_session())
    page = Page(text)
    said = " ".join(page.texts)

    assert re.findall(r'<tbody data-row="(\d)"', text) == [str(n) for n in range(len(FINDINGS))]
    assert [one.cause for one in FINDINGS if one.cause not in said] == []
    assert [one.mend for one in FINDINGS if one.mend.splitlines()[0] not in said] == []
    assert "no line known" in said


def test_a_session_with_nothing_in_it_says_so():
    """No step, no finding, no timeline, no trial: a page all the same."""
    said = " ".join(
        Page(session_page(Session(command=("a.py",), device="cpu", versions={}))).texts
    )

    assert "Nothing was found" in said
    assert "There is no timeline" in said


def test_a_packed_timeline_holds_every_span_to_a_tenth_of_a_microsecond():
    """Starts, lengths and labels come back as they were."""
    spans = (
        Span(name="a", kind="step", start_us=10.0, end_us=5000.04),
        Span(name="b", kind="wait", start_us=10.0, end_us=20.26, finding=1),
        Span(name="a", kind="step", start_us=6000.0, end_us=6000.0),
    )
    timeline = Timeline(
        lanes=(Lane(name="main", is_device=False, spans=spans),),
        gaps=(Gap(start_us=0.0, end_us=7.5, cause="data"),),
        end_us=6000.0,
    )
    found = packed(timeline)

    assert found["labels"] == [["b", "wait", 1], ["a", "step", None], ["data", "gap", None]]
    assert unpacked(found["lanes"][0]["spans"]) == [(100, 103, 0), (0, 49_900, 1), (59_900, 0, 1)]
    assert unpacked(found["gaps"]) == [(0, 75, 2)]


def test_findings_of_a_timeline_are_the_rows_that_they_are_given():
    """A finding without a row belongs to none."""
    spans = tuple(
        Span(name="w", kind="wait", start_us=n, end_us=n + 1, finding=n) for n in range(3)
    )
    timeline = Timeline(lanes=(Lane(name="main", is_device=False, spans=spans),), end_us=3.0)

    assert [label[2] for label in packed(timeline, rows=[4, None])["labels"]] == [4, None]


@pytest.mark.parametrize("most", [100, 700, 10**9])
def test_a_timeline_of_too_many_events_keeps_whole_steps(most):
    """At least one step is kept, and no event of a later one."""
    timeline = made_up_timeline(num_steps=5, kernels=90)
    kept = first_steps(timeline, most_spans=most)
    count = len(kept.gaps) + sum(len(lane.spans) for lane in kept.lanes)

    assert count <= most or len(kept.step_starts_us) == 1
    assert (kept is timeline) == (most == 10**9)
    assert all(span.start_us < kept.end_us for lane in kept.lanes for span in lane.spans)


def test_what_was_cut_is_said(monkeypatch):
    """A page that cannot draw all steps names how many it draws."""
    monkeypatch.setattr(first_steps, "__kwdefaults__", {"most_spans": 900})
    said = " ".join(Page(session_page(made_up_session(num_steps=6, kernels=90))).texts)

    assert re.search(r"only the first \d of 6 steps are drawn", said)


def test_bars_are_of_the_mean_which_is_shown_where_a_few_steps_are_long():
    """A bar of the median would be shorter than its parts."""
    made_up = made_up_session(num_steps=2)
    steps = replace(made_up.steps, wall_ms=Spread.of([1.0, 1.0, 7.0]), data_ms=1.5)
    steps = replace(steps, wait_ms=0.5, launch_ms=0.25)

    text = session_page(replace(made_up, steps=steps))

    assert "3.00\N{NO-BREAK SPACE}ms on average; half of them 1.00 to" in text
    assert step_bars(steps)[0].ms == 3.0


def test_several_processes_are_named():
    """A finding that one rank has names it."""
    session = made_up_session()
    session = replace(session, num_ranks=2, findings=(replace(FINDINGS[0], rank=1),))

    assert "main, rank 1" in Page(session_page(session)).texts
