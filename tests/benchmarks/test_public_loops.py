"""The scripts that people publish: both variants train alike, and what does not is told."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest
import torch
from benchmarks.public_loops import __main__ as public_loops
from benchmarks.public_loops.script import Loop

from gapless.device.find import find_device


ROOT = Path(__file__).parents[2]

CPU = find_device("cpu")


@pytest.fixture(autouse=True)
def restored(numerics):
    """Comparing bits switches deterministic algorithms on."""


def script(*, offset=0.0, bias=0.0, jitter=0.0, fails=False):
    """Return a script that reads one number a step; `bias` goes into its weights."""

    def train(run):
        if fails:
            raise ValueError("no such data\nin detail")
        model = torch.nn.Linear(1, 1)
        while True:
            with torch.no_grad():
                model.bias += bias
            noise = jitter * random.SystemRandom().random()
            yield model, [torch.rand(()).item() + offset + noise for _ in range(run.steps)]

    return train


def loop(with_gapless, **as_written):
    return Loop(
        name="made-up",
        title="made up",
        as_written=script(**as_written),
        with_gapless=with_gapless,
        steps=40,
    )


def measured(monkeypatch, made):
    """Return what the runner says of a loop, as its name would."""
    monkeypatch.setattr(public_loops, "loop_of", lambda name: made)
    options = Namespace(smoke=True, rounds=3)
    return public_loops.measured("made-up", device=CPU, options=options, tell=lambda line: None)


@pytest.mark.slow
def test_every_loop_gives_the_same_bits_with_gapless(tmp_path):
    """All six run from end to end, and each call adds an entry to the file."""
    file = tmp_path / "found.json"
    file.write_text('["an earlier entry"]')
    command = [sys.executable, "-m", "benchmarks.public_loops", "--smoke", "--rounds", "1"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}

    done = subprocess.run(
        [*command, "--out", str(file)],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr
    earlier, found = json.loads(file.read_text(encoding="utf-8"))
    assert earlier == "an earlier entry"
    assert {"hardware", "versions", "commit", "command", "rounds"} <= set(found)
    assert [result["loop"] for result in found["results"]] == list(public_loops.NAMES)
    for result in found["results"]:
        assert (result["problem"], result["bits"]) == (None, "same bits"), result["loop"]
        assert [len(turns) for turns in result["turns_ms"].values()] == [1, 1]
        assert all(0 < count < 20 for count in result["changed_lines"].values())
    assert "image: round 1 of 1: " in done.stdout


@pytest.mark.parametrize(
    ("made", "bits"),
    [
        (loop(script()), "same bits"),
        (loop(script(offset=1e-9)), "different: loss 0 of turn 0"),
        (loop(script(bias=1.0)), "different: bias"),
        (loop(script(), jitter=1.0), "not reproducible: loss 0 of turn 0"),
    ],
)
def test_numbers_and_weights_are_compared_bit_by_bit(monkeypatch, made, bits):
    """The first that differs is named, and a script that does not repeat itself is told apart."""
    found = measured(monkeypatch, made)

    assert found["bits"] == bits
    assert public_loops.problem_of(found) == (None if bits == "same bits" else bits)
    # Times are taken all the same.
    assert len(found["speeds"]) == 3


def test_changed_lines_are_counted_between_the_two_scripts():
    """Name and docstring do not count."""

    def as_written(run):
        """Read."""
        one = 1
        two = 2
        return one + two

    def with_gapless(run):
        """Do not read."""
        one = 1
        three = 3
        four = 4
        return one + three + four

    made = Loop(name="", title="", as_written=as_written, with_gapless=with_gapless, steps=1)
    assert made.changed_lines() == {"added": 3, "removed": 2}
