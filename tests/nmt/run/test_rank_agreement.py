"""What several ranks of a run do and decide alike."""

from __future__ import annotations

import os
import signal
from types import SimpleNamespace

import pytest

from gapless.nmt.run.rank_agreement import decisions_of, first_difference
from gapless.nmt.run.stopping import AgreedClock, StopRequest, WallClock
from gapless.ranks import SingleRank


class Ranks(SingleRank):
    """One of two ranks, which hears what it is told to hear."""

    world = 2

    def __init__(self):
        self.is_first = True
        self.asked = []
        self.agreed = {}

    def agreement(self, flags, **_):
        return self

    def ask(self, flag, value=1):
        self.asked.append((flag, value))

    def after_update(self, updates):
        agreed, self.agreed = self.agreed, {}
        return agreed

    def finish(self):
        return self.after_update(0)


@pytest.fixture
def run():
    """A run of two ranks that are about to decide."""
    ranks, drained = Ranks(), []
    return SimpleNamespace(
        ranks=ranks,
        clock=AgreedClock(WallClock()),
        host_waits=SimpleNamespace(blocking=None),
        losses=SimpleNamespace(drain=lambda: drained.append(True)),
        drained=drained,
    )


# --- decisions ---


def decide(run, stop=None):
    return decisions_of(
        run.ranks,
        stop=stop or StopRequest(),
        clock=run.clock,
        losses=run.losses,
        host_waits=run.host_waits,
    )


def test_a_signal_stops_a_rank_only_when_all_agree(run):
    """The rank that got it tells the others, and stops where they do."""
    with StopRequest() as stop:
        decisions = decide(run, stop)
        os.kill(os.getpid(), signal.SIGTERM)
        decisions.after_update(1)

        assert not stop.is_set
        assert ("stop", signal.SIGTERM) in run.ranks.asked

        run.ranks.agreed = {"stop": int(signal.SIGTERM)}
        decisions.after_update(2)

        assert stop.number == signal.SIGTERM


def test_a_save_that_somebody_asked_for_is_of_all(run):
    """It is taken once, at the update at which all know of it."""
    decisions = decide(run)
    run.ranks.agreed = {"save": 1}
    decisions.after_update(1)

    assert decisions.take_save()
    assert not decisions.take_save()


def test_a_failure_is_of_all(run):
    """The rank that read the loss goes on until all know; by then each has read it."""
    decisions = decide(run)
    decisions.ask_to_fail()
    decisions.after_update(1)

    assert ("fail", 1) in run.ranks.asked
    assert not decisions.fails
    assert run.drained == []

    run.ranks.agreed = {"fail": 1}
    decisions.after_update(2)

    assert decisions.fails
    assert run.drained == [True]


def test_a_process_alone_fails_at_once(run):
    """It has nobody to wait for."""
    run.ranks = SingleRank()
    decisions = decide(run)
    decisions.ask_to_fail()

    assert decisions.fails
    assert run.drained == []


def test_the_time_is_that_of_rank_0_when_all_agreed(run):
    """Not that of each rank: the end of a run that has a limit would differ."""
    decisions = decide(run)

    assert run.clock.seconds() == 0.0

    run.ranks.agreed = {"milliseconds": 1500}
    decisions.after_update(1)
    run.ranks.agreed = {"milliseconds": 1200}
    decisions.settle()

    assert run.clock.seconds() == 1.5


def test_other_ranks_do_not_tell_their_time(run):
    """Theirs may be ahead."""
    run.ranks.is_first = False
    decide(run).after_update(1)

    assert run.ranks.asked == []


# --- started alike ---


@pytest.mark.parametrize(
    ("ranks", "parts"),
    [
        ([{"`lr`": "0.1"}, {"`lr`": "0.1"}, {"`lr`": "0.2"}], ["`lr` is 0.1", "0.2 on rank 2"]),
        ([{"`lr`": "0.1"}, {}], ["`lr` is 0.1 on rank 0", "missing on rank 1"]),
        ([{}, {"`seed`": "3"}], ["`seed` is missing on rank 0", "3 on rank 1"]),
    ],
    ids=["another value", "not given", "given by another"],
)
def test_the_first_difference_is_named(ranks, parts):
    """With both values and the rank."""
    line = first_difference(ranks)

    assert [part for part in parts if part not in line] == []


def test_ranks_that_were_started_alike():
    """In whatever order they name their settings."""
    assert first_difference([{"a": "1", "b": "2"}, {"b": "2", "a": "1"}]) is None
