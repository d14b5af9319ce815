"""The heartbeat where ranks replay graphs: the host waits for a sum that never ends."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from gapless.errors import EXIT_PEER_LOST
from ranks.groups import torchrun


pytestmark = [pytest.mark.multi_gpu, pytest.mark.xdist_group("processes: heartbeat on gpus")]

PROGRAM = Path(__file__).with_name("replay_program.py")

LIMIT = 120


def test_ranks_leave_when_their_graphs_are_gone(tmp_path):
    """The groups are destroyed, and nothing hangs."""
    ended = torchrun(PROGRAM, "nothing", folder=tmp_path / "ranks").end(limit=LIMIT)

    ended.check_done()
    assert ended.out == "done\n" * 2


def test_a_killed_rank_ends_the_one_that_replays(tmp_path):
    """It waits for its device, which waits for the other rank; torchrun's signal alone ends nothing."""
    ended = torchrun(PROGRAM, "killed", folder=tmp_path / "ranks").end(limit=LIMIT)

    assert [rank.code for rank in ended.ranks] == [EXIT_PEER_LOST, -signal.SIGKILL]
    assert len(ended.errors) == 1, ended.err
    assert "rank 1 is gone after update" in ended.errors[0]


def test_a_graph_that_is_held_does_not_hold_up_the_end(tmp_path):
    """Either the groups can be destroyed all the same, or stacks are written and the process ends."""
    ended = torchrun(PROGRAM, "holds a graph", folder=tmp_path / "ranks").end(limit=LIMIT)

    assert ended.code == 0 or "destroy_process_group" in ended.err
