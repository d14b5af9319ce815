"""The harness of ranks: it sees hangs, orphans and codes, in ranks that know nothing of gapless."""

from __future__ import annotations

from pathlib import Path

import pytest

from ranks.groups import HungError, torchrun


pytestmark = pytest.mark.xdist_group("processes: groups")

LOOP = Path(__file__).with_name("gloo_loop.py")


def test_ranks_that_are_done(fork):
    """Both get through, and each has its own output."""
    ended = fork(LOOP, "nothing").end()

    ended.check_done()
    assert [rank.out for rank in ended.ranks] == ["rank 0 of 2: 3\n", "rank 1 of 2: 3\n"]
    assert [rank.code for rank in ended.ranks] == [0, 0]


def test_a_rank_that_waits_is_shown(fork, tmp_path):
    """The hang ends at the limit, with the lines at which both ranks stand."""
    group = fork(LOOP, "waits")
    group.until((tmp_path / "ranks" / "harmed").exists, what="the harm")

    with pytest.raises(HungError) as caught:
        group.end(limit=0.5)

    assert "2 processes are left" in str(caught.value)
    assert "all_reduce" in str(caught.value)
    assert 'gloo_loop.py", line' in str(caught.value).partition("rank 1")[2]
    assert group.members() == []


@pytest.mark.slow
def test_torchrun_ends_the_others(tmp_path):
    """Its ranks are found by number, with their codes; none is left."""
    group = torchrun(LOOP, "ends", folder=tmp_path / "ranks")
    group.until((tmp_path / "ranks" / "harmed").exists, what="the harm")
    group.fault_is_now()

    ended = group.end()

    assert ended.code != 0
    assert ended.ranks[1].code == 3
    assert group.members() == []
