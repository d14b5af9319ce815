"""What the terminal and the file show of a comparison on a GPU, from made-up figures."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gapless.compare.ranking import make_weights, recommend
from gapless.records.comparison import ComparisonReport, PlanRow, Spread
from gapless.report.comparison_text import comparison_json, comparison_text


SRC = str(Path(__file__).parents[2] / "src")


def make_rows():
    blocking = PlanRow(
        plan="blocking",
        identical=True,
        ms_per_step=Spread.of([40.0, 41.0, 50.0]),
        steps_per_epoch=50.0,
        throughput=20_000.0,
        waits_per_step=2.0,
        waited_ms_per_step=12.5,
        waits_by_reason={
            "batch": {"count": 1.0, "ms": 12.4},
            "loss_read": {"count": 1, "ms": 0.1},
        },
        data_wait_ms_per_step=0.5,
        launch_ms_per_step=25.0,
        host_cpu_percent=101.0,
        busy_ms_per_step=10.25,
        kernels_per_step=1234.0,
        overlap_share=0.0,
        gap_share=0.75,
        nvml_percent=76.0,
        peak_memory_bytes=2**30,
        held_memory_bytes=3 * 2**29,
    )
    captured = replace(
        blocking,
        plan="captured",
        ms_per_step=Spread.of([11.0, 11.1, 11.2]),
        throughput=75_000.0,
        waits_per_step=0.02,
        gap_share=0.08,
        nvml_percent=None,
        capture_seconds=1.5,
        capture={"num_graphs": 3, "refusal": "train.py:7: a host wait"},
        late_captures=2,
    )
    auto = replace(captured, plan="auto", diagnosis="auto: launch-bound", late_captures=0)
    return blocking, captured, replace(auto, capture=None, capture_seconds=None)


def make_report(**changed):
    rows = make_rows()
    report = ComparisonReport(
        workload="w.py:make",
        device="cuda:0",
        hardware="NVIDIA H200",
        is_accelerator=True,
        torch="2.11.0",
        commit="abc1234",
        unit="target tokens",
        settings={"steps": 50, "rounds": 3, "tolerance": None},
        rows=rows,
        recommendation=recommend(
            rows, weights=make_weights({}), is_accelerator=True, total_memory_bytes=3 * 2**30
        ),
        notes=("A note.",),
        reproducible=True,
    )
    return replace(report, **changed)


def test_the_text_shows_where_the_time_went():
    """Both tables, the warnings, and the recommendation with its scores are there."""
    text = comparison_text(make_report())
    lines = [" ".join(line.split()) for line in text.splitlines()]

    assert "blocking yes 41.00 24% 20,000 2.00 12.50 0.50 25.00 101%" in lines
    assert "blocking 10.25 75.0% 76% 1,234 1,024 MiB 1,536 MiB n/a n/a" in lines
    assert "captured 10.25 8.0% n/a 1,234 1,024 MiB 1,536 MiB 1.50 n/a" in lines
    assert "rounds more than 10% apart, so read with care: blocking" in lines
    assert "captured: 3 shapes were captured, and no more: train.py:7: a host wait" in lines
    assert (
        "captured: 2 shapes were captured within timed rounds; more --warm-ups keep that apart"
        in lines
    )
    assert "auto: launch-bound" in lines
    assert "A note." in lines
    assert "Recommended: captured" in lines
    assert "weights: speed 0.75, memory 0.25; --weight NAME=NUMBER sets others" in lines
    assert "scores: captured 0.88, auto 0.88, blocking 0.33" in lines
    assert max(map(len, text.splitlines())) <= 110


def test_one_round_has_no_spread():
    """Nothing is known of it, which is not the same as none; the rounds taken are those told."""
    rows = tuple(replace(row, ms_per_step=Spread.of([10.0])) for row in make_rows())

    text = comparison_text(make_report(rows=rows))

    assert " ".join(text.splitlines()[1].split()).startswith("blocking yes 10.00 n/a 20,000")
    assert "median of 1 round of 50 steps" in text


def test_processor_time_of_short_rounds_is_not_shown():
    """A figure that ticks of the clock decide is none."""
    rows = tuple(replace(row, host_cpu_percent=None) for row in make_rows())

    text = comparison_text(make_report(rows=rows))

    assert text.splitlines()[1].split()[-1] == "n/a"


def test_a_cpu_shows_no_device_table():
    """In its place stands that there is nothing to see."""
    text = comparison_text(make_report(is_accelerator=False))

    assert "A CPU has no gaps to close" in text
    assert "NVML" not in text


def test_within_a_tolerance_bits_are_not_spoken_of():
    """The column says what was looked at."""
    text = comparison_text(make_report(settings={"steps": 1, "rounds": 1, "tolerance": 1e-5}))

    assert "same bits" not in text


def test_the_file_has_a_row_a_plan_and_no_number_that_json_lacks():
    """Rows are found by `plan`; what is not finite is null."""
    first, *rest = make_rows()
    report = make_report(rows=(replace(first, throughput=math.nan, gap_share=0.25), *rest))

    found = json.loads(comparison_json(report), parse_constant=pytest.fail)

    assert [row["plan"] for row in found["rows"]] == ["blocking", "captured", "auto"]
    assert found["rows"][0]["throughput"] is None
    assert found["rows"][0]["busy_share"] == 0.75
    assert found["rows"][1]["tokens_per_second"] == 75_000.0
    assert found["rows"][1]["capture"]["refusal"] == "train.py:7: a host wait"
    assert "claims" not in found
    assert found["recommendation"]["plan"] == "captured"
    assert (found["torch"], found["commit"]) == ("2.11.0", "abc1234")


def test_a_spread_is_its_quarters_and_one_bad_round_does_not_widen_it():
    """Overlap looks at the middle halves; the relative spread at everything."""
    steady = Spread.of([10.0, 10.1, 10.2, 10.3, 30.0])

    assert (steady.median, steady.min, steady.max) == (10.2, 10.0, 30.0)
    assert (steady.q1, steady.q3) == (10.1, 10.3)
    assert steady.relative == pytest.approx(20.0 / 10.2)
    assert not steady.overlaps(Spread.of([20.0]))
    assert steady.overlaps(Spread.of([10.2]))
    assert Spread.of([3.0]).q3 == 3.0


@pytest.mark.parametrize("module", ["records.comparison", "report.comparison_text"])
def test_reports_do_not_load_torch(module):
    """Rendering works where only the figures are."""
    code = f"import sys, gapless.{module}; sys.exit('torch' in sys.modules)"

    done = subprocess.run([sys.executable, "-c", code], check=False, env={"PYTHONPATH": SRC})

    assert done.returncode == 0
