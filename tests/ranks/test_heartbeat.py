"""The heartbeat: a rank that dies, fails or stands still ends all; the end is agreed on."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from gapless.errors import EXIT_PEER_LOST
from gapless.ranks.leaving import leave
from ranks.heartbeat_program import AT_UPDATE


pytestmark = pytest.mark.xdist_group("processes: heartbeat")

PROGRAM = Path(__file__).with_name("heartbeat_program.py")

# Nothing is timed; a group that is left after so many seconds hangs.
LIMIT = 60


def test_ranks_that_are_done_leave_together(fork):
    """Nobody takes the first to leave for dead."""
    ended = fork(PROGRAM, "nothing", 0, world=3).end(limit=LIMIT)

    ended.check_done()
    assert [rank.out for rank in ended.ranks] == ["done\n"] * 3
    assert ended.err == ""


def test_a_killed_rank_ends_the_others(fork):
    """Their main threads sit in a wait that nothing ends; the first says as an error who is gone."""
    ended = fork(PROGRAM, "is_killed", 1, world=3).end(limit=LIMIT)

    assert [rank.code for rank in ended.ranks] == [EXIT_PEER_LOST, -signal.SIGKILL, EXIT_PEER_LOST]
    assert ended.ranks[0].err in [
        f"gapless: error: rank 1 is gone after update {update}, {how}; "
        "all ranks end without saving, go on from the last checkpoint\n"
        for update in (AT_UPDATE - 1, AT_UPDATE)
        # The other rank that is left may see it first.
        for how in ("its process has ended", "as another rank says")
    ]
    assert "gapless: rank 2 ends: rank 1 is gone" in ended.ranks[2].err
    assert len(ended.err.splitlines()) == 2, ended.err


def test_an_error_that_follows_from_a_killed_rank_is_not_shown(fork):
    """The collective of the rank that is left raises; only the cause is told, in one line."""
    ended = fork(PROGRAM, "sees_the_error", 0).end(limit=LIMIT)

    assert ended.ranks[1].code == EXIT_PEER_LOST
    assert len(ended.err.splitlines()) == 1, ended.err
    assert "rank 0 is gone" in ended.err


def test_a_rank_that_is_killed_when_all_is_done_ends_nobody(fork):
    """The others have nothing more to do than to end; the first of them says what happened."""
    ended = fork(PROGRAM, "is_killed_when_done", 0, world=3).end(limit=LIMIT)

    assert [one.code for one in ended.ranks] == [-signal.SIGKILL, 0, 0], ended.text
    assert ended.out == "done\n" * 2
    assert ended.err == (
        "gapless: rank 0 is gone after update 30, its process has ended; all was done before, "
        "and is kept\n"
    )


@pytest.mark.parametrize("has_all", [True, False])
def test_groups_of_which_a_rank_is_lost_are_left_as_they_are(has_all):
    """NCCL may wait for the rank where a group is destroyed."""
    destroyed = []

    leave(SimpleNamespace(end=lambda: has_all), lambda: destroyed.append("groups"))

    assert destroyed == ["groups"] * has_all


@pytest.mark.slow
@pytest.mark.parametrize(
    ("harm", "still_seconds", "said"),
    [
        ("is_stopped", 60, "rank 1 is silent after update 30"),
        ("waits", 2, "rank 1 does not come to its end"),
    ],
)
def test_a_rank_that_does_not_end_when_all_is_done_holds_nobody_up(
    fork, harm, still_seconds, said
):
    """A rank may hang in what a library does at its end."""
    limits = ("silent_seconds=1.5", f"still_seconds={still_seconds}")
    group = fork(PROGRAM, f"{harm}_when_done", 1, *limits)
    group.until(lambda: group.pid(0), what="rank 0")
    group.until_gone(0)
    group.send(1, signal.SIGKILL)
    ended = group.end(limit=LIMIT)

    assert [one.code for one in ended.ranks] == [0, -signal.SIGKILL], ended.text
    assert said in ended.err
    assert ended.err.count("all was done before, and is kept") == 1, ended.err


@pytest.mark.slow
def test_a_silent_rank_is_given_up_and_killed(fork):
    """A stopped process has an open connection, but no beat; it told the others of its first update."""
    ended = fork(PROGRAM, "is_stopped_soon", 1, "silent_seconds=1.5").end(limit=LIMIT)

    assert [rank.code for rank in ended.ranks] == [EXIT_PEER_LOST, -signal.SIGKILL]
    assert len(ended.errors) == 1, ended.err
    assert "rank 1 is silent after update" in ended.err


@pytest.mark.slow
def test_ranks_that_are_all_held_up_go_on(fork):
    """A job that is suspended and continued hears nothing for a while, of which no rank is the cause."""
    group = fork(PROGRAM, "is_stopped", "all", "silent_seconds=1")
    group.until(lambda: all(is_stopped(group, rank) for rank in (0, 1)), what="both stopped")
    time.sleep(2.0)
    group.ask_to_end(signal.SIGCONT)

    ended = group.end(limit=LIMIT)

    ended.check_done()
    assert ended.err == ""


def is_stopped(group, rank):
    pid = group.pid(rank)
    return pid and Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("harm", "rank", "limit"),
    [
        ("pauses", 0, "still_seconds=1"),
        ("pauses", 1, "still_seconds=1"),
        ("pauses_with_the_lock", 1, "silent_seconds=1"),
        ("begins_with_the_lock", 1, "silent_seconds=1"),
    ],
)
def test_a_pause_is_no_reason_to_end(fork, harm, rank, limit):
    """A rank that says what it is about, or has done no update yet, may take its time.

    A library that holds the interpreter all the while lets no beat through.
    """
    ended = fork(PROGRAM, harm, rank, limit).end(limit=LIMIT)

    ended.check_done()
    assert ended.err == ""


@pytest.mark.slow
def test_a_rank_that_is_silent_in_a_pause_is_given_up_at_a_stop(fork, tmp_path):
    """Whoever is asked to stop cannot agree on it with a rank that does not answer."""
    group = fork(PROGRAM, "is_stopped_in_a_pause", 1, "silent_seconds=1.5")
    group.until((tmp_path / "ranks" / "harmed").exists, what="the harm")
    group.send(0, signal.SIGTERM)

    ended = group.end(limit=LIMIT)

    assert [rank.code for rank in ended.ranks] == [EXIT_PEER_LOST, -signal.SIGKILL]
    assert "rank 1 is silent" in ended.err


@pytest.mark.slow
def test_a_rank_that_is_silent_in_a_pause_that_lets_it_beat_is_given_up(fork):
    """As in a validation: whatever a rank does there, its heartbeat has the interpreter too."""
    limits = ("silent_seconds=1", "still_seconds=2")
    ended = fork(PROGRAM, "is_stopped_in_a_short_pause", 1, *limits).end(limit=LIMIT)

    assert [rank.code for rank in ended.ranks] == [EXIT_PEER_LOST, -signal.SIGKILL]
    assert "rank 1 is silent" in ended.err


@pytest.mark.slow
def test_ranks_that_stand_still_end_with_their_stacks(fork):
    """One line names the rank that is behind; both show where they are."""
    ended = fork(PROGRAM, "waits", 1, "still_seconds=1.5").end(limit=LIMIT)

    assert [rank.code for rank in ended.ranks] == [EXIT_PEER_LOST, EXIT_PEER_LOST]
    assert len(ended.errors) == 1, ended.err
    assert "no rank has done an update for 2 s" in ended.errors[0]
    assert "in all_reduce" in ended.ranks[0].err
    assert "in hang" in ended.ranks[1].err


@pytest.mark.parametrize(
    ("rank", "codes"),
    [pytest.param(0, [1, EXIT_PEER_LOST], marks=pytest.mark.slow), ("all", [1, 1])],
)
def test_an_error_on_one_rank_is_shown_once(fork, rank, codes):
    """All end, and the traceback is there one time, even if all ranks raise at once."""
    ended = fork(PROGRAM, "raises", rank).end(limit=LIMIT)

    assert [one.code for one in ended.ranks] == codes
    assert ended.err.count("RuntimeError: planted in one rank") == 1, ended.err
    assert ended.err.count("Traceback") == 1, ended.err
    assert ended.errors == []


@pytest.mark.slow
def test_groups_that_cannot_be_destroyed_do_not_hold_up_the_end(fork):
    """As long as a graph holds them; the stacks say where the process was."""
    ended = fork(PROGRAM, "hangs_at_the_end", 0).end(limit=LIMIT)

    assert [rank.code for rank in ended.ranks] == [1, 1]
    assert "in hang" in ended.ranks[0].err
