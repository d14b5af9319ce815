"""What a training run and its epochs did."""

from __future__ import annotations

from gapless.records.training import (
    RunHistory,
    steady_tokens_per_second,
    total_gap_share,
    total_waits,
)
from toys import made_up_epoch


def test_waits_of_all_epochs_are_added_by_reason():
    """Counts and times of equal reasons are summed, others stand alone."""
    other = made_up_epoch(
        waits={"interval": {"count": 5, "ms": 1.25}, "staging": {"count": 2, "ms": 1}}
    )

    assert total_waits([made_up_epoch(), other]).as_dict() == {
        "interval": {"count": 15, "ms": 26.25},
        "epoch_end": {"count": 1, "ms": 0.5},
        "staging": {"count": 2, "ms": 1.0},
    }
    assert total_waits([]).as_dict() == {}


def test_the_steady_rate_leaves_out_the_first_epoch():
    """Warm-up is not counted, unless there is nothing else."""
    slow, fast = made_up_epoch(wall_ms=60_000.0), made_up_epoch(wall_ms=1000.0)

    assert steady_tokens_per_second([slow, fast]) == 12_000.0
    assert steady_tokens_per_second([slow]) == 200.0
    assert steady_tokens_per_second([]) == 0.0


def test_the_gap_of_a_run_is_weighted_by_time():
    """Gap and busy times are added before they are divided."""
    short = made_up_epoch(busy_ms=100.0, gap_ms=900.0)

    assert total_gap_share([made_up_epoch(), short]) == 0.5
    assert None is total_gap_share([made_up_epoch(gap_ms=None)])


def test_two_parts_of_an_epoch_make_one_record():
    """Counts and times are added, and the loss is the mean over both parts."""
    first, later = made_up_epoch(loss=5.0, gap_ms=None), made_up_epoch(loss=4.0)

    both = first.followed_by(later)

    assert (
        both.work.mean_loss,
        both.work.num_batches,
        both.target_tokens,
        both.work.wall_ms,
    ) == (4.5, 200, 24_000, 8000.0)
    assert both.work.gap_ms == 100.0
    assert both.work.waits.by_reason["interval"].count == 20


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
