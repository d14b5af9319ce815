"""Losses, final tensors and host waits of every plan are the bits that were written down.

`tests/pinned/trainings.json` has a hash for each training, by version of torch and vector unit of
the CPU, on which bits depend. To write down those of this machine:

    PYTHONPATH=src:. python tests/benchmarks/test_pinned.py
"""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path

import pytest
import torch
from benchmarks.side_by_side_worker import cases


FILE = Path(__file__).parents[1] / "pinned" / "trainings.json"
KEY = f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}"


@cache
def values_of(name):
    return cases()[name]()


def hash_of(values):
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()


def pinned():
    return json.loads(FILE.read_text(encoding="utf-8")) if FILE.is_file() else {}


@pytest.mark.parametrize("name", cases())
def test_trainings_give_the_bits_that_were_written_down(name):
    if KEY not in pinned():
        pytest.skip(f"no bits were written down for {KEY}")

    assert hash_of(values_of(name)) == pinned()[KEY][name]


def test_every_training_is_written_down():
    """No case of an older list has gone, and each list is whole."""
    assert pinned()
    assert all(set(found) == set(cases()) for found in pinned().values())


@pytest.mark.slow
def test_another_plan_or_schedule_gives_the_same_bits():
    """What is computed does not depend on where and when it runs."""
    chosen = ["plan blocking, cpu", "plan gapless, simulated", "plan captured, simulated"]
    found = {
        (label.split(", ", 1)[1], value)
        for name in chosen
        for of, label, value in values_of(name)
        if of in ("losses", "tensors")
    }

    assert len(found) == len({label for label, _ in found}) > 0


if __name__ == "__main__":
    torch.set_num_threads(1)
    found = {name: hash_of(values_of(name)) for name in cases()}
    FILE.write_text(json.dumps({**pinned(), KEY: found}, indent=2) + "\n", encoding="utf-8")
