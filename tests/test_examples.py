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
def plain(launcher_of_session, tmp_path_factory):
    return run(PLAIN, launcher_of_session, tmp_path_factory.mktemp("plain"))


def run(script, launcher, folder):
    """Return what a script prints on a machine without a GPU."""
    options = {"module": "faults.as_python", "CUDA_VISIBLE_DEVICES": ""}
    done = launcher.run(script, folder=folder, **options)
    done.check_done()
    return done.out


def test_the_gapless_loop_prints_what_the_plain_one_prints(plain):
    """Twelve digits of every epoch's mean loss are equal, by a Python of its own."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, GAPLESS], env=environment, capture_output=True, text=True, check=True
    )

    assert done.stdout == plain != ""


def test_the_captured_loop_prints_the_same_losses_and_what_was_captured(plain, launcher, tmp_path):
    """Without a GPU nothing is captured, and the last line says so."""
    *losses, report = run(CAPTURED, launcher, tmp_path).splitlines()

    assert plain.splitlines() == losses
    assert report.startswith("captured 0 graphs")
    assert "0 steps replayed, 120 ran as written" in report


def test_three_lines_of_the_loop_differ():
    """Besides the import and the printed mean, three lines change."""
    plain, changed = (script.read_text().splitlines()[2:] for script in (PLAIN, GAPLESS))
    new = [line for line in changed if line not in plain]

    assert [line for line in new if "import" in line] == ["import gapless"]
    assert len([line for line in new if "import" not in line and "print" not in line]) == 3


def test_the_workload_example_is_identical_under_two_plans(launcher, tmp_path):
    """The command in its own text says that the default plan changes no bit of it."""
    script = ROOT / "examples" / "workload_classifier.py"
    (line,) = [line for line in script.read_text().splitlines() if "gapless verify --" in line]
    # As from the root of the repository.
    (tmp_path / "examples").symlink_to(ROOT / "examples")

    done = launcher.run(*line.split()[1:], "--steps", "20", folder=tmp_path)

    done.check_done()
    assert "gapless against a plain loop: bit-identical (20 losses, " in done.out
    assert "batches: 2 passes over 16 for 20 steps" in done.out
