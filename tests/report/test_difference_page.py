"""The page of two sessions: what became of each finding, and the spans of both."""

from __future__ import annotations

import json
import re
from dataclasses import replace

from gapless.records.finding import Session, Site
from gapless.records.session_difference import SessionDifference
from gapless.report.html.difference_page import difference_page
from made_up_session import CLIP, COPY, FINDINGS, HOSTILE, ITEM, LOADER, made_up_session


def rows_of(text):
    """Return code and fate of every row."""
    return re.findall(r'data-value="(GAP\d+)".*?<td data-value="([a-z ]+)">', text)


def data_of(text):
    return json.loads(re.search(r'id="data">(.*)</script>', text)[1])


def session(*findings, **changes):
    return replace(made_up_session(num_steps=2, kernels=30), findings=findings, **changes)


def test_every_finding_has_its_fate():
    """Gone and new ones first, then those that cost something else, then those as before."""
    dearer = replace(LOADER, exposed_ms=5.0)
    moved = replace(ITEM, site=replace(ITEM.site, line=99))
    text = difference_page(
        SessionDifference.of(session(ITEM, LOADER, COPY), session(dearer, CLIP, moved))
    )

    assert rows_of(text) == [
        ("GAP005", "gone"),
        ("GAP010", "new"),
        ("GAP016", "changed"),
        ("GAP001", "as before"),
    ]
    assert "train.py:99" in text


def test_spans_of_both_runs_belong_to_the_row_of_their_finding():
    """A finding that stands in another place after the mend has one row for both timelines."""
    before, after = session(*FINDINGS), session(LOADER, ITEM)
    data = data_of(difference_page(SessionDifference.of(before, after)))
    rows = {
        timeline["title"]: {label[2] for label in timeline["labels"] if label[0] == "Tensor.item"}
        for timeline in data["timelines"]
    }
    labels = {
        timeline["title"]: {label[2] for label in timeline["labels"] if label[2] is not None}
        for timeline in data["timelines"]
    }

    assert [data["rows"][row] for row in rows["before"]] == ["GAP001 train.py:57"]
    # The spans of the second run still have the places of the first one's findings.
    assert {data["rows"][row] for row in labels["after"]} == {
        "GAP016 train.py:47",
        "GAP001 train.py:57",
    }


def test_two_sessions_with_nothing_in_them_have_a_page():
    """No steps, no findings, no timelines; and the text of a script is text."""
    nothing = Session(command=("a.py",), device="cpu", versions={})
    hostile = replace(ITEM, site=Site(path="<b>.py", line=1, source=HOSTILE))
    text = difference_page(SessionDifference.of(nothing, replace(nothing, findings=(hostile,))))

    assert "Neither run has any." in difference_page(SessionDifference.of(nothing, nothing))
    assert "&lt;b&gt;.py:1" in text
    assert HOSTILE not in text
    assert text.count("</script>") == 2
