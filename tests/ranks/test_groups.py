"""The harness of ranks sees a hang, and where it is, in ranks that know nothing of gapless."""

from __future__ import annotations

from pathlib import Path

import pytest

from ranks.groups import HungError


pytestmark = pytest.mark.xdist_group("processes: groups")

LOOP = Path(__file__).with_name("gloo_loop.py")


@pytest.mark.slow
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
