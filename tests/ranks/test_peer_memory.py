"""Sums of what ranks copy from each other: each rank a thread, memory that all threads see."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings, strategies as st

from gapless.errors import UserError
from gapless.ranks import WayToSum, carriers, peer_memory
from gapless.ranks.group import TorchRanks


SLOW = 0.02


class Host:
    """A host with some GPUs, whose memory all ranks can read."""

    def __init__(self, world):
        self._barrier = threading.Barrier(world, timeout=20.0)
        self._made = [[] for _ in range(world)]

    def memory(self, like, group):
        """Take the place of `PeerMemory`."""
        own = torch.zeros_like(like)
        made = self._made[group.rank()]
        made.append(own)
        self._barrier.wait()
        of_ranks = [others[len(made) - 1] for others in self._made]
        return SimpleNamespace(own=own, of_ranks=of_ranks, meet=lambda: self._meet(group))

    def _meet(self, group):
        self._barrier.wait()
        if group.rank():
            time.sleep(SLOW)  # the first rank goes on, and may be first to write again


class Stream:
    """In the place of `SideStream`: a CPU has none."""

    def __init__(self, device):
        pass

    def behind_current(self):
        return nullcontext()

    def wait(self):
        pass


@dataclass(frozen=True)
class Group:
    """A rank's view of its group."""

    number: int
    world: int

    def rank(self):
        return self.number

    def size(self):
        return self.world


@pytest.fixture
def summed(monkeypatch):
    """Return what each rank has after a number of updates, by rank, update and bucket."""

    def call(tensors, *, world):
        host = Host(world)
        monkeypatch.setattr(carriers, "PeerMemory", host.memory)
        monkeypatch.setattr(carriers, "SideStream", Stream)

        def train(rank):
            copies = carriers.PeerCopies(Group(rank, world), like=torch.zeros(1))
            buckets = [
                SimpleNamespace(sent=copies.zeros_like(tensor)) for tensor in tensors[rank][0]
            ]
            found = []
            for update in tensors[rank]:
                # The stream of the backward pass does not wait for sums: it may be ahead of them.
                for bucket, tensor in zip(buckets, update, strict=True):
                    bucket.sent.copy_(tensor)
                for bucket in buckets:
                    copies.send(bucket, is_last=bucket is buckets[-1])
                copies.wait()
                found.append([bucket.sent.clone() for bucket in buckets])
            return found

        with ThreadPoolExecutor(world) as pool:
            return list(pool.map(train, range(world)))

    return call


def drawn(world, *, sizes, dtype=torch.float32, updates=2):
    draw = torch.Generator().manual_seed(world)
    return [
        [[torch.randn(size, generator=draw).to(dtype) for size in sizes] for _ in range(updates)]
        for _ in range(world)
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_all_ranks_get_the_sum_in_the_order_of_ranks(summed, world, dtype):
    """Bit for bit, of buckets that cannot be shared out evenly, or not to all ranks."""
    tensors = drawn(world, sizes=(1000, 1, 300), dtype=dtype)

    found = summed(tensors, world=world)

    for update in range(2):
        for bucket in range(3):
            expected = tensors[0][update][bucket]
            for rank in range(1, world):
                expected = expected + tensors[rank][update][bucket]
            assert all(torch.equal(of_rank[update][bucket], expected) for of_rank in found)


@settings(max_examples=60, deadline=None)
@given(size=st.integers(0, 5000), num=st.integers(1, 9))
def test_parts_are_the_whole_in_order(size, num):
    """As many as there are ranks, none much larger than another; all but their ends are aligned."""
    whole = torch.arange(size)

    parts = peer_memory._parts(whole, num)

    assert len(parts) == num
    assert torch.equal(torch.cat(parts), whole)
    assert max(map(len, parts)) - min(map(len, parts)) <= 2 * 512 // 8
    assert all(part.storage_offset() * 8 % 512 == 0 for part in parts if len(part))


@pytest.mark.parametrize(
    ("device", "hosts", "message"),
    [
        ("cpu", ["a", "a"], "but the ranks compute on the CPU"),
        ("meta", ["a", "b"], "rank 0 is on a and rank 1 on b, expected one host"),
    ],
)
def test_who_cannot_copy_is_refused(device, hosts, message):
    """Before anything is made for it."""
    ranks = TorchRanks.__new__(TorchRanks)
    ranks._device = torch.device(device)
    ranks.agree = lambda _: hosts

    with pytest.raises(UserError, match=message):
        ranks.sum_gradients([], WayToSum(bucket_bytes=1, copies=True))
