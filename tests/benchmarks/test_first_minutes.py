"""The benchmark of the first minutes of published scripts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import first_minutes


ROOT = Path(__file__).parents[2]


def found(variant, seconds, *, at, end):
    return {"script": "gcn", "variant": variant, "source": None, "steps": 100, "seconds": seconds, "at": at, "end": end}  # fmt: skip


def test_a_line_compares_a_variant_with_the_script_as_written():
    """Speed, the share of calls replayed behind the first mark, and the time at the marks that both have."""
    written = found("as-written", 10.0, at={"50": (6.0, (0, 0))}, end=(0, 0))
    captured = found(
        "whole-step", 5.0, at={"50": (3.0, (40, 10)), "100": (5.0, (90, 10))}, end=(85, 15)
    )
    line = first_minutes.line_of(captured, written)
    assert "100 steps,  2.00x,  90% replayed; time at 50: 0.50" in line
    assert line.endswith("0.50")


def test_a_script_that_fails_is_named():
    failed = {"script": "gcn", "variant": "in-place", "source": None, "problem": "ValueError: no"}
    assert first_minutes.line_of(failed, failed).endswith("ValueError: no")


@pytest.mark.slow
def test_each_variant_runs_beside_another_tree(tmp_path):
    """Each in a process of its own; what they showed is in the file."""
    path = tmp_path / "first.jsonl"
    command = [sys.executable, "-m", "benchmarks.first_minutes", "--small", "--device", "cpu"]
    command += [
        "--only",
        "gcn",
        "--seconds",
        "0",
        "--source",
        str(ROOT / "src"),
        "--json",
        str(path),
    ]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    runs = [json.loads(line) for line in path.read_text().splitlines()]
    variants = ["as-written", "whole-step", "whole-step", "in-place", "in-place"]
    assert [one["variant"] for one in runs] == variants
    assert all(one["steps"] == first_minutes.SMALL_STEPS and "4" in one["at"] for one in runs)
    assert all(sum(one["end"]) >= first_minutes.SMALL_STEPS for one in runs[1:])
