"""What counts as the expected end of a fault, judged on made-up ends."""

from __future__ import annotations

import pytest

from gapless.errors import EXIT_PEER_LOST as LOST
from ranks.faults import FAULTS, GONE, TORCHRUN_KILLS, wrong_with
from ranks.groups import Ended, EndedRank


BY_NAME = {fault.name: fault for fault in FAULTS}


def end(codes, *, err="", seconds=1.0, rank_seconds=(1.0, 1.0)):
    """Return an end of two ranks, of which the first wrote all."""
    ranks = [
        EndedRank(code, "", text, took)
        for code, text, took in zip(codes, (err, ""), rank_seconds, strict=True)
    ]
    return Ended(next(filter(None, codes), 0), ranks, "", err, "", seconds)


TRACEBACK = (
    "Traceback (most recent call last):\n  ...\nRuntimeError: planted in one rank\n"
    "gapless: error: this is a bug of gapless\n"
)
SAID = "gapless: error: rank 1 is gone after update 12\n"

RIGHT = {
    "rank 1 is killed": end((LOST, -9), err=SAID),
    "rank 0 raises": end((1, LOST), err=TRACEBACK),
    "SIGTERM to all": end((143, 143)),
    "rank 1 is stopped": end((LOST, -9), err=SAID, seconds=30.0, rank_seconds=(2.0, 30.0)),
    "rank 1 is out of memory": end(
        (1, 1), err="gapless: error: out of memory while training; lower --batch-size\n"
    ),
}

WRONG = {
    "too late": ("rank 1 is killed", end((LOST, -9), err=SAID, seconds=GONE + 1), "took 6.0 s"),
    "another code": ("rank 1 is killed", end((1, -9), err=SAID), "rank 0 ended with 1"),
    "said twice": ("rank 1 is killed", end((LOST, -9), err=SAID * 2), "said 2 times"),
    "not said": ("rank 1 is killed", end((LOST, -9)), "said 0 times"),
    "a second error": (
        "rank 1 is killed",
        end((LOST, -9), err=SAID + "gapless: error: Connection closed by peer\n"),
        "said too",
    ),
    "two tracebacks": ("rank 0 raises", end((1, LOST), err=TRACEBACK * 2), "2 tracebacks"),
    "a hidden traceback": ("rank 0 raises", end((1, LOST)), "0 tracebacks"),
    "all is well": ("SIGTERM to all", end((0, 0)), "ended with 0"),
    "a late survivor": (
        "rank 1 is stopped",
        end((LOST, -9), err=SAID, seconds=30.0, rank_seconds=(20.0, 30.0)),
        "rank 0 took 20.0 s",
    ),
    "a stopped rank that stays": (
        "rank 1 is stopped",
        end((LOST, -9), err=SAID, seconds=GONE + TORCHRUN_KILLS + 1, rank_seconds=(1.0, 1.0)),
        "took 36.0 s",
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_the_expected_end_is_right(name):
    """Nothing is found in it."""
    assert wrong_with(BY_NAME[name], RIGHT[name], torchrun=False) == []


@pytest.mark.parametrize(("name", "ended", "part"), WRONG.values(), ids=WRONG)
def test_another_end_is_wrong(name, ended, part):
    """What is wrong is said."""
    found = wrong_with(BY_NAME[name], ended, torchrun=False)

    assert any(part in one for one in found), found


def test_torchrun_may_be_first():
    """It ends a rank before that can say that it lost a peer."""
    ended = end((143, -9))

    assert wrong_with(BY_NAME["rank 1 is killed"], ended, torchrun=True) == []
    assert wrong_with(BY_NAME["rank 1 is killed"], ended, torchrun=False) != []


def test_names_tell_faults_apart():
    """A fault is chosen by its name."""
    assert len(BY_NAME) == len(FAULTS)
