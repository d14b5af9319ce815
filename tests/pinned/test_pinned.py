"""Losses, final tensors and host waits of every plan are the bits that were written down.

`tests/pinned/trainings.json` has a hash for each training, by version of torch and architecture of
the CPU. Bits also depend on a CPU's vector unit; a process of its own takes the instructions that
every CPU of an architecture has. To write down the bits of this torch:

    PYTHONPATH=src:tests python tests/pinned/test_pinned.py
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import torch

from pinned.small_trainings import cases


FILE = Path(__file__).with_name("trainings.json")
# Of work on the simulated device; that other schedules give the same bits is a test of its own.
SCHEDULES = [("lazy", 0)]

KEY = f"torch {torch.__version__}, {platform.machine()}"

# Torch's own kernels, those of MKL and those of oneDNN.
ON_EVERY_CPU = {
    "ATEN_CPU_CAPABILITY": "default",
    "MKL_CBWR": "COMPATIBLE",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "OMP_NUM_THREADS": "1",
}


# For what may not depend on them.
OTHER_SCHEDULES = [("asap", 0), ("random", 0)]


@cache
def hashes():
    """Return the hash of each training, computed in a process of its own."""
    ended = subprocess.run(
        [sys.executable, __file__, "--print"],
        env={**os.environ, **ON_EVERY_CPU, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def pinned():
    return json.loads(FILE.read_text(encoding="utf-8")) if FILE.is_file() else {}


@pytest.mark.slow
def test_trainings_give_the_bits_that_were_written_down():
    if KEY not in pinned():
        pytest.skip(f"no bits were written down for {KEY}")

    assert hashes() == pinned()[KEY]


def test_every_training_is_written_down():
    """No case of an older list has gone, and each list is whole."""
    assert pinned()
    assert all(set(found) == set(cases(SCHEDULES)) for found in pinned().values())


@pytest.mark.slow
def test_another_plan_or_schedule_gives_the_same_bits():
    """What is computed does not depend on where and when it runs."""
    chosen = ["plan blocking, cpu", "plan gapless, simulated", "plan captured, simulated"]
    found_cases = cases(OTHER_SCHEDULES)
    found = {
        (label.split(", ", 1)[1], value)
        for name in chosen
        for of, label, value in found_cases[name]()
        if of in ("losses", "tensors")
    }

    assert len(found) == len({label for label, _ in found}) > 0


def print_hashes():
    found = {
        name: hashlib.sha256(json.dumps(values()).encode()).hexdigest()
        for name, values in cases(SCHEDULES).items()
    }
    print(json.dumps(found))


if __name__ == "__main__":
    if "--print" in sys.argv:
        print_hashes()
    else:
        FILE.write_text(json.dumps({KEY: hashes()}, indent=2) + "\n", encoding="utf-8")
