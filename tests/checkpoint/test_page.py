"""The loop that `docs/checkpoints.md` shows."""

from __future__ import annotations

import os
import random
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gapless.checkpoint import CheckpointStore, unpack


PAGE = Path(__file__).resolve().parents[2] / "docs" / "checkpoints.md"

# Kills the process in the middle of a save, at so many operations after its start.
KILLER = """
import os, runpy, signal, sys
from gapless.checkpoint.files import Disk
real, left = Disk.sync, [int(sys.argv[2])]
def sync(disk, file):
    left[0] -= 1
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
    real(disk, file)
Disk.sync = sync
sys.argv = [sys.argv[3], sys.argv[1]]
runpy.run_path(sys.argv[0])
"""


@pytest.fixture
def script(tmp_path):
    """The page's example as a file."""
    (code,) = re.findall(
        r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    path = tmp_path / "example.py"
    path.write_text(code)
    return path


@pytest.fixture
def run(script, monkeypatch):
    """Run the example in a folder, in this process."""
    states = random.getstate(), torch.get_rng_state()

    def call(folder):
        monkeypatch.setattr(sys, "argv", [str(script), str(folder)])
        runpy.run_path(str(script))

    yield call
    random.setstate(states[0])
    torch.set_rng_state(states[1])


def end_of(folder):
    found = CheckpointStore(folder / "checkpoints").load_newest()
    return found.step, unpack(found.tensors, found.meta)


def test_a_loop_that_is_done_may_be_started_again(run, tmp_path, capsys):
    """It has nothing left to do, and says so."""
    run(tmp_path / "whole")
    capsys.readouterr()

    run(tmp_path / "whole")

    assert capsys.readouterr().out == "60 steps\n"


def test_the_loop_goes_on_with_the_same_bits(script, run, tmp_path, capsys):
    """Killed inside an epoch, in the middle of a save, and started again, it ends as if it had not been."""
    run(tmp_path / "whole")
    killed = subprocess.run(
        [sys.executable, "-c", KILLER, tmp_path / "parts", "20", script],
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert killed.returncode == -9
    assert end_of(tmp_path / "parts")[0] == 25
    run(tmp_path / "parts")

    (step, whole), (other, parts) = end_of(tmp_path / "whole"), end_of(tmp_path / "parts")
    assert step == other == 60
    assert whole["position"] == parts["position"] == (3, 0)
    for name, weight in whole["model"].items():
        assert torch.equal(weight, parts["model"][name])
    first, second = capsys.readouterr().out.splitlines()
    assert first == second
