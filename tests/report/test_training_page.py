"""What a page shows of the figures of a training run."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, strategies as st

from gapless.records.run_history import RunHistory
from gapless.report.html.charts import Curve, chart, thinned
from gapless.report.html.training_page import training_page
from gapless.report.text import short_number
from made_up_training import made_up_epoch


def history(*rows, losses=(3.0, 2.0, None, 1.0)):
    train = [
        {"kind": "train", "step": step, "loss": loss, "tokens": 4.0}
        for step, loss in enumerate(losses)
    ]
    return RunHistory.of_lines(json.dumps(row) for row in [*train, *rows])


def test_lines_are_told_apart_by_kind_and_damaged_ones_are_left_out():
    """A cut line, a number and a line without a kind are no figures."""
    lines = [
        '{"kind": "train", "loss": 2.5}',
        '{"kind": "tra',
        "7",
        "{}",
        '{"kind": "epoch", "step": 1}',
    ]
    found = RunHistory.of_lines(lines)

    assert (found.losses, [row["step"] for row in found.epochs], found.test) == ((2.5,), [1], None)


def test_a_page_has_the_figures_of_every_made_up_epoch():
    """Loss, speed, waits by reason and utilisation; the test score of the final model."""
    rows = [
        made_up_epoch(1),
        made_up_epoch(2, val_loss=3.1, val_bleu=12.5),
        {"kind": "test", "step": 2, "bleu": 14.0},
    ]
    text = training_page(
        history(*rows), title="runs/<a>", about={"device": "cuda:0 (NVIDIA H200)"}
    )

    assert [part for part in _SHOWN if part not in text] == []


_SHOWN = (
    "<h1>runs/&lt;a&gt;</h1>", "NVIDIA H200", "Loss of each batch", "Loss of each epoch", "Speed, target",
    "Utilisation of the device", "14.00", "10,002", "90.0\N{NO-BREAK SPACE}%", "interval", "epoch_end", "1,024",
)  # fmt: skip


def test_what_was_not_measured_is_left_out():
    """On a CPU there is no gap, and without a validation no score."""
    bare = [made_up_epoch(n, busy_share=None, gap_share=None, gap_ms=None) for n in (1, 2)]
    text = training_page(history(*bare), title="r", about={})

    assert "Utilisation" not in text
    assert "BLEU" not in text
    assert ">gap<" not in text


@pytest.mark.parametrize("rows", [[], [made_up_epoch(1)]])
def test_a_run_that_was_stopped_early_has_a_page(rows):
    """Without an epoch, and with one alone."""
    assert "gapless train" in training_page(history(*rows, losses=()), title="r", about={})


@given(st.lists(st.none() | st.floats(-1e6, 1e6), max_size=3000))
def test_thinned_curves_keep_the_range(values):
    """At most 400 points in order, and the least and largest of all values are there."""
    means, ranges = thinned(values)
    known = [value for value in values if value is not None]

    assert len(means) == len(ranges) <= 400
    assert [x for x, _ in means] == sorted({x for x, _ in means})
    assert all(1 <= x <= len(values) for x, _ in means)
    if known:
        assert min(least for _, least, _ in ranges) == min(known)
        assert max(most for *_, most in ranges) == max(known)


@given(st.lists(st.floats(-1e9, 1e9), min_size=2, max_size=50))
def test_every_point_lies_in_the_chart(values):
    """Whatever the values, no coordinate is outside of the square, and ticks are evenly apart."""
    drawn = chart(
        "t", [Curve(name="c", points=list(enumerate(values)))], x_name="n", text=short_number
    )
    path = drawn.split('class="curve" d="M')[1].split('"')[0]
    numbers = [float(part) for point in path.split("L") for part in point.split()]

    assert all(0.0 <= number <= 100.0 for number in numbers)
