"""Python's warnings of a run on several ranks are shown once, and name the rank that alone has one."""

from __future__ import annotations

import os
import sys
import warnings
from contextlib import contextmanager

import pytest

from gapless.nmt.run.rank_warnings import RankWarnings
from ranks.faults import at_update
from ranks.runs import options


class TwoRanks:
    """One of two ranks; what both would send is given."""

    world = 2

    def __init__(self, rank, sent):
        self.rank, self.is_first, self._sent = rank, rank == 0, sent
        self._is_paused = False

    @contextmanager
    def pause(self, reason, *, may_be_silent):
        self._is_paused = True
        yield
        self._is_paused = False

    def agree(self, value):
        assert self._is_paused, "who waits for a rank that still saves would stand still"
        self._sent[self.rank] = value
        return [self._sent.get(rank, []) for rank in range(2)]


class SingleRank:
    rank, world, is_first = 0, 1, True

    def agree(self, value):
        raise AssertionError("one rank agrees with nobody")


@pytest.fixture
def shown(monkeypatch):
    """The texts of warnings that are shown, whoever has filters."""
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        monkeypatch.setattr(
            warnings, "showwarning", lambda message, *_, **__: found.append(str(message))
        )
        yield found


def warn(text):
    warnings.warn(text, stacklevel=1)


def test_rank_0_shows_its_own_at_once_and_those_of_others_that_it_has_not_shown(shown):
    sent, said = {}, []
    with RankWarnings(TwoRanks(1, sent), say=said.append) as others:
        warn("both")
        warn("one alone")
        warn("one alone")
        others.gather()
    assert shown == []
    assert said == []

    with RankWarnings(TwoRanks(0, sent), say=said.append) as first:
        warn("both")
        assert shown == ["both"]
        first.gather()
        first.gather()

    assert len(said) == 1
    assert said[0].startswith("rank 1: UserWarning: one alone (")
    assert shown == ["both"]


def test_what_was_not_gathered_is_shown_by_its_rank_when_the_run_ends(shown):
    with pytest.raises(ValueError, match="wrong"), RankWarnings(TwoRanks(1, {}), say=print):
        warn("kept")
        assert shown == []
        raise ValueError("wrong")
    assert shown == ["kept"]


def test_only_rank_0_says_what_others_warned_of(shown):
    sent, said = {}, []
    with RankWarnings(TwoRanks(1, sent), say=said.append) as second:
        warn("of rank 1")
        second.gather()
    with RankWarnings(TwoRanks(2, sent), say=said.append) as third:
        third.gather()
    assert said == []


def test_what_was_gathered_is_sent_once(shown):
    sent = {}
    with RankWarnings(TwoRanks(1, sent), say=print) as others:
        warn("one")
        others.gather()
        assert len(sent[1]) == 1
        warn("one")
        others.gather()
    assert sent[1] == []
    assert shown == []


def test_the_next_run_shows_warnings_as_before(shown):
    show = warnings.showwarning
    with RankWarnings(TwoRanks(1, {}), say=print):
        assert warnings.showwarning is not show
    assert warnings.showwarning is show


def test_one_rank_changes_nothing(shown):
    show = warnings.showwarning
    with RankWarnings(SingleRank(), say=print) as alone:
        assert warnings.showwarning is show
        warn("at once")
        alone.gather()
    assert shown == ["at once"]


@pytest.mark.skipif(sys.platform == "win32", reason="it has no fork")
def test_a_forked_process_shows_its_own(shown, tmp_path):
    """A worker of a loader has nobody to hand its warnings to."""
    with RankWarnings(TwoRanks(1, {}), say=print):
        child = os.fork()
        if child == 0:
            warn("of a worker")
            os._exit(len(shown))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    assert shown == []


@pytest.mark.slow
@pytest.mark.xdist_group("processes: rank warnings")
def test_warnings_of_real_ranks_are_shown_once(fork, data, tmp_path):
    plant = "import warnings; warnings.warn('planted in {}')"
    both = at_update(plant.format("both"))
    alone = at_update(plant.format("both") + "; warnings.warn('planted in one')")

    ended = fork(*options(data, tmp_path / "run"), before=[both, alone]).end()

    ended.check_done()
    assert ended.err.count("planted in both") == 1, ended.err
    assert [line for line in ended.err.splitlines() if "planted in one" in line] == [
        line
        for line in ended.ranks[0].err.splitlines()
        if "rank 1: UserWarning: planted in one" in line
    ], ended.err
    assert ended.err.count("planted in one") == 1, ended.err
