"""The pipeline under every scheduler and two hundred seeds, with the checker on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from simulation.sweep import plan_runs


ROOT = Path(__file__).parents[2]
NUM_SEEDS = 200


@pytest.mark.slow
@pytest.mark.timeout(540)
def test_every_schedule_gives_the_sequential_result(record_property):
    """All scenarios, asap, lazy and 200 random seeds: right values, and no unordered access."""
    parts = [start_part(number, of=2) for number in (1, 2)]
    outputs = [part.communicate()[0] for part in parts]

    failed = [line for output in outputs for line in output.splitlines() if "FAILED" in line]
    assert not failed, "\n".join(outputs)[-4000:]
    assert all(part.returncode == 0 for part in parts), outputs
    counts = [list(map(int, numbers(output.splitlines()[-1]))) for output in outputs]
    record_property(
        "runs, accesses, failures", str([sum(column) for column in zip(*counts, strict=False)])
    )
    assert sum(count[0] for count in counts) == len(plan_runs(NUM_SEEDS))


def start_part(number, *, of):
    command = [sys.executable, "-m", "simulation.sweep", "--seeds", str(NUM_SEEDS)]
    return subprocess.Popen(
        [*command, "--part", f"{number}/{of}"],
        cwd=ROOT / "tests",
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'tests'}:{ROOT / 'src'}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def numbers(line):
    return [word for word in line.replace(",", "").split() if word.isdecimal()]


def test_all_three_schedulers_and_all_seeds_are_tried():
    """Every scenario that is not about one scheduler runs under all of them."""
    runs = plan_runs(NUM_SEEDS)
    of_gapless = [(scheduler, seed) for name, scheduler, seed in runs if name == "plan gapless"]

    assert of_gapless == [("asap", 0), ("lazy", 0), *(("random", n) for n in range(NUM_SEEDS))]
    assert len({name for name, *_ in runs}) >= 40
