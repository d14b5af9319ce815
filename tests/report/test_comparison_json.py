"""What the file shows of a comparison, from made-up figures."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from gapless.report.comparison_json import comparison_json
from toys import made_up_report, made_up_rows


KEYS = """
workload device hardware is_accelerator torch commit unit settings rows recommendation notes
reproducible in_turns
"""

ROW_KEYS = """
plan identical ms_per_step steps_per_epoch throughput waits_per_step waited_ms_per_step
waits_by_reason data_wait_ms_per_step launch_ms_per_step host_cpu_percent own_cpu_percent
busy_ms_per_step
overlap_share stream_shares kernels_per_step gap_share meter_busy_ms_per_step meter_gap_share
nvml_percent
peak_memory_bytes held_memory_bytes grown_memory_bytes capture_seconds compile_seconds capture
diagnosis late_captures
settings tokens_per_second busy_share
"""


def test_the_keys_of_the_file_are_those_written_down():
    """Scripts read these keys: adding, removing or renaming one is a change that users see."""
    found = json.loads(comparison_json(made_up_report()))

    assert list(found) == KEYS.split()
    assert list(found["rows"][0]) == ROW_KEYS.split()


def test_the_file_has_a_row_a_plan_and_no_number_that_json_lacks():
    """Rows are found by their key `plan`, and what is not finite is null."""
    first, *rest = made_up_rows()
    report = made_up_report(rows=(replace(first, throughput=math.nan, gap_share=0.25), *rest))

    found = json.loads(comparison_json(report), parse_constant=pytest.fail)

    assert [row["plan"] for row in found["rows"]] == ["blocking", "captured", "auto"]
    assert found["rows"][0]["throughput"] is None
    assert found["rows"][0]["busy_share"] == 0.75
    assert found["rows"][1]["tokens_per_second"] == 75_000.0
    assert found["rows"][1]["capture"]["refusal"] == "train.py:7: a host wait"
    assert "claims" not in found
    assert found["recommendation"]["plan"] == "captured"
    assert (found["torch"], found["commit"]) == ("2.11.0", "abc1234")
