"""While ranks start there is no heartbeat yet: nobody waits for one that will never come."""

from __future__ import annotations

import signal

import pytest

from ranks.runs import options


pytestmark = pytest.mark.xdist_group("processes: start")

NEVER_COMES = """
import time
import gapless.ranks.group as group
group._store_of = lambda launch: time.sleep(100_000)
"""

# Says when it begins to wait for the others.
SAYS_THAT_IT_WAITS = """
import gapless.ranks.group as group
def told(*place):
    open("waits", "w").close()
    wait(*place)
wait, group._wait_for_all = group._wait_for_all, told
"""

# The ranks have met, and one dies before they connect.
DIES_WHEN_MET = """
import os
import gapless.ranks.group as group
def met(*place):
    wait(*place)
    os._exit(7)
wait, group._wait_for_all = group._wait_for_all, met
"""

CONNECTS_IN_A_SECOND = """
from datetime import timedelta
import gapless.ranks.group as group
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
