"""The count of false alarms over published scripts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks import audits


ROOT = Path(__file__).parents[2]

REPORT = {
    "num_fast": 90,
    "num_eager": 10,
    "num_audits": 4,
    "num_equal": 3,
    "differences": ["loss"],
}


def test_a_false_alarm_is_named():
    found = {"script": "mnist", "variant": "in-place", "steps": 100, "reports": [REPORT, REPORT]}
    text = audits.line_of(found)
    assert "90% of calls replayed" in text
    assert "2 false alarms\n    loss\n    loss" in text


def test_a_script_that_fails_is_named():
    found = {"script": "mnist", "variant": "in-place", "problem": "ValueError: no"}
    assert audits.line_of(found).endswith("in-place   ValueError: no")


def test_a_script_runs_for_as_many_steps_as_asked(tmp_path):
    """In a process of its own; what it found is in the file."""
    path = tmp_path / "audits.json"
    command = [sys.executable, "-m", "benchmarks.audits", "--small", "--device", "cpu"]
    command += ["--only", "mnist", "--variants", "whole-step", "--json", str(path)]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(path.read_text())["scripts"]
    assert (found["script"], found["steps"]) == ("mnist", audits.SMALL_STEPS)
