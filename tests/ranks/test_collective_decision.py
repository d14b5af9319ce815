"""Ranks decide the same, since each hears what all of them have."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from gapless.errors import DataError, FirstRankError
from gapless.ranks import CollectiveDecision, SingleRank, first_other, on_first_rank


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


# --- what rank 0 makes for all ---


class Shares(SingleRank):
    """One of two ranks, which gets what it is said to get from rank 0."""

    world = 2

    def __init__(self, *, is_first=True, heard=None):
        self.is_first = is_first
        self.heard = heard
        self.shared = []

    def share(self, value):
        self.shared.append(value)
        return value if self.is_first else self.heard


def test_what_rank_0_makes_is_everybodys():
    """The others make nothing."""
    first, other = Shares(), Shares(is_first=False, heard=("made",))

    assert on_first_rank(first, lambda: "made") == "made"
    assert first.shared == [("made",)]
    assert on_first_rank(other, lambda: pytest.fail("made by another rank")) == "made"


def test_an_error_of_rank_0_ends_the_wait_of_the_others():
    """They raise too; rank 0 has the text."""

    def fail():
        raise DataError("no text")

    first = Shares()
    with pytest.raises(DataError, match="no text"):
        on_first_rank(first, fail)
    with pytest.raises(FirstRankError):
        on_first_rank(Shares(is_first=False, heard=first.shared[0]), fail)


def test_nothing_is_an_answer_too():
    """`None` is what a check returns."""
    assert on_first_rank(Shares(is_first=False, heard=(None,)), lambda: None) is None
