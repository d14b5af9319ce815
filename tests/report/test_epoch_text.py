"""Epochs of a training run as text."""

from __future__ import annotations

import math

from gapless.report.epoch_text import epoch_line, waits_table
from toys import made_up_epoch


def test_a_table_accounts_for_every_wait_and_time():
    """Each reason has its count, total and time a batch; then come the times of the epoch."""
    cells = [line.split() for line in waits_table(made_up_epoch().work).splitlines()]

    assert ["interval", "10", "25.0", "0.250"] in cells
    assert ["epoch_end", "1", "0.5", "0.005"] in cells
    assert ["data", "wait", "7.0", "0.070"] in cells
    assert ["launch", "350.0", "3.500"] in cells
    assert ["device", "busy", "900.0", "9.000"] in cells


def test_the_columns_of_a_table_are_aligned():
    """Numbers end in the same column, and no line ends in spaces."""
    lines = waits_table(made_up_epoch().work).splitlines()

    assert len({len(line) for line in lines}) == 1
    assert [line.rstrip() for line in lines] == lines


def test_an_epoch_without_waits_says_none():
    """A table without waits has the row "none"."""
    assert ["none", "0", "0.0", "0.000"] in [
        line.split() for line in waits_table(made_up_epoch(waits={}).work).splitlines()
    ]


def test_an_epoch_without_batches_divides_by_nothing():
    """An epoch without batches has a line and a table too."""
    empty = made_up_epoch(num_batches=0, target_tokens=0, wall_ms=0.0, loss=math.nan, busy_ms=0.0)

    assert epoch_line(empty, num_epochs=2) == "epoch 2/2  loss nan  0 tok/s"
    assert "launch" in waits_table(empty.work)


def test_the_line_of_an_epoch_holds_its_validation_and_fits_80_columns():
    """Also where every figure is long."""
    figures = {"val_loss": 12.5, "val_bleu": 31.256, "val_exact_match": 0.1}
    line = epoch_line(made_up_epoch(epoch=123, validation=figures), num_epochs=456)

    assert (
        line == "epoch 123/456  loss 3.1416  val loss 12.5000  BLEU 31.26  3.0k tok/s  gap 10.0%"
    )
    assert len(line) < 80


def test_the_gap_of_a_cpu_does_not_exist():
    """A CPU has no gap that could be shown."""
    assert "gap" not in epoch_line(made_up_epoch(gap_ms=None), num_epochs=2)
