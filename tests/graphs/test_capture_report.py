"""The report of a captured step, as text and for JSON."""

from __future__ import annotations

import json

import pytest
import torch

import gapless
from gapless.graphs.capture_report import CaptureReport
from gapless.graphs.refusal import Refusal, host_read
from gapless.testing import SimulatedDevice


@pytest.mark.parametrize(
    ("counts", "text"),
    [
        ((1, 1, 2), "captured 1 graph in 0.5 s, 1 step replayed, 2 ran as written"),
        ((3, 20, 0), "captured 3 graphs in 0.5 s, 20 steps replayed, 0 ran as written"),
    ],
)
def test_the_text_is_one_line_with_right_plurals(counts, text):
    """One graph is a graph."""
    graphs, replays, eager = counts

    assert text == str(
        CaptureReport(num_graphs=graphs, num_replays=replays, num_eager=eager, seconds=0.5)
    )


def test_the_first_line_ends_with_refusal_and_note():
    """The reason is given as text."""
    report = CaptureReport(refusals=[Refusal("host_write", "it counts")], note="by the way")

    assert str(report).endswith("; no further graph: it counts; by the way")


def test_each_further_refusal_has_a_line():
    """Nothing is said twice, and changes come after refusals."""
    report = CaptureReport(changes=["self.alpha (train.py:3) was 1.0 and is 2.0"])
    for refusal in (Refusal("host_write", "it counts"), host_read("a.py:1"), host_read("a.py:1")):
        report.refuse(refusal)

    first, *others = str(report).splitlines()

    assert first.endswith("0 ran as written; no further graph: it counts")
    assert others == [
        "also: a.py:1 makes the host wait for the device",
        "changed: self.alpha (train.py:3) was 1.0 and is 2.0",
    ]


def test_what_is_refused_with_other_numbers_is_refused_once():
    """Refusals of one line and name are one, and so are those of one name."""
    report = CaptureReport()
    for text in ("was 1 and is 2", "was 2 and is 3"):
        report.refuse(Refusal("batch_on_host", text, name="a batch"))
        report.refuse(Refusal("too_many_changes", text, site="a.py:1", name="self.n"))
        report.refuse(Refusal("too_many_changes", text, site="a.py:1", name="self.m"))

    assert [refusal.name for refusal in report.refusals] == ["a batch", "self.n", "self.m"]
    assert report.refusal is report.refusals[0]


def test_refusals_are_bounded():
    """Lines without end would take memory without end."""
    report = CaptureReport()
    for number in range(1000):
        report.refuse(host_read(f"a.py:{number}"))

    assert len(report.refusals) == 100


def test_a_reason_is_told_once_and_again_only_if_it_is_another():
    """A reason that was lifted and came back was told before."""
    report = CaptureReport()
    report.refuse(Refusal("graph_limit", "too many", is_final=False))
    assert list(report.untold()) == ["too many"]

    report.lift_refusals()
    assert report.refusal is None
    report.refuse(Refusal("graph_limit", "too many", is_final=False))
    report.refuse(host_read("a.py:1"))

    assert list(report.untold()) == ["a.py:1 makes the host wait for the device"]
    assert list(report.untold()) == []


def test_all_reasons_of_one_line_are_told_together():
    """What comes later is told later, even if it is of the same line."""
    report = CaptureReport()
    for site, name in (("a.py:1", "n"), ("a.py:2", "m"), ("a.py:1", "random")):
        report.refuse(Refusal("host_write", f"{site}: {name}", site=site, name=name))

    assert list(report.untold()) == ["a.py:1: n; a.py:1: random", "a.py:2: m"]
    report.refuse(Refusal("host_write", "a.py:1: print", site="a.py:1", name="print"))
    assert list(report.untold()) == ["a.py:1: print"]


def test_proofs_are_told():
    """How many graphs were proved, and how many were not."""
    report = CaptureReport(proved=2, not_proved=1, proof_seconds=0.25)

    assert "; 2 proved in 0.2 s; 1 not proved" in str(report)


def test_a_read_that_captures_skip_is_told_once_and_beside_other_notes():
    """It stays in the report whatever a proof says later."""
    report = CaptureReport()
    report.note_batch_reads(["masks.py:3", "masks.py:3"])
    report.note_batch_reads(["masks.py:3"])
    report.note = "a replay differs no more than that"

    assert report.batch_reads == ["masks.py:3"]
    lines = str(report).splitlines()
    assert lines[0].endswith("; a replay differs no more than that")
    assert lines[1].startswith("masks.py:3 reads a value of the batch, but not while a graph is")


def test_json_has_the_texts_of_refusals():
    """The keys are those of summary.json and of compare's JSON."""
    report = CaptureReport(num_graphs=2, refusals=[host_read("train.py:7"), host_read("b.py:8")])

    assert json.loads(json.dumps(report.as_dict())) == {
        "num_graphs": 2,
        "num_replays": 0,
        "num_eager": 0,
        "seconds": 0.0,
        "captured_bytes": 0,
        "refusal": "train.py:7 makes the host wait for the device",
        "refusals": [
            "train.py:7 makes the host wait for the device",
            "b.py:8 makes the host wait for the device",
        ],
        "changes": [],
        "batch_reads": [],
        "updates_as_written": [],
        "proved": 0,
        "not_proved": 0,
        "proof_seconds": 0.0,
        "watching_seconds": 0.0,
        "capturing_seconds": 0.0,
        "auditing_seconds": 0.0,
        "beside_seconds": 0.0,
        "saved_seconds": 0.0,
        "waiting": 0,
        "audits": 0,
        "audits_equal": 0,
        "audit_halves": 0,
        "audit_block": 0,
        "differences": [],
        "num_compiled": 0,
        "compile_seconds": 0.0,
        "not_compiled": [],
        "in_its_place": [],
        "note": None,
    }
    assert CaptureReport().as_dict()["refusal"] is None


def test_a_step_that_reads_its_batch_unless_it_is_captured_is_captured_and_the_read_is_named():
    """As transformers does for masks. Batches of another value run another way."""

    def step(x):
        if not torch.cuda.is_current_stream_capturing() and not (x > 0).all():
            return x.sum() * 2.0
        return x.sum()

    with SimulatedDevice(scheduler="asap") as device, device.allow_waits():
        captured = gapless.capture(step, device=device)
        sums = [
            captured(torch.full((3,), float(number)).to(device.torch_device)).item()
            for number in [*range(1, 12), -1, -2, 3, 4, -3, -4, -5]
        ]

    assert sums == [3 * n for n in range(1, 12)] + [-6, -12, 9, 12, -18, -24, -30]
    assert captured.report.num_replays > 0
    (site,) = captured.report.batch_reads
    assert site.startswith("test_capture_report.py:")
