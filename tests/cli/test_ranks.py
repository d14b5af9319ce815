"""`gapless train` under torchrun, which starts it several times."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import gapless as package
from cli.conftest import TINY
from gapless.cli.ranks import is_rank_0, resume_command


@pytest.mark.parametrize(
    "environment",
    [{"WORLD_SIZE": 1, "LOCAL_RANK": 0, "RANK": 0}, {"WORLD_SIZE": 2}],
    ids=["one rank", "no torchrun"],
)
def test_a_single_process_trains_alone(gapless, monkeypatch, environment):
    """It comes as far as its data."""
    for name, value in environment.items():
        monkeypatch.setenv(name, str(value))

    gapless("train", "--data", "nowhere").check_refused("nowhere")


def test_an_unknown_world_is_refused(gapless, monkeypatch):
    """Rather than train the same thing in each process."""
    monkeypatch.setenv("LOCAL_RANK", "0")

    gapless("train", "--data", "nowhere").check_refused("WORLD_SIZE", "torchrun")


def test_a_dry_run_is_printed_by_one_rank(gapless, monkeypatch):
    """The others end at once."""
    for name, value in {"WORLD_SIZE": 2, "LOCAL_RANK": 1, "RANK": 1}.items():
        monkeypatch.setenv(name, str(value))
    done = gapless("train", "--dry-run")

    assert (done.code, done.out, done.err) == (0, "", "")


def test_a_dry_run_says_what_the_ranks_share(gapless, tiny_data, monkeypatch):
    """The update, the gradients, and that the time is of one rank; the epochs have fewer updates."""
    alone = gapless("train", "--data", tiny_data, "--dry-run", *TINY, "--batch-size", "8")
    for name, value in {"WORLD_SIZE": 2, "LOCAL_RANK": 0, "RANK": 0}.items():
        monkeypatch.setenv(name, str(value))
    shared = gapless("train", "--data", tiny_data, "--dry-run", *TINY, "--batch-size", "8")

    assert "ranks:" not in alone.out
    assert "ranks: 2, each with the whole model" in shared.out
    assert "an update of 2 x 1 batches" in " ".join(shared.out.split())
    assert updates_in(shared.out) == -(-updates_in(alone.out) // 2)


def updates_in(text):
    """Return the number of updates that a dry run foresees."""
    return int(re.search(r"up to\s+([\d,]+)\s+updates", text)[1].replace(",", ""))


@pytest.mark.parametrize(
    ("environment", "command"),
    [
        ({}, "gapless train --resume r"),
        ({"WORLD_SIZE": 1}, "gapless train --resume r"),
        (
            {"WORLD_SIZE": 2},
            "torchrun --standalone --nproc-per-node 2 -m gapless train --resume r",
        ),
        (
            {"WORLD_SIZE": 16, "LOCAL_WORLD_SIZE": 8, "GROUP_WORLD_SIZE": 2},
            "torchrun --nnodes 2 --nproc-per-node 8 OPTIONS-AS-BEFORE -m gapless train --resume r",
        ),
    ],
    ids=["no torchrun", "one rank", "one host", "two hosts"],
)
def test_the_way_on_is_named_as_it_was_begun(monkeypatch, environment, command):
    """With torchrun where it started several ranks."""
    for name, value in {**environment, **({"LOCAL_RANK": 0} if environment else {})}.items():
        monkeypatch.setenv(name, str(value))

    assert resume_command(Path("r")) == command
    assert resume_command(Path("my run")) == command.removesuffix("r") + "'my run'"


@pytest.mark.parametrize(
    ("parts", "said"), [(False, "handler\ntaken down\n"), (True, "handler\n")]
)
def test_one_of_several_ranks_spares_the_end_of_python(parts, said):
    """Handlers of the end run, and the code is kept; the others would wait for the rest."""
    code = f"""
import atexit
from gapless.cli import ranks
from gapless.ranks import SingleRank
class Large:
    def __del__(self):
        print("taken down")
large = Large()
atexit.register(print, "handler")
if {parts}:
    ranks.leave_together(SingleRank())
ranks.leave_process(3)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(Path(package.__file__).parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stdout, done.stderr) == (3, said, "")


@pytest.mark.slow
def test_two_ranks_train_one_model(tiny_data, tmp_path):
    """By what torchrun runs: one run folder, one output, and half as many updates an epoch."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    options = [
        "--data",
        str(tiny_data),
        "--run-dir",
        "r",
        "--epochs",
        "1",
        *TINY,
        "--batch-size",
        "8",
    ]
    done = subprocess.run(
        [*launcher, "-m", "gapless", "train", *options],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(package.__file__).parents[1])},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.count("epoch 1/1") == 1
    assert done.stdout.count("BLEU") >= 1
    assert "Traceback" not in done.stderr
    summary = json.loads((tmp_path / "r" / "summary.json").read_text())
    assert summary["steps"] == 5
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "cache") == ["r"]


@pytest.mark.parametrize("command", ["plans", "explain GAP001", "checkpoint list nowhere"])
def test_a_command_of_one_process_is_done_by_one_rank(gapless, monkeypatch, command):
    """The first does it, and says that the others do nothing; those end at once."""
    alone = gapless(*command.split())
    monkeypatch.setenv("WORLD_SIZE", "2")
    by_rank = []
    for rank in ("0", "1"):
        for name in ("LOCAL_RANK", "RANK"):
            monkeypatch.setenv(name, rank)
        by_rank.append(gapless(*command.split()))
    first, second = by_rank

    warning, _, rest = first.err.partition("\n")
    assert (first.code, first.out, rest) == (alone.code, alone.out, alone.err)
    name = command.split()[0]
    assert warning == (
        f"gapless: warning: gapless {name} takes one process; the first of the 2 of torchrun does it"
    )
    assert (second.code, second.out, second.err) == (0, "", "")


@pytest.mark.parametrize(
    ("variables", "speaks"),
    [
        ({}, True),
        ({"LOCAL_RANK": "0", "RANK": "0"}, True),
        ({"LOCAL_RANK": "0", "RANK": "2"}, False),
        ({"LOCAL_RANK": "1"}, False),
        ({"LOCAL_RANK": "0"}, True),
        ({"LOCAL_RANK": ""}, True),
    ],
)
def test_one_process_speaks_for_all(monkeypatch, variables, speaks):
    """Of ranks without a number, which are refused, the first of a host does."""
    for name in ("RANK", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert is_rank_0() is speaks
