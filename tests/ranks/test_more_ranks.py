"""Three and four ranks stop, and lose one of them, as two do."""

from __future__ import annotations

import signal

import pytest

from faults.runs import newest_step
from gapless.errors import EXIT_PEER_LOST
from ranks.faults import SLOW
from ranks.runs import SAVE_EVERY, options


pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("processes: more ranks")]

# For machines with fewer cores than ranks.
EIGHT_CORES = """
import os
os.sched_getaffinity, os.cpu_count = lambda _: set(range(8)), lambda: 8
"""


@pytest.fixture
def training(fork, data, tmp_path):
    """Start ranks, and return them when they have saved a state."""

    def call(world):
        run = tmp_path / "run"
        group = fork(*options(data, run, epochs=8), world=world, before=EIGHT_CORES + SLOW)
        group.until(lambda: newest_step(run) >= SAVE_EVERY, what="an update was saved")
        return group

    return call


def test_the_last_rank_is_asked_to_stop(training, tmp_path):
    """All end after the same update, whose state is saved; the way on names as many ranks."""
    group = training(world=4)
    group.send(3, signal.SIGTERM)

    ended = group.end()

    assert {rank.code for rank in ended.ranks} == {128 + signal.SIGTERM}, ended.text
    assert ended.errors == []
    stopped = f"stopped after {newest_step(tmp_path / 'run')} updates; go on with"
    assert stopped in ended.out
    assert "torchrun --standalone --nproc-per-node 4 -m gapless train --resume" in ended.out


def test_one_of_several_is_killed(training):
    """All that are left end with the code of a lost peer, and one of them says who is gone."""
    group = training(world=3)
    group.send(0, signal.SIGKILL)

    ended = group.end()

    codes = [rank.code for rank in ended.ranks]
    assert codes.pop(0) == -signal.SIGKILL
    assert set(codes) == {EXIT_PEER_LOST}, ended.text
    assert len(ended.errors) == 1, ended.err
    assert "rank 0 is gone after update" in ended.errors[0]
    assert "Traceback" not in ended.err
