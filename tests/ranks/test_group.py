"""Several ranks over gloo: what each asks of the others, and what it gets."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from gapless.errors import EXIT_PEER_LOST, PeerLostError
from gapless.ranks import collectives
from gapless.ranks.gradient_sum import FlatSum
from gapless.ranks.torch_ranks import TorchRanks
from ranks.groups import torchrun


pytestmark = pytest.mark.xdist_group("processes: group")

PROGRAM = Path(__file__).with_name("group_program.py")


def found(ended):
    """Return what each rank printed."""
    return [json.loads(rank.out) for rank in ended.ranks]


def check_values(first, second):
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


def test_all_ranks_get_what_they_ask_for(of_ranks):
    """Values come in the order of ranks; gradients are summed; rows are stacked."""
    check_values(*(found["values"] for found in of_ranks))


@pytest.mark.multi_gpu
def test_ranks_on_gpus_get_the_same(tmp_path):
    """Each rank has the GPU of its number; sums and rows go over NCCL."""
    ended = torchrun(PROGRAM, "cuda", "values", folder=tmp_path / "ranks").end()

    ended.check_done()
    check_values(*(one["values"] for one in found(ended)))


@pytest.mark.multi_gpu
def test_two_ranks_on_one_gpu_end_before_nccl(tmp_path):
    """Both say the same, and nothing hangs."""
    ended = torchrun(PROGRAM, "cuda", "one gpu", folder=tmp_path / "ranks").end()

    ended.check_done()
    assert all("ranks 0, 1 have the same GPU" in one["error"] for one in found(ended))


# What both ranks find in a case, by its name.
ON_BOTH = {
    # Values of all kinds, tensors of all types and shapes: nothing comes back otherwise.
    "told": [],
    # The largest value counts, once, at the second exchange after it was raised.
    "flags": {
        "seen": {"6": {"stop": 3}, "9": {"stop": 2}},
        "last": {"failed": 1},
        # After updates 6 and 9, and twice at the end.
        "waits": ["agreement"] * 4,
    },
    # By the time of the slowest rank, which all know: a flag does not wait for seconds.
    "slow": {
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
    },
}


@pytest.mark.parametrize("case", ON_BOTH)
def test_both_ranks_find_what_is_expected(of_ranks, case):
    """What is told comes back as it was sent, and flags are acted on at the same update."""
    assert [found[case] for found in of_ranks] == [ON_BOTH[case]] * 2


def test_weights_that_differ_are_found(of_ranks):
    """One bit is enough; all ranks say the same, and name the update, the weight and the rank."""
    first, second = (found["weights"] for found in of_ranks)

    assert first == second
    assert first["waits"] == {"checkpoint": 1}
    assert first["said"].startswith(
        "after update 8 the weight bias of rank 1 is not that of rank 0"
    )


def test_two_ranks_on_one_gpu_are_refused(fork):
    """All ranks raise the same error, which names the ranks and what to do."""
    ended = fork(PROGRAM, "cpu", "one gpu").end()

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
        "cpu",
        "values",
        before=[
            "import gapless.ranks.rendezvous as rendezvous; rendezvous.SECONDS_TO_ARRIVE = 0.5",
            "raise SystemExit",
        ],
    ).end()

    ended.check_done()
    said = json.loads(ended.ranks[0].out)["error"]
    assert said.startswith(
        "RanksError: rank 1 of 2 did not come within 0 s; look at what they say"
    )


def test_a_rank_that_is_gone_ends_the_others(fork):
    """Nobody waits for it, and what follows from that is not told."""
    ended = fork(PROGRAM, "cpu", "is_left").end()

    assert [rank.code for rank in ended.ranks] == [EXIT_PEER_LOST, 0]
    assert ended.out == ""
    # Gloo may log to standard error by itself.
    ours = [line for line in ended.err.splitlines() if not line.startswith("[rank")]
    assert len(ours) == 1, ended.err
    assert "rank 1 is gone after update 0, its process has ended" in ended.err


def test_an_error_that_nobody_catches_ends_all(fork):
    """Of a script that knows nothing of heartbeats; the error of the other rank is not shown."""
    ended = fork(PROGRAM, "cpu", "raises").end()

    assert [one.code for one in ended.ranks] == [EXIT_PEER_LOST, 1]
    assert ended.err.count("Traceback") == 1, ended.err
    assert "RuntimeError: planted in one rank" in ended.ranks[1].err
    assert ended.errors == []


def ranks_in_pieces():
    """Return ranks with groups of a size alone, whose collectives a test makes fail."""
    group = SimpleNamespace(size=lambda: 2)
    ranks = TorchRanks.__new__(TorchRanks)
    vars(ranks).update(rank=0, world=2, is_first=True, side=group, main=group)
    return ranks


def summed(ranks):
    weight = torch.nn.Parameter(torch.ones(2))
    gradients = FlatSum([weight], group=None, agree=lambda value: [value])
    weight.grad = torch.ones(2)
    gradients.finish()


def agreed(ranks):
    ranks.agreement(("stop",), blocking=lambda reason: nullcontext()).finish()


COLLECTIVES = {
    "the values": lambda ranks: ranks.agree(1),
    "the value of rank 0": lambda ranks: ranks.share(1),
    "the losses": lambda ranks: ranks.gather_rows(torch.ones(2)),
    "the gradients": summed,
    "the agreement": agreed,
}


@pytest.mark.parametrize("what", COLLECTIVES)
def test_a_closed_connection_is_a_lost_rank_in_each_collective(monkeypatch, what):
    """Another error of torch is as it was."""

    def fail(text):
        def raised(*_, **__):
            raise RuntimeError(text)

        for name in ("all_gather_object", "broadcast_object_list", "all_reduce"):
            monkeypatch.setattr(dist, name, raised)
        monkeypatch.setattr(collectives, "_all_gather", raised)

    fail("[gloo/transport/tcp/pair.cc:1] Connection closed by peer\nmore")
    with pytest.raises(PeerLostError, match=rf"{what} of all ranks failed \(.*closed by peer\)"):
        COLLECTIVES[what](ranks_in_pieces())
    fail("planted")
    with pytest.raises(RuntimeError, match=r"^planted$"):
        COLLECTIVES[what](ranks_in_pieces())


@pytest.mark.slow
def test_torchrun_starts_the_same(tmp_path):
    """The variables and the store of the real launcher do, at the first attempt."""
    ended = torchrun(PROGRAM, "cpu", "flags", folder=tmp_path / "ranks").end()

    ended.check_done()
    assert found(ended)[0]["flags"] == ON_BOTH["flags"]
