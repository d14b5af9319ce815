"""What `metrics.jsonl` tells of a run."""

from __future__ import annotations

from gapless.records.run_history import RunHistory


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
