"""What the terminal shows of a comparison on a GPU, from made-up figures."""

from __future__ import annotations

from dataclasses import replace

from gapless.records.comparison import Spread
from gapless.report.comparison_text import comparison_text
from toys import made_up_report, made_up_rows


def test_the_text_shows_where_the_time_went():
    """Both tables, the warnings, and the recommendation are there."""
    text = comparison_text(made_up_report())
    lines = [" ".join(line.split()) for line in text.splitlines()]

    assert "blocking yes 41.00 24% 20,000 2.00 12.50 0.50 25.00 101%" in lines
    assert "blocking 10.25 75.0% 76% 1,234 1,024 MiB 1,536 MiB - -" in lines
    assert "captured 10.25 8.0% - 1,234 1,024 MiB 1,536 MiB 1.50 -" in lines
    assert "rounds differ by more than 10%, read with care: blocking" in lines
    assert "captured: 3 graphs captured, then no more: train.py:7: a host wait" in lines
    assert "captured: 2 graphs captured within timed rounds; take more warm-up rounds" in lines
    assert "auto: launch-bound" in lines
    assert "A note." in lines
    assert "Recommended: captured" in lines
    assert max(map(len, text.splitlines())) <= 110


def test_one_round_has_no_spread():
    """The spread of one round is `-`, and the number of rounds is that of the rounds taken."""
    rows = tuple(replace(row, ms_per_step=Spread.of([10.0])) for row in made_up_rows())

    text = comparison_text(made_up_report(rows=rows))

    assert " ".join(text.splitlines()[1].split()).startswith("blocking yes 10.00 - 20,000")
    assert "median of 1 round of 50 steps" in text


def test_processor_time_of_short_rounds_is_not_shown():
    """Host CPU is `-` if the rounds are too short for the system's clock."""
    rows = tuple(replace(row, host_cpu_percent=None) for row in made_up_rows())

    text = comparison_text(made_up_report(rows=rows))

    assert text.splitlines()[1].split()[-1] == "-"


def test_a_cpu_shows_no_device_table():
    """A CPU has no table of the device, and the text says why."""
    text = comparison_text(made_up_report(is_accelerator=False))

    assert "A CPU has no gaps to close" in text
    assert "NVML" not in text
    assert "read with care" not in text


def test_within_a_tolerance_bits_are_not_spoken_of():
    """With a tolerance the column is called `same`, not `same bits`."""
    text = comparison_text(made_up_report(settings={"steps": 1, "rounds": 1, "tolerance": 1e-5}))

    assert "same bits" not in text


def test_one_graph_is_no_graphs():
    """Nouns agree with their numbers."""
    _, captured, _ = made_up_rows()
    refused = replace(captured, capture={"num_graphs": 1, "refusal": "a wait"}, late_captures=1)

    lines = comparison_text(made_up_report(rows=(refused,))).splitlines()

    assert "captured: 1 graph captured, then no more: a wait" in lines
    assert "captured: 1 graph captured within timed rounds; take more warm-up rounds" in lines
