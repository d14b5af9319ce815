"""Every guard of a batch on its way, against a device whose streams run late and in any order."""

from __future__ import annotations

import threading

import pytest
import torch
from hypothesis import given, settings, strategies as st

import gapless
from gapless.pipeline import in_flight
from gapless.pipeline.host_waits import HostWaits
from gapless.pipeline.prefetch import Prefetcher
from gapless.pipeline.streams import EventPool
from gapless.pipeline.transfer import TransferLane
from late_device import LateDevice


# Bytes up to which tensors move by themselves: none, some of those below, or all.
LIMITS = [-1, 400, 1 << 20]

seeds = st.integers(0, 10_000)
eagerness = st.sampled_from([0.0, 0.2, 0.5, 0.8])


def make_prefetcher(loader, device, *, num_lanes=1, **settings):
    host_waits = HostWaits(device)
    lanes = [TransferLane(device, device.create_stream()) for _ in range(num_lanes)]
    prefetcher = Prefetcher(loader, device=device, host_waits=host_waits, lanes=lanes, **settings)
    return prefetcher, host_waits.stats


def numbered(sizes):
    return [torch.full((size,), float(number)) for number, size in enumerate(sizes)]


class Refilled:
    """A loader that fills the same memory again as soon as it is asked for the next batch."""

    def __init__(self, memory, count):
        self.memory = memory
        self.count = count

    def __iter__(self):
        for number in range(self.count):
            for tensor in self.memory:
                tensor.fill_(float(number))
            yield tuple(self.memory)
            for tensor in self.memory:
                tensor.fill_(-1.0)


class Own:
    """A loader of which nobody knows what it does with its memory."""

    def __init__(self, batches):
        self.batches = batches

    def __iter__(self):
        return iter(self.batches)


@settings(deadline=None, max_examples=50)
@given(
    seed=seeds,
    eagerness=eagerness,
    limit=st.sampled_from(LIMITS),
    sizes=st.lists(st.sampled_from([0, 1, 5, 60, 700]), max_size=14),
    depth=st.integers(0, 4),
    num_lanes=st.integers(1, 3),
    max_in_flight=st.integers(1, 6),
    keep=st.dictionaries(st.integers(0, 13), st.booleans(), max_size=6),
    is_fresh=st.booleans(),
    is_pinned=st.sampled_from([[False], [True], [True, False], [True, True, False]]),
)
def test_work_reads_its_own_batch_whenever_streams_run(
    seed, eagerness, limit, sizes, depth, num_lanes, max_in_flight, keep, is_fresh, is_pinned
):
    """Whatever runs late, each batch is read whole, and a kept batch or view is never changed."""
    device = LateDevice(seed, eagerness, max_direct_copy_bytes=limit)
    data = [
        device.pinned(batch) if is_pinned[number % len(is_pinned)] else batch
        for number, batch in enumerate(numbered(sizes))
    ]
    prefetcher, _ = make_prefetcher(
        data if is_fresh else Own(data),
        device,
        depth=depth,
        num_lanes=num_lanes,
        max_in_flight=max_in_flight,
    )
    found, kept = [], {}
    with device:
        for number, batch in enumerate(prefetcher):
            assert not device.needs_copy(batch)
            device.read_later(batch, found)
            if number in keep:
                kept[number] = batch[-1:] if keep[number] else batch
        batch = None
        device.run_all()

    assert all(map(torch.equal, data, found))
    assert len(data) == len(found)
    assert all(torch.equal(data[n][-len(part) :], part) for n, part in kept.items() if len(part))


@settings(deadline=None, max_examples=40)
@given(
    seed=seeds,
    eagerness=eagerness,
    limit=st.sampled_from(LIMITS),
    pinned=st.booleans(),
    depth=st.integers(0, 3),
    pin_memory=st.booleans(),
)
def test_a_loader_may_fill_its_memory_again(seed, eagerness, limit, pinned, depth, pin_memory):
    """Its memory is its own again as soon as it is asked for more, page-locked or not."""
    device = LateDevice(seed, eagerness, max_direct_copy_bytes=limit)
    memory = [torch.empty(3), torch.empty(200)]
    if pinned:
        memory = [device.pinned(tensor) for tensor in memory]
    prefetcher, _ = make_prefetcher(
        Refilled(memory, 9), device, depth=depth, pin_memory=pin_memory
    )
    found = []
    with device:
        for batch in prefetcher:
            for tensor in batch:
                device.read_later(tensor, found)
        device.run_all()

    expected = [
        tensor for n in range(9) for tensor in (torch.full((3,), n), torch.full((200,), n))
    ]
    assert [tensor.tolist() for tensor in expected] == [tensor.tolist() for tensor in found]


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("depth", [0, 2])
def test_threads_with_passes_of_their_own_share_a_lane(limit, depth):
    """Three threads read through one prefetcher, and each reads its own batches."""
    device = LateDevice(seed=7, max_direct_copy_bytes=limit)
    data = numbered([9, 300] * 40)
    prefetcher, _ = make_prefetcher(data, device, depth=depth)
    found = {}

    def read(name):
        found[name] = []
        for batch in prefetcher:
            device.read_later(batch, found[name])

    with device:
        threads = [threading.Thread(target=read, args=[name]) for name in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        device.run_all()

    assert len(found) == 3
    for batches in found.values():
        assert len(batches) == len(data)
        assert all(map(torch.equal, data, batches))


# --- memory ---


@pytest.mark.parametrize(("depth", "num_blocks"), [(0, 3), (1, 4), (3, 6)])
def test_a_loop_that_keeps_nothing_uses_the_same_memory_again(depth, num_blocks):
    """One batch is in use, the loop still names the one before, one is staged, and those ahead."""
    device = LateDevice()
    prefetcher, _ = make_prefetcher([torch.ones(8)] * 50, device, depth=depth)
    with device:
        for _epoch in range(3):
            for batch in prefetcher:
                assert batch.numel() == 8
            del batch
            device.run_all()

    assert num_blocks == device.num_buffers


def test_memory_that_is_kept_for_long_is_left_to_its_holder():
    """A batch that is still held at the second look is the allocator's, which waits for its reader."""
    device = LateDevice()
    prefetcher, _ = make_prefetcher(numbered([8] * 6), device)
    with device:
        kept = list(prefetcher)
        device.run_all()

    assert device.num_recorded == 6
    assert [float(batch[0]) for batch in kept] == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


# --- waits ---


def test_too_many_copies_are_waited_for():
    """With two copies under way and a device that does nothing by itself, staging waits."""
    device = LateDevice(eagerness=0.0)
    data = numbered([3] * 12)
    prefetcher, stats = make_prefetcher(data, device, max_in_flight=2)
    found = []
    with device:
        for batch in prefetcher:
            device.read_later(batch, found)
        device.run_all()

    assert all(map(torch.equal, data, found))
    assert list(stats.by_reason) == ["staging"]
    assert 1 <= stats.by_reason["staging"].count <= 10


def test_too_many_bytes_under_way_are_waited_for(monkeypatch):
    """What is under way holds page-locked memory, so its bytes are bounded as well."""
    monkeypatch.setattr(in_flight, "_MAX_BYTES", 4000)
    device = LateDevice(eagerness=0.0)
    prefetcher, stats = make_prefetcher(numbered([250] * 10), device)
    with device:
        list(prefetcher)

    assert counts(stats) == {"staging": 6}


def counts(stats):
    return {reason: wait.count for reason, wait in stats.by_reason.items()}


def test_a_device_that_keeps_up_is_not_waited_for():
    """Neither staging nor memory of the loader needs a wait then."""
    device = LateDevice(eagerness=0.99, max_direct_copy_bytes=20)
    data = [(torch.ones(3), torch.ones(70), device.pinned(torch.ones(5)))] * 40
    prefetcher, stats = make_prefetcher(data, device)
    with device:
        for _ in prefetcher:
            device.run_all()

    assert stats.count == 0


def test_a_device_that_does_nothing_is_waited_for_by_reason():
    """Requests wait for the page-locked tensors of the batch before, small ones the first time."""
    device = LateDevice(eagerness=0.0, max_direct_copy_bytes=20)
    small, large = device.pinned(torch.ones(3)), device.pinned(torch.ones(70))
    expected = {"small": {"loader_memory": 1}, "large": {"loader_memory": 8}, "pageable": {}}
    found = {}
    for name, batch in {
        "small": small,
        "large": large,
        "pageable": (torch.ones(3), torch.ones(70)),
    }.items():
        prefetcher, stats = make_prefetcher(Own([batch] * 8), device)
        with device:
            list(prefetcher)
        found[name] = counts(stats)

    assert expected == found


def test_memory_that_the_loader_makes_anew_is_not_waited_for():
    """Torch's own loader collates every batch into fresh memory."""
    device = LateDevice(eagerness=0.0, max_direct_copy_bytes=20)
    dataset = [torch.ones(9)] * 6
    fresh = torch.utils.data.DataLoader(dataset, batch_size=1)
    memory = device.pinned(dataset[0])
    same = torch.utils.data.DataLoader(
        dataset,
        batch_size=None,
        collate_fn=lambda _: memory,
    )
    found = []
    for loader in (fresh, same):
        prefetcher, stats = make_prefetcher(loader, device)
        with device:
            list(prefetcher)
        found.append(counts(stats))

    assert found == [{}, {"loader_memory": 6}]


@pytest.mark.parametrize("depth", [0, 2])
def test_pageable_memory_counts_every_copy(depth):
    """Without pinned memory each large copy blocks, and is in the account under its own reason."""
    device = LateDevice(max_direct_copy_bytes=20)
    prefetcher, stats = make_prefetcher(
        [(torch.ones(3), torch.ones(70))] * 7, device, pin_memory=False, depth=depth
    )
    with device:
        list(prefetcher)

    assert counts(stats)["pageable_copy"] == (14 if depth else 7)


@pytest.mark.parametrize("depth", [0, 2])
@pytest.mark.parametrize("is_fresh", [True, False])
@pytest.mark.parametrize("is_pinned", [True, False])
def test_events_are_used_again_by_one_user_at_a_time(monkeypatch, depth, is_fresh, is_pinned):
    """A pass needs few events, and gives each back once, whatever memory its batches lie in."""
    give_back = EventPool.give_back

    def give_back_once(pool, event):
        assert event not in pool._free
        give_back(pool, event)

    monkeypatch.setattr(EventPool, "give_back", give_back_once)
    device = LateDevice(seed=3, eagerness=0.9)
    created, create = [], device.create_event
    device.create_event = lambda **kind: created.append(True) or create(**kind)
    data = numbered([9] * 60)
    if is_pinned:
        data = [device.pinned(batch) for batch in data]
    prefetcher, _ = make_prefetcher(data if is_fresh else Own(data), device, depth=depth)
    found = []
    with device:
        for batch in prefetcher:
            device.read_later(batch, found)
            device.run_all()

    assert all(map(torch.equal, data, found))
    assert len(created) <= 12


# --- the background thread ---


@pytest.mark.parametrize("depth", [0, 2])
@pytest.mark.parametrize("size", [3, 300])
def test_inference_mode_holds_for_what_is_moved(depth, size):
    """A batch that is asked for in inference mode is an inference tensor, as from `to`."""
    device = LateDevice(max_direct_copy_bytes=100)
    prefetcher, _ = make_prefetcher(numbered([size] * 4), device, depth=depth)
    with device, torch.inference_mode():
        found = list(prefetcher)
        device.run_all()

    assert all(batch.is_inference() for batch in found)
    assert [float(batch[0]) for batch in found] == [0.0, 1.0, 2.0, 3.0]


# --- which tensors take which way ---


class OwnTensor(torch.Tensor):
    pass


TAKES_THE_LANE = {
    "contiguous": lambda: torch.rand(6, 7),
    "transposed": lambda: torch.rand(6, 7).t(),
    "channels last": lambda: torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "one row": lambda: torch.rand(1, 30)[:, :30],
}
MOVES_ITSELF = {
    "strided": lambda: torch.rand(60)[::2],
    "expanded": lambda: torch.rand(1).expand(40),
    "conjugated": lambda: torch.randn(20, dtype=torch.complex64).conj(),
    "requires grad": lambda: torch.rand(30).requires_grad_(),
    "subclass": lambda: torch.rand(30).as_subclass(OwnTensor),
}


@pytest.mark.parametrize("form", [*TAKES_THE_LANE, *MOVES_ITSELF])
def test_only_dense_plain_tensors_take_the_lane(form):
    """All else is moved by its own `to`, which knows what has to be kept."""
    device = LateDevice(max_direct_copy_bytes=8)
    lane = TransferLane(device, device.create_stream())
    tensor = {**TAKES_THE_LANE, **MOVES_ITSELF}[form]()
    moved = []
    device.move = lambda tensor, **_: moved.append(tensor) or tensor
    prefetcher = Prefetcher([tensor], device=device, host_waits=HostWaits(device), lanes=[lane])
    with device:
        (found,) = prefetcher
    device.run_all()

    assert (form in MOVES_ITSELF) == bool(moved)
    assert form in MOVES_ITSELF or found.stride() == tensor.stride()
    assert torch.equal(tensor, found)


@pytest.mark.parametrize(
    ("size", "is_fresh", "depth", "moves_itself"),
    [(300, True, 0, True), (300, False, 0, False), (300, True, 1, False), (3000, True, 0, False)],
)
def test_page_locked_memory_that_nobody_waits_for_moves_itself(
    size, is_fresh, depth, moves_itself
):
    """Up to a limit of its own; if the loader has to wait for it, its copy must not come late."""
    device = LateDevice(max_direct_copy_bytes=8)
    device.max_queued_copy_bytes = 4000
    data = [device.pinned(torch.rand(size))]
    moved, move = [], device.move
    device.move = lambda tensor, **how: moved.append(tensor) or move(tensor, **how)
    prefetcher, _ = make_prefetcher(data if is_fresh else Own(data), device, depth=depth)
    with device:
        (found,) = prefetcher
        device.run_all()

    assert moves_itself == bool(moved)
    assert torch.equal(data[0], found)


@pytest.mark.parametrize(("size", "is_staged"), [(2, False), (300, True), (3000, False)])
def test_pageable_memory_that_would_make_the_host_wait_is_staged(size, is_staged):
    """A copy of middle size is queued where it is read, from memory that torch keeps for it."""
    device = LateDevice(max_direct_copy_bytes=8)
    device.max_queued_copy_bytes = 4000
    data = [torch.rand(size)]
    moved, move = [], device.move
    device.move = lambda tensor, **how: moved.append(tensor) or move(tensor, **how)
    prefetcher, stats = make_prefetcher(Own(data), device)
    with device:
        (found,) = prefetcher
        device.run_all()

    assert [tensor is not data[0] for tensor in moved] == ([] if size == 3000 else [is_staged])
    assert torch.equal(data[0], found)
    assert stats.count == 0


def test_what_is_there_already_is_handed_out_as_it_is():
    """A tensor on the device comes out as the same object; a pass that looks ahead copies it."""
    device = LateDevice(max_direct_copy_bytes=8)
    there = device.device_buffer(400).view(torch.float32).fill_(2.0)
    with device:
        (same,) = make_prefetcher([there], device)[0]
        (copied,) = make_prefetcher([there], device, depth=1)[0]
        device.run_all()

    assert same is there
    assert copied.data_ptr() != there.data_ptr()
    assert torch.equal(there, copied)


def test_gapless_prefetch_uses_one_lane_for_a_device():
    """Prefetchers of one device share the stream and so the memory that its copies write."""
    device = LateDevice()
    with device:
        for _ in range(4):
            for batch in gapless.prefetch([torch.ones(9)] * 5, device):
                assert batch.numel() == 9
            del batch
            device.run_all()

    assert device.num_buffers == 3
