"""The report of a captured step, as text and for JSON."""

from __future__ import annotations

import json

import pytest

from gapless.graphs.capture_report import CaptureReport
from gapless.graphs.refusal import Refusal, host_read


@pytest.mark.parametrize(
    ("counts", "text"),
    [
        ((1, 1, 2), "captured 1 graph in 0.5 s, 1 step replayed, 2 ran eagerly"),
        ((3, 20, 0), "captured 3 graphs in 0.5 s, 20 steps replayed, 0 ran eagerly"),
    ],
)
def test_the_text_is_one_line_with_right_plurals(counts, text):
    """One graph is a graph."""
    graphs, replays, eager = counts

    assert text == str(
        CaptureReport(num_graphs=graphs, num_replays=replays, num_eager=eager, seconds=0.5)
    )


def test_the_text_ends_with_refusal_and_note():
    """The reason is given as text."""
    report = CaptureReport(refusal=Refusal("scheduler", "it counts"), note="by the way")

    assert str(report).endswith("; no further graph: it counts; by the way")


def test_json_has_the_text_of_the_refusal():
    """The keys are those of summary.json and of compare's JSON."""
    report = CaptureReport(num_graphs=2, refusal=host_read("train.py:7"))

    assert json.loads(json.dumps(report.as_dict())) == {
        "num_graphs": 2,
        "num_replays": 0,
        "num_eager": 0,
        "seconds": 0.0,
        "refusal": "train.py:7 makes the host wait for the device",
        "note": None,
    }
    assert CaptureReport().as_dict()["refusal"] is None
