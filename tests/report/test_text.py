"""Records in, strings out."""

from __future__ import annotations

import math

import pytest

from gapless.records.training import (
    TrainingEpoch,
    steady_tokens_per_second,
    total_gap_share,
    total_waits,
)
from gapless.report.text import columns, duration, epoch_line, epoch_table, megabytes, share


def make_record(**changes):
    values = {
        "epoch": 2,
        "loss": 3.14159,
        "num_batches": 100,
        "target_tokens": 12_000,
        "wall_ms": 4000.0,
        "waits": {"interval": {"count": 10, "ms": 25.0}, "epoch_end": {"count": 1, "ms": 0.5}},
        "data_wait_ms": 7.0,
        "launch_ms": 350.0,
        "busy_ms": 900.0,
        "gap_ms": 100.0,
        "peak_memory_bytes": 3 << 20,
        "validation": {},
    }
    return TrainingEpoch.of_state({**values, **changes})


def test_a_table_accounts_for_every_wait_and_time():
    """Each reason has its count, total and time a batch; then come the times of the epoch."""
    lines = epoch_table(make_record()).splitlines()
    cells = [line.split() for line in lines[1:]]

    assert lines[0].startswith("epoch 2: loss 3.1416, 100 batches, 3,000 target tokens/s")
    assert ["interval", "10", "25.0", "0.250"] in cells
    assert ["epoch_end", "1", "0.5", "0.005"] in cells
    assert ["data", "wait", "7.0", "0.070"] in cells
    assert ["launch", "350.0", "3.500"] in cells
    assert ["device", "busy", "900.0", "9.000"] in cells


def test_the_columns_of_a_table_are_aligned():
    """Numbers end in the same column, and no line ends in spaces."""
    lines = epoch_table(make_record()).splitlines()[1:]

    assert len({len(line) for line in lines}) == 1
    assert [line.rstrip() for line in lines] == lines


def test_rows_are_left_and_right_aligned():
    """The first column stands to the left, all others to the right."""
    assert columns([("a", "1"), ("bbb", "22")]) == ["a     1", "bbb  22"]


def test_an_epoch_without_waits_says_none():
    """No reason is a row of its own, not an empty table."""
    assert ["none", "0", "0.0", "0.000"] in [
        line.split() for line in epoch_table(make_record(waits={})).splitlines()
    ]


def test_an_epoch_without_batches_divides_by_nothing():
    """An empty epoch has a table as well."""
    empty = make_record(num_batches=0, target_tokens=0, wall_ms=0.0, loss=math.nan, busy_ms=0.0)

    assert "loss nan, 0 batches, 0 target tokens/s, gap n/a" in epoch_table(empty)


def test_the_headline_holds_the_validation():
    """Figures of the validation stand between the loss and the batches."""
    line = epoch_line(make_record(validation={"val_loss": 2.5, "val_bleu": 31.25}))

    assert line == (
        "loss 3.1416, val_loss 2.5, val_bleu 31.25, 100 batches, 3,000 target tokens/s, "
        "gap 10.0%, peak memory 3 MiB"
    )


def test_a_cpu_has_no_gap():
    """What does not exist is n/a, not zero."""
    assert share(None) == "n/a"
    assert share(0.0) == "0.0%"
    assert share(0.125) == "12.5%"
    assert "gap n/a" in epoch_line(make_record(gap_ms=None))
    assert None is make_record(gap_ms=None).work.gap_share


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0:00:00"), (59.4, "0:00:59"), (59.6, "0:01:00"), (3600, "1:00:00"), (90061, "25:01:01")],
)
def test_durations_are_hours_minutes_seconds(seconds, text):
    """Rounded to the second, and never sixty of anything."""
    assert text == duration(seconds)


def test_sizes_are_mebibytes():
    """With separators from a thousand on."""
    assert megabytes(2 << 30) == "2,048 MiB"


def test_waits_of_all_epochs_are_added_by_reason():
    """Counts and times of equal reasons are summed, others stand alone."""
    other = make_record(
        waits={"interval": {"count": 5, "ms": 1.25}, "staging": {"count": 2, "ms": 1}}
    )

    assert total_waits([make_record(), other]).as_dict() == {
        "interval": {"count": 15, "ms": 26.25},
        "epoch_end": {"count": 1, "ms": 0.5},
        "staging": {"count": 2, "ms": 1.0},
    }
    assert total_waits([]).as_dict() == {}


def test_the_steady_rate_leaves_out_the_first_epoch():
    """Warm-up is not counted, unless there is nothing else."""
    slow, fast = make_record(wall_ms=60_000.0), make_record(wall_ms=1000.0)

    assert steady_tokens_per_second([slow, fast]) == 12_000.0
    assert steady_tokens_per_second([slow]) == 200.0
    assert steady_tokens_per_second([]) == 0.0


def test_the_gap_of_a_run_is_weighted_by_time():
    """Gap and busy times are added before they are divided."""
    short = make_record(busy_ms=100.0, gap_ms=900.0)

    assert total_gap_share([make_record(), short]) == 0.5
    assert None is total_gap_share([make_record(gap_ms=None)])


def test_two_parts_of_an_epoch_make_one_record():
    """Counts and times are added, and the loss is the mean over both parts."""
    first, later = make_record(loss=5.0, gap_ms=None), make_record(loss=4.0)

    both = first.followed_by(later)

    assert (
        both.work.mean_loss,
        both.work.num_batches,
        both.target_tokens,
        both.work.wall_ms,
    ) == (4.5, 200, 24_000, 8000.0)
    assert both.work.gap_ms == 100.0
    assert both.work.waits.by_reason["interval"].count == 20
