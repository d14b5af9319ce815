"""Several ranks over gloo: what each asks of the others, and what it gets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gapless.errors import EXIT_PEER_LOST
from ranks.groups import torchrun


pytestmark = pytest.mark.xdist_group("processes: group")

PROGRAM = Path(__file__).with_name("group_program.py")


def found(ended):
    """Return what each rank printed."""
    return [json.loads(rank.out) for rank in ended.ranks]


def check_values(ended):
    ended.check_done()
    first, second = found(ended)
    assert (first.pop("place"), second.pop("place")) == ([0, 2, True], [1, 2, False])
    assert first == second
    rows = [[0.0, 2.0, 4.0], [1.0, 3.0, 5.0]]
    assert first == {
        "agree": [{"rank": 0}, {"rank": 1}],
        "share": ["of", 0],
        "rows": [rows, [[value + 10.0 for value in row] for row in rows]],
        "none": [2, 0, 3],
        "sum": [3.0, 3.0, 3.0],
    }


def test_all_ranks_get_what_they_ask_for(fork):
    """Values come in the order of ranks; gradients are summed; rows are stacked; nothing is said."""
    ended = fork(PROGRAM, "values").end()

    check_values(ended)
    assert ended.err == ""


@pytest.mark.multi_gpu
def test_ranks_on_gpus_get_the_same(tmp_path):
    """Each rank has the GPU of its number; sums and rows go over NCCL."""
    check_values(torchrun(PROGRAM, "values", "cuda", folder=tmp_path / "ranks").end())


@pytest.mark.multi_gpu
def test_two_ranks_on_one_gpu_end_before_nccl(tmp_path):
    """Both say the same, and nothing hangs."""
    ended = torchrun(PROGRAM, "one gpu", "cuda", folder=tmp_path / "ranks").end()

    ended.check_done()
    assert all("ranks 0, 1 have the same GPU" in one["error"] for one in found(ended))


def test_all_ranks_act_on_flags_at_the_same_update(fork):
    """The largest value counts, once, at the second exchange after it was raised."""
    ended = fork(PROGRAM, "flags").end()

    ended.check_done()
    first, second = found(ended)
    assert first == second
    assert first == {
        "seen": {"6": {"stop": 3}, "9": {"stop": 2}},
        "last": {"failed": 1},
        # After updates 6 and 9, and twice at the end.
        "waits": ["agreement"] * 4,
    }


def test_slow_updates_are_agreed_on_more_often(fork):
    """By the time of the slowest rank, which all know: a flag does not wait for seconds."""
    ended = fork(PROGRAM, "slow").end()

    ended.check_done()
    first, second = found(ended)
    assert first == second
    assert first == {
        "seen": {
            # Nothing is known of the time yet.
            "1": {"stop": 1},
            # Then five updates take half a second.
            "15": {"stop": 2},
            # From here on an update takes longer.
            "30": {"failed": 3},
            "31": {"stop": 4},
        },
        "last": {},
        # At updates 1 and 2, at multiples of 5 from 10 on, again at 30, then at each and at the end.
        "waits": 11,
    }


def test_weights_that_differ_are_found(fork):
    """One bit is enough; all ranks say the same, and name the update, the weight and the rank."""
    ended = fork(PROGRAM, "weights").end()

    ended.check_done()
    first, second = found(ended)
    assert first == second
    assert first["waits"] == {"checkpoint": 1}
    assert first["said"].startswith(
        "after update 8 the weight bias of rank 1 is not that of rank 0"
    )


def test_two_ranks_on_one_gpu_are_refused(fork):
    """All ranks raise the same error, which names the ranks and what to do."""
    ended = fork(PROGRAM, "one gpu").end()

    ended.check_done()
    first, second = found(ended)
    assert first == second
    assert first["error"].startswith(
        "UserError: ranks 0, 1 have the same GPU (GPU-1234), expected one for each; start no more"
    )


def test_a_rank_that_never_comes_is_named(fork):
    """The others wait for a limited time, and say who is missing."""
    ended = fork(
        PROGRAM,
        "values",
        before=[
            "import gapless.ranks.meeting as meeting; meeting.SECONDS_TO_ARRIVE = 0.5",
            "raise SystemExit",
        ],
    ).end()

    ended.check_done()
    said = json.loads(ended.ranks[0].out)["error"]
    assert said.startswith(
        "RanksError: rank 1 of 2 did not come within 0 s; look at what they say"
    )


@pytest.mark.parametrize("awaited", ["values", "rows", "flags"])
def test_a_rank_that_is_gone_ends_the_others(fork, awaited):
    """Nobody waits for it, and what follows from that is not told."""
    ended = fork(PROGRAM, f"lost {awaited}").end()

    assert [rank.code for rank in ended.ranks] == [EXIT_PEER_LOST, 0]
    assert ended.out == ""
    # Gloo may log to standard error by itself.
    ours = [line for line in ended.err.splitlines() if not line.startswith("[rank")]
    assert len(ours) == 1, ended.err
    assert "rank 1 is gone after update 0, its process has ended" in ended.err


@pytest.mark.slow
def test_torchrun_starts_the_same(tmp_path):
    """The variables and the store of the real launcher do, at the first attempt."""
    ended = torchrun(PROGRAM, "flags", folder=tmp_path / "ranks").end()

    ended.check_done()
    assert found(ended)[0]["seen"] == {"6": {"stop": 3}, "9": {"stop": 2}}
