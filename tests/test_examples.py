"""The examples run, and say what they claim."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


# The plain loop, to which others are compared, runs once.
pytestmark = pytest.mark.xdist_group("examples")

ROOT = Path(__file__).parents[1]
PLAIN, GAPLESS, CAPTURED = (
    ROOT / "examples" / f"train_classifier_{kind}.py" for kind in ("plain", "gapless", "captured")
)


@pytest.fixture(scope="module")
def plain():
    return run(PLAIN)


def run(script):
    """Return what a script prints on a machine without a GPU."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(
        [sys.executable, script], env=environment, capture_output=True, text=True, check=True
    ).stdout


def test_the_gapless_loop_prints_what_the_plain_one_prints(plain):
    """Twelve digits of every epoch's mean loss are equal."""
    assert run(GAPLESS) == plain != ""


def test_the_captured_loop_prints_the_same_losses_and_what_was_captured(plain):
    """Without a GPU nothing is captured, and the last line says so."""
    *losses, report = run(CAPTURED).splitlines()

    assert plain.splitlines() == losses
    assert report.startswith("captured 0 graphs")
    assert "0 steps replayed, 120 ran eagerly" in report


def test_three_lines_of_the_loop_differ():
    """Besides the import and the printed mean, three lines change."""
    plain, changed = (script.read_text().splitlines()[2:] for script in (PLAIN, GAPLESS))
    new = [line for line in changed if line not in plain]

    assert [line for line in new if "import" in line] == ["import gapless"]
    assert len([line for line in new if "import" not in line and "print" not in line]) == 3


def test_the_workload_example_is_identical_under_two_plans():
    """The command in its own text says that the default plan changes no bit of it."""
    script = ROOT / "examples" / "workload_classifier.py"
    (line,) = [line for line in script.read_text().splitlines() if "gapless verify --" in line]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}

    done = subprocess.run(
        [sys.executable, "-m", *line.split(), "--steps", "20"],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert "gapless against a plain loop: bit-identical (20 losses, " in done.stdout
    assert "batches: 2 passes over 16 for 20 steps" in done.stdout
