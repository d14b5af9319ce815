"""What torchrun's variables say, and what they cannot say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import gapless
from gapless.errors import UserError
from gapless.ranks import find_ranks
from gapless.ranks.launch import Launch, check_address, device_of, read_launch
from gapless.ranks.single_rank import SingleRank


# What a process alone may load of the room.
ALLOWED = ["collective_decision", "flags", "launch", "membership", "protocol", "single_rank"]

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "TORCHELASTIC_RESTART_COUNT": "2",
}


def test_a_process_that_torchrun_did_not_start_is_alone():
    """Variables of other launchers, such as a scheduler's WORLD_SIZE, mean nothing."""
    assert read_launch({"WORLD_SIZE": "8", "RANK": "3"}) == Launch(
        rank=0, world=1, local_rank=0, local_world=1, attempt=0
    )


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("MASTER_ADDR", None, "MASTER_ADDR is None, expected the host of rank 0"),
        ("MASTER_ADDR", "", "MASTER_ADDR is '', expected the host of rank 0"),
        ("MASTER_PORT", None, "MASTER_PORT is None, expected a number from 0 to 65535"),
        ("MASTER_PORT", "http", "MASTER_PORT is 'http', expected a number from 0 to 65535"),
        ("MASTER_PORT", "99999", "MASTER_PORT is '99999', expected a number from 0 to 65535"),
    ],
)
def test_an_address_at_which_nobody_can_be_found(name, text, said):
    """It is refused as a mistake, before torch raises its own error on every rank."""
    environment = {"MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
    check_address(environment)
    environment[name] = text
    if text is None:
        del environment[name]

    with pytest.raises(UserError, match=said):
        check_address(environment)


def test_torchrun_says_the_place_of_a_process():
    """Each variable is read."""
    assert read_launch(TORCHRUN) == Launch(rank=5, world=8, local_rank=1, local_world=4, attempt=2)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("RANK", "8", "RANK is '8', expected a number from 0 to 7"),
        ("RANK", "-1", "RANK is '-1', expected a number from 0 to 7"),
        ("WORLD_SIZE", "0", "WORLD_SIZE is '0', expected a number from 1 on"),
        ("WORLD_SIZE", None, "WORLD_SIZE is None, expected a number from 1 on"),
        ("LOCAL_RANK", "4", "LOCAL_RANK is '4', expected a number from 0 to 3"),
        ("LOCAL_WORLD_SIZE", "9", "LOCAL_WORLD_SIZE is '9', expected a number from 1 to 8"),
        ("TORCHELASTIC_RESTART_COUNT", "x", "COUNT is 'x', expected a number from 0 on"),
    ],
)
def test_a_variable_that_cannot_be(name, text, said):
    """The message names the variable, what it holds and what it may hold."""
    environment = {**TORCHRUN, name: text}
    if text is None:
        del environment[name]

    with pytest.raises(UserError, match=said):
        read_launch(environment)


@pytest.mark.parametrize(
    ("name", "num_gpus", "taken"),
    [
        ("cuda", 4, "cuda:1"),
        ("auto", 8, "cuda:1"),
        ("auto", 0, "cpu"),
        ("cpu", 4, "cpu"),
        ("cuda", 0, "cuda:1"),
    ],
)
def test_a_rank_takes_the_gpu_of_its_number(name, num_gpus, taken):
    """The number on its own host counts, not that over all hosts."""
    assert device_of(read_launch(TORCHRUN), name, num_gpus=num_gpus) == taken


@pytest.mark.parametrize("name", ["auto", "cpu", "cuda", "cuda:3"])
def test_one_rank_takes_what_was_asked_for(name):
    """Nothing changes for a process alone."""
    assert device_of(Launch(), name, num_gpus=4) == name


def test_one_gpu_for_several_ranks_is_refused():
    """The message says what to ask for instead."""
    with pytest.raises(UserError, match=r'"cuda:0"` is one GPU for 4 ranks.*use `device="cuda"`'):
        device_of(read_launch(TORCHRUN), "cuda:0", num_gpus=4)


@pytest.mark.parametrize(("num_gpus", "said"), [(1, "1 GPU,"), (3, "3 GPUs,")])
@pytest.mark.parametrize("name", ["auto", "cuda"])
def test_fewer_gpus_than_ranks_are_refused(name, num_gpus, said):
    """Every rank of the host says so, also one that would have found its GPU."""
    first = read_launch({**TORCHRUN, "LOCAL_RANK": "0"})

    with pytest.raises(UserError, match=f"4 ranks on this host have {said} .*start {num_gpus} on"):
        device_of(first, name, num_gpus=num_gpus)


def test_one_rank_a_host_may_choose_its_gpu():
    """Several hosts with one process each have one GPU each of that number."""
    launch = Launch(rank=1, world=2)

    assert device_of(launch, "cuda:3", num_gpus=4) == "cuda:3"


def test_a_process_alone_is_one_rank():
    """Also if torchrun started it."""
    assert isinstance(find_ranks("cpu", launch=Launch()), SingleRank)


def test_one_rank_loads_nothing_that_talks_to_others():
    """Neither modules that train nor the choice of one rank do; the room itself leaves out torch."""
    code = f"""
import sys
import gapless.ranks
print("torch" in sys.modules)
import gapless.cli.train_command, gapless.nmt.run.trainer
gapless.ranks.find_ranks("cpu")
loaded = {{name for name in sys.modules if name.startswith("gapless.ranks.")}}
print(*sorted(loaded - {{"gapless.ranks." + name for name in {ALLOWED}}}))
"""

    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(Path(gapless.__file__).parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.stdout, done.stderr) == ("False\n\n", "")
