"""Epochs of a training run as text."""

from __future__ import annotations

import math

from gapless.report.epoch_text import epoch_line, epoch_table
from toys import made_up_epoch


def test_a_table_accounts_for_every_wait_and_time():
    """Each reason has its count, total and time a batch; then come the times of the epoch."""
    lines = epoch_table(made_up_epoch()).splitlines()
    cells = [line.split() for line in lines[1:]]

    assert lines[0].startswith("epoch 2: loss 3.1416, 100 batches, 3,000 target tokens/s")
    assert ["interval", "10", "25.0", "0.250"] in cells
    assert ["epoch_end", "1", "0.5", "0.005"] in cells
    assert ["data", "wait", "7.0", "0.070"] in cells
    assert ["launch", "350.0", "3.500"] in cells
    assert ["device", "busy", "900.0", "9.000"] in cells


def test_the_columns_of_a_table_are_aligned():
    """Numbers end in the same column, and no line ends in spaces."""
    lines = epoch_table(made_up_epoch()).splitlines()[1:]

    assert len({len(line) for line in lines}) == 1
    assert [line.rstrip() for line in lines] == lines


def test_an_epoch_without_waits_says_none():
    """A table without waits has the row "none"."""
    assert ["none", "0", "0.0", "0.000"] in [
        line.split() for line in epoch_table(made_up_epoch(waits={})).splitlines()
    ]


def test_an_epoch_without_batches_divides_by_nothing():
    """An epoch without batches has a table too."""
    empty = made_up_epoch(num_batches=0, target_tokens=0, wall_ms=0.0, loss=math.nan, busy_ms=0.0)

    assert "loss nan, 0 batches, 0 target tokens/s, gap n/a" in epoch_table(empty)


def test_the_headline_holds_the_validation():
    """Figures of the validation stand between the loss and the batches."""
    line = epoch_line(made_up_epoch(validation={"val_loss": 2.5, "val_bleu": 31.25}))

    assert line == (
        "loss 3.1416, val_loss 2.5, val_bleu 31.25, 100 batches, 3,000 target tokens/s, "
        "gap 10.0%, peak memory 3 MiB"
    )


def test_the_gap_of_a_cpu_does_not_exist():
    """A gap that does not exist is n/a, not zero."""
    assert "gap n/a" in epoch_line(made_up_epoch(gap_ms=None))
