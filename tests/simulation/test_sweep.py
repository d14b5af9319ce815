"""The pipeline under every scheduler and many seeds, with the checker on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from simulation.sweep import plan_runs


ROOT = Path(__file__).parents[2]
# `make sweep` tries two hundred.
NUM_SEEDS = 10


@pytest.mark.slow
@pytest.mark.timeout(540)
def test_every_schedule_gives_the_sequential_result():
    """All scenarios, asap, lazy and random seeds: right values, and no unordered access."""
    command = [sys.executable, "-m", "simulation.sweep", "--seeds", str(NUM_SEEDS), "--jobs", "2"]
    done = subprocess.run(
        command,
        check=False,
        cwd=ROOT / "tests",
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'tests'}:{ROOT / 'src'}"},
        capture_output=True,
        text=True,
    )

    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    assert done.stdout.startswith(f"{len(plan_runs(NUM_SEEDS))} runs, ")
    assert done.stdout.endswith(" accesses, 0 failures\n")


def test_all_three_schedulers_and_all_seeds_are_tried():
    """Every scenario that is not about one scheduler runs under all of them."""
    runs = plan_runs(NUM_SEEDS)
    of_gapless = [(scheduler, seed) for name, scheduler, seed in runs if name == "plan gapless"]

    assert of_gapless == [("asap", 0), ("lazy", 0), *(("random", n) for n in range(NUM_SEEDS))]
    assert len({name for name, *_ in runs}) >= 40
