"""Ranks decide the same, since each hears what all of them have."""

from __future__ import annotations

from contextlib import contextmanager

from gapless.ranks import CollectiveDecision, SingleRank, first_other


class Ranks:
    """Three ranks, of which the others have given values."""

    world = 3

    def __init__(self, *others):
        self.others = others

    def agree(self, own):
        return [own, *self.others]


class Waits:
    def __init__(self):
        self.reasons = []

    @contextmanager
    def blocking(self, reason):
        self.reasons.append(reason)
        yield


def test_all_values_come_back_and_the_wait_is_counted():
    """Once for each exchange."""
    waits = Waits()

    assert CollectiveDecision(Ranks(5, 7), waits.blocking).values(6) == [6, 5, 7]
    assert waits.reasons == ["agreement"]


def test_one_rank_that_says_so_is_enough():
    """Whichever it is."""
    waits = Waits()

    assert CollectiveDecision(Ranks(False, True), waits.blocking).any_rank(False)
    assert CollectiveDecision(Ranks(False, False), waits.blocking).any_rank(True)
    assert not CollectiveDecision(Ranks(False, False), waits.blocking).any_rank(False)


def test_a_process_alone_waits_for_nobody():
    """It has its own value at once."""
    waits = Waits()

    assert CollectiveDecision(SingleRank(), waits.blocking).values(6) == [6]
    assert waits.reasons == []


def test_the_first_rank_that_differs_from_rank_0_is_found():
    """With what it has; None where all have the same."""
    assert first_other([1, 1, 3, 4]) == (2, 3)
    assert first_other([1, 1]) is None
