"""Who is lost, who failed and whether all ranks stand still, by what was heard: no processes."""

from __future__ import annotations

from time import monotonic

import pytest

from gapless.ranks.beats import Beat, BeatExchange, EndReason, Progress
from gapless.ranks.liveness import End, Liveness


SILENT, STILL = 3.0, 60.0


class Ranks:
    """A rank of three, at update 5, and what it has heard of the others."""

    def __init__(self, rank=0):
        self.progress = Progress()
        self.progress.note_updates(5)
        # Nobody is talked to before it starts.
        self.beats = BeatExchange(None, self.progress, rank=rank, world=3)
        self.liveness = Liveness(
            self.beats, self.progress, rank=rank, silent_seconds=SILENT, still_seconds=STILL
        )
        for number in self.beats.peers:
            self.hear(number)

    def hear(self, number, **changes):
        beat = Beat(updates=5, is_paused=False, may_be_silent=False)
        self.beats.peers[number].hear(beat._replace(**changes))

    def beat_on(self):
        """Let no silence count any more."""
        for peer in self.beats.peers.values():
            peer.heard_at += 10_000

    def reason_after(self, seconds):
        return self.liveness.reason_to_end(monotonic() + seconds)


@pytest.fixture
def ranks():
    return Ranks()


def test_ranks_that_beat_end_nobody(ranks):
    """Neither silence nor a stand has lasted long enough."""
    assert ranks.reason_after(SILENT - 1) is None


def test_a_closed_connection_is_a_lost_rank(ranks):
    """Its process has ended: nobody waits for its silence."""
    ranks.beats.peers[2].is_closed = True

    assert ranks.reason_after(0) == End(EndReason.LOST, 2)


def test_a_rank_without_a_beat_is_lost(ranks):
    """It has done updates, and says of no pause."""
    ranks.beats.peers[2].heard_at += SILENT

    assert ranks.reason_after(SILENT + 1) == End(EndReason.LOST, 1)


def test_silence_in_a_pause_that_may_be_silent_is_no_loss(ranks):
    """A library that is loaded holds the interpreter; a stop that is asked for does not wait for it."""
    ranks.hear(1, is_paused=True, may_be_silent=True)
    ranks.beats.peers[2].heard_at += 1000
    in_a_pause = ranks.reason_after(SILENT + 1)
    ranks.liveness.is_stop_asked = True
    when_asked = ranks.reason_after(SILENT + 1)

    assert in_a_pause is None
    assert when_asked == End(EndReason.LOST, 1)


def test_time_in_which_this_rank_was_held_up_counts_for_nobody(ranks):
    """What the others said meanwhile is only heard afterwards."""
    ranks.liveness.allow_for(100.0)

    assert ranks.reason_after(100.0) is None


def test_rank_0_names_the_rank_that_is_behind_where_all_stand_still(ranks):
    """All beat, and none does an update."""
    ranks.hear(1, updates=4)
    ranks.beat_on()
    end = ranks.reason_after(STILL + 1)

    assert end == End(EndReason.STANDING, 1)
    assert ranks.liveness.line(end, is_error=True) == (
        "gapless: error: no rank has done an update for 60 s: rank 1 is at update 4, the others at 5; "
        "all ranks end without saving, go on from the last checkpoint\n"
    )


def test_a_rank_in_a_pause_lets_nobody_stand_still(ranks):
    """It validates, and the others wait for it."""
    ranks.progress.num_pauses = 1
    ranks.beat_on()

    assert ranks.reason_after(STILL + 1) is None


def test_another_rank_than_0_does_not_decide_that_all_stand_still():
    """Else several would say so, each in its own line."""
    other = Ranks(rank=1)
    other.beat_on()

    assert other.reason_after(STILL + 1) is None


def test_a_failed_rank_has_time_to_say_why(ranks):
    """Its connection may close meanwhile; then it has said so. A rank that failed itself goes on to tell."""
    ranks.hear(1, why=int(EndReason.FAILED), about=1, since=7)
    while_it_tells = ranks.reason_after(0)
    ranks.beats.peers[1].is_closed = True
    afterwards = ranks.reason_after(0)
    ranks.liveness.has_failed = True
    of_a_failed_rank = ranks.reason_after(0)

    assert while_it_tells is None
    assert afterwards == End(EndReason.FAILED, 1)
    assert of_a_failed_rank is None


def test_slow_updates_need_more_patience(ranks):
    """As long as twenty times the slowest one."""
    ranks.progress.slowest_seconds = STILL
    ranks.beat_on()

    assert ranks.reason_after(STILL * 19) is None
    assert ranks.reason_after(STILL * 21).why == EndReason.STANDING


def test_a_loss_that_another_rank_saw_is_believed(ranks):
    """All ranks end for the same reason."""
    ranks.hear(1, why=int(EndReason.LOST), about=2)

    assert ranks.reason_after(0) == End(EndReason.LOST, 2)


def test_the_first_of_several_failures_is_told(ranks):
    """Another rank failed at time 7."""
    ranks.hear(1, why=int(EndReason.FAILED), about=1, since=7)

    assert ranks.liveness.is_first_failure(6)
    assert not ranks.liveness.is_first_failure(8)


def test_a_rank_that_is_lost_when_all_is_done_is_told_of_once(ranks):
    """Nobody needs it any more."""
    ranks.hear(1, is_done=True)
    ranks.beats.peers[2].is_closed = True
    now = monotonic()

    assert ranks.liveness.is_all_done()
    assert ranks.liveness.newly_lost_when_done(now) == [
        "gapless: rank 2 is gone after update 5, its process has ended; all was done before, and is kept\n"
    ]
    assert ranks.liveness.newly_lost_when_done(now) == []


def test_a_rank_that_has_ended_its_work_is_not_behind_when_all_is_done(ranks):
    """One that has not come to its end is given up."""
    ranks.hear(1, is_done=True, ends=True)
    ranks.beat_on()

    assert ranks.liveness.newly_lost_when_done(monotonic() + STILL + 1) == [
        "gapless: rank 2 does not come to its end; all was done before, and is kept\n"
    ]
