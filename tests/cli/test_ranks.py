"""`gapless train` under torchrun, which starts it several times."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import gapless as package


REFUSAL = "gapless train uses one GPU, but torchrun started it 2 times"


@pytest.fixture
def ranks(monkeypatch):
    """Make this process look like one that torchrun has started."""

    def look(**environment):
        for name, value in environment.items():
            monkeypatch.setenv(name, str(value))

    return look


def test_the_first_of_several_ranks_is_refused(gapless, ranks):
    """In one line, before anything is read or written."""
    ranks(WORLD_SIZE=2, LOCAL_RANK=0, RANK=0)

    gapless("train", "--data", "nowhere").check_refused(REFUSAL, "without torchrun")


@pytest.mark.parametrize(
    "environment",
    [{"WORLD_SIZE": 1, "LOCAL_RANK": 0, "RANK": 0}, {"WORLD_SIZE": 2}, {"LOCAL_RANK": 0}],
    ids=["one rank", "no torchrun", "no world"],
)
def test_a_single_process_is_not_refused(gapless, ranks, environment):
    """It comes as far as its data."""
    ranks(**environment)

    gapless("train", "--data", "nowhere").check_refused("nowhere")


# The first rank starts late, as on a busy machine.
LATE = """
import os, runpy, sys, time
if os.environ["RANK"] == "0":
    time.sleep(3)
runpy.run_module("gapless", run_name="__main__", alter_sys=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("is_late", [False, True], ids=["torchrun", "torch.distributed.run"])
def test_torchrun_is_refused_once(tiny_data, tmp_path, is_late):
    """By the real torchrun: one line for all ranks, and no run folder.

    torchrun ends the other rank as soon as the first has refused, at times before it could say
    with which code it ends.
    """
    late = tmp_path / "late.py"
    late.write_text(LATE)
    launcher = [str(Path(sys.executable).with_name("torchrun"))]
    program = ["-m", "gapless"]
    if is_late:
        launcher, program = [sys.executable, "-m", "torch.distributed.run"], [str(late)]
    done = subprocess.run(
        [*launcher, "--nproc-per-node", "2", *program, "train", "--data", str(tiny_data)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(package.__file__).parents[1])},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )

    assert done.returncode != 0
    assert done.stderr.count("gapless: error: ") == 1
    assert REFUSAL in done.stderr
    codes = set(re.findall(r"exitcode  : (\S+)", done.stderr))
    assert "2" in codes
    assert codes <= {"2", f"-{signal.SIGTERM:d}"}
    assert done.stdout == ""
    assert [path.name for path in tmp_path.iterdir()] == ["late.py"]
