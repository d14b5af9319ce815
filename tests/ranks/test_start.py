"""While ranks start there is no heartbeat yet: nobody waits for one that will never come."""

from __future__ import annotations

import signal

import pytest

from ranks.groups import torchrun
from ranks.runs import options


pytestmark = pytest.mark.xdist_group("processes: start")

# Far less than ranks wait for one of which they know nothing.
LIMIT = 60

FAILS = """
import gapless.cli.train_command as command
def fails(*_):
    raise RuntimeError("planted in one rank")
command._device_name = fails
"""

BOGUS = """
import gapless.cli.main as main
run = main.run_command
main.run_command = lambda arguments: run([*arguments, "--bogus"])
"""

NEVER_COMES = """
import time
import gapless.ranks.torch_ranks as group
group.store_of = lambda launch: time.sleep(100_000)
"""

# Says when it begins to wait for the others.
SAYS_THAT_IT_WAITS = """
import gapless.ranks.torch_ranks as group
def told(*place):
    open("waits", "w").close()
    wait(*place)
wait, group.wait_for_all = group.wait_for_all, told
"""

# The ranks have met, and one dies before they connect.
DIES_WHEN_MET = """
import os
import gapless.ranks.torch_ranks as group
def met(*place):
    wait(*place)
    os._exit(7)
wait, group.wait_for_all = group.wait_for_all, met
"""

CONNECTS_IN_A_SECOND = """
from datetime import timedelta
import gapless.ranks.torch_ranks as group
group._TO_CONNECT = timedelta(seconds=1)
"""


def test_a_signal_ends_a_rank_that_waits_for_others(fork, data, tmp_path):
    """As torchrun sends it when another dies: the wait is in code that reads no signal."""
    group = fork(*options(data, tmp_path / "run"), before=[SAYS_THAT_IT_WAITS, NEVER_COMES])
    group.until((tmp_path / "ranks" / "waits").exists, what="the wait")
    group.until(lambda: group.pid(1), what="the other rank")
    group.send(0, signal.SIGTERM)
    group.until_gone(0)
    group.send(1, signal.SIGKILL)

    ended = group.end()

    assert [rank.code for rank in ended.ranks] == [128 + signal.SIGTERM, -signal.SIGKILL]
    assert ended.err == "gapless: error: interrupted by SIGTERM\n"


def test_a_rank_that_dies_before_it_connects(fork, data, tmp_path):
    """On another host, where no torchrun ends those that are left: they wait for a limited time."""
    ended = fork(
        *options(data, tmp_path / "run"), before=[CONNECTS_IN_A_SECOND, DIES_WHEN_MET]
    ).end()

    assert [rank.code for rank in ended.ranks] == [1, 7]
    assert len(ended.errors) == 1, ended.err
    assert "rank 0 of 2 cannot reach the others" in ended.errors[0]


def test_a_rank_that_only_prints_settings_is_not_waited_for(fork, data, tmp_path):
    """It is done with exit code 0, at which torchrun ends nobody; of those that wait one says so."""
    more = [[], [], ["--dry-run"]]
    ended = fork(*options(data, tmp_path / "run"), more=more, world=3).end(limit=LIMIT)

    assert [rank.code for rank in ended.ranks] == [2, 2, 0], ended.text
    assert ended.err.splitlines() == [
        "gapless: error: rank 2 was started with --dry-run, and trains nothing; start all ranks with "
        "the same options"
    ]


def test_an_unknown_option_of_one_rank(fork, data, tmp_path):
    """It says so when rank 0 does not, and rank 0 ends with it and says no more."""
    more = [[], ["--bogus"]]
    ended = fork(*options(data, tmp_path / "run"), more=more).end(limit=LIMIT)

    ended.check_refused("rank 1: unrecognized arguments: --bogus")


@pytest.mark.slow
def test_torchrun_and_an_unknown_option_of_one_rank(data, tmp_path):
    """The rank that torchrun ends is not said to be interrupted."""
    ended = torchrun(
        *options(data, tmp_path / "run"), folder=tmp_path / "ranks", before=["", BOGUS]
    ).end(limit=LIMIT)

    assert ended.code == 1
    assert len(ended.errors) == 1, ended.err
    assert ended.ranks[1].code == 2
    assert "rank 1: unrecognized arguments: --bogus" in ended.errors[0]


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_an_exception_of_one_rank_before_all_have_met(fork, data, tmp_path, rank):
    """The traceback is there once, and the other ends with it."""
    before = ["", ""]
    before[rank] = FAILS
    group = fork(
        *options(data, tmp_path / "run"),
        before=before,
        # Of a launcher that ends nobody.
        GROUP_WORLD_SIZE=2,
        LOCAL_WORLD_SIZE=1,
        LOCAL_RANK=0,
    )
    ended = group.end(limit=LIMIT)

    assert [one.code for one in ended.ranks] == [1, 1], ended.text
    assert ended.err.count("Traceback") == 1, ended.err
    assert len(ended.errors) == 1, ended.err
    assert "planted in one rank" in ended.ranks[rank].err
