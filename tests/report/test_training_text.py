"""The line of a running epoch: what it shows in which width."""

from __future__ import annotations

import math
import re

from tqdm import tqdm

from gapless.records.epoch_record import Progress
from gapless.records.training import RunProgress
from gapless.report.training_text import (
    EpochTitle,
    epoch_line,
    progress_bar,
    progress_line,
    waits_table,
)
from toys import made_up_epoch


RUN = RunProgress(num_updates=500, total_updates=4000, learning_rate=7.34e-4, seconds_left=754.0)
LONG_RUN = RunProgress(
    num_updates=10**6, total_updates=10**7, learning_rate=1.234e-5, seconds_left=123456.0
)
NOT_BEGUN = RunProgress(num_updates=0, total_updates=9, learning_rate=0.0, seconds_left=None)


def progress(**changes):
    return Progress(
        **{"batch": 50, "loss": 2.314, "mean_loss": 2.457, "weight": 823_000.0, **changes}
    )


def bar(columns, *, epoch=3, of=40, made=None, run=RUN, validation=None):
    title = EpochTitle(
        number=epoch, num_epochs=of, num_batches=100, num_done=0, first_read=10, earlier_loss=None
    )
    line = progress_bar(
        title,
        made or progress(),
        run,
        seconds=10.0,
        validation={"val_bleu": 23.45, "val_loss": 2.0} if validation is None else validation,
        columns=columns,
    )
    return tqdm.format_meter(50, 100, 10.0, ncols=columns, ascii="-=", bar_format=line)


def test_a_terminal_of_80_columns_shows_all_that_was_asked_for():
    """Bar, loss beside its mean, learning rate, tokens/s, newest score, and the time left."""
    assert bar(77) == (
        "3/40 ===---  loss 2.31  mean 2.46  lr 7.3e-4  82k tok/s  BLEU 23.4  ETA 12:34"
    )


def test_nothing_that_was_asked_for_is_missing_where_figures_are_long():
    """At 80 columns the bar gives way, and the figures stay."""
    made = progress(loss=12.35, mean_loss=11.111, weight=8.23e8)
    shown = bar(77, epoch=312, of=400, made=made, run=LONG_RUN)

    for part in ("12.35", "11.11", "1.2e-5", "82M tok/s", "BLEU 23.4", "ETA 1d10h"):
        assert part in shown
    assert len(shown) <= 77


def test_a_narrow_terminal_shows_what_matters_most():
    """At 40 columns the losses and the time left, at 10 which epoch it is."""
    assert bar(37) == "3/40  loss 2.31  mean 2.46  ETA 12:34"
    assert bar(30) == "3/40 =--  loss 2.31  ETA 12:34"
    assert bar(10) == "3/40 ==---"
    assert bar(1) == "3"


def test_a_wide_terminal_shows_more():
    """Batches, waits and the gap, behind the figures that matter more."""
    shown = bar(200, made=progress(gap_share=0.125))

    assert re.match(r"epoch 3/40 =+-+  batch 50/100  loss 2\.31", shown)
    assert len(shown) == 200
    assert "  0.00 waits/batch  gap 12.5%  BLEU 23.4  ETA 12:34" in shown


def test_it_fits_every_width():
    """From one column to more than it can fill."""
    made = progress(gap_share=0.5)
    too_wide = [
        columns
        for columns in range(1, 220)
        for run in (RUN, LONG_RUN, NOT_BEGUN)
        if len(bar(columns, epoch=40, made=made, run=run)) > columns
    ]

    assert too_wide == []


def test_an_epoch_that_goes_on_has_the_batches_before():
    """After a validation within it, or in a resumed run, the bar begins where it was."""
    title = EpochTitle(
        number=3, num_epochs=40, num_batches=100, num_done=30, first_read=10, earlier_loss=None
    )
    shown = progress_bar(title, progress(batch=20), RUN, seconds=10.0, validation={}, columns=120)

    assert "epoch 3/40 {bar}  batch 50/100  " in shown


def test_what_is_not_known_yet_is_not_shown():
    """Before the first read it is said when that is; before the second update no time is left."""
    made = progress(loss=None, mean_loss=None, weight=0.0)
    shown = bar(77, made=made, run=NOT_BEGUN, validation={})

    assert re.fullmatch(r"epoch 3/40 =+-+  batch 50/100  loss after batch 10  lr 0", shown)


def test_the_loss_before_the_epoch_stays_until_there_is_a_newer_one():
    """The mean is of this epoch alone, and so it waits."""
    title = EpochTitle(
        number=2, num_epochs=4, num_batches=8, num_done=0, first_read=8, earlier_loss=3.125
    )
    made = progress(loss=None, mean_loss=None, weight=0.0)
    shown = progress_line(title, made, NOT_BEGUN, seconds=1.0, validation={})

    assert shown == "epoch 2/4  batch 50/8  loss 3.12  lr 0  0.00 waits/batch"


def test_a_run_without_scores_shows_the_loss_of_its_validation():
    """The newest figure of a validation, whichever there is."""
    assert "  val 2.00  " in bar(77, validation={"val_loss": 2.0})


def test_a_line_of_a_file_holds_everything():
    """However wide it becomes, and without a bar."""
    title = EpochTitle(
        number=3, num_epochs=40, num_batches=100, num_done=0, first_read=10, earlier_loss=None
    )
    line = progress_line(title, progress(gap_share=0.5), RUN, seconds=10.0, validation={})

    assert line == (
        "epoch 3/40  batch 50/100  loss 2.31  mean 2.46  lr 7.3e-4  82k tok/s  "
        "0.00 waits/batch  gap 50.0%  ETA 12:34"
    )


# --- epochs that have ended ---


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
