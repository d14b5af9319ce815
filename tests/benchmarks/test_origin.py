"""The origin's plans are measured on a CPU, with a tiny model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.origin import COMPARED, main


ROOT = Path(__file__).parents[2]

HERE = ["--small", "--device", "cpu"]


def measured(folder, *options):
    command = [sys.executable, "-m", "benchmarks.origin", *HERE]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [*command, "--out", str(folder), *options],
        cwd=ROOT,
        env=environment,
        check=False,
        capture_output=True,
        text=True,
    )
    return done, json.loads((folder / "origin-fp32.json").read_text(encoding="utf-8"))


@pytest.mark.slow
def test_every_plan_is_measured_and_one_can_be_measured_again(tmp_path, numerics):
    """The file has a row for each plan, with bits and figures; --only keeps the other rows."""
    quickly = ["--rounds", "1", "--steps", "3", "--verify-steps", "2"]
    done, found = measured(tmp_path, *quickly, "--commit", "abc1234")

    assert done.returncode == 0, done.stderr
    rows = {row["plan"]: row for row in found["rows"]}
    assert tuple(rows) == COMPARED
    assert {row["identical"] for row in rows.values()} == {True, None}
    # On a CPU nothing is captured, so its bits say nothing.
    assert [name for name, row in rows.items() if row["identical"] is None] == ["captured"]
    assert rows["blocking"]["waits_per_step"] == 2.0
    assert found["facts"]["commit"] == "abc1234"
    assert "same bits? a plain loop, first run  1/2" in done.stderr
    assert "| `four-stream` | 方案 1, 阶段 2 (plan 1, stage 2) | yes |" in (
        tmp_path / "origin.md"
    ).read_text("utf-8")

    again_here = [*HERE, *quickly, "--out", str(tmp_path)]
    assert main([*again_here, "--only", "events", "--commit", "later"]) == 0
    again = json.loads((tmp_path / "origin-fp32.json").read_text(encoding="utf-8"))

    commits = {row["plan"]: row["facts"]["commit"] for row in again["rows"]}
    assert commits == dict.fromkeys(COMPARED, "abc1234") | {"events": "later"}

    assert main([*again_here, "--tuning"]) == 0
    tuned = json.loads((tmp_path / "origin-fp32.json").read_text(encoding="utf-8"))

    assert tuned["rows"] == again["rows"]
    assert [row["sentences"] for row in tuned["tuning"]] == [16, 32, 64]
    every_batch, *_, seldom = tuned["tuning"][0]["intervals"]
    assert (every_batch["interval"], seldom["interval"]) == (1, 30)
    assert every_batch["waits"] > seldom["waits"] >= 1.0
