"""Every guard of the rings, against a device whose streams run late and in any order."""

from __future__ import annotations

import random
import weakref
from collections import deque

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

import gapless
from gapless.device.cpu import CpuDevice
from gapless.pipeline.host_waits import HostWaits
from gapless.pipeline.prefetch import Prefetcher
from gapless.pipeline.readback import DeferredLoss
from gapless.pipeline.staging import StagingRing


class LateEvent:
    """Done when as many records as were made have run."""

    def __init__(self):
        self.recorded = 0
        self.done = 0


class LateStream:
    """Work that waits for its turn, as (is it ready, what to do)."""

    def __init__(self):
        self.queue = deque()


class LateDevice(CpuDevice):
    """A device whose streams run at random times, each in its own order.

    Memory that nobody holds is handed out again at once, as torch's caching allocator does, so
    queued work reads by address whatever is there when it runs.

    Args:
        seed: of the moments at which work runs.
        eagerness: chance that a piece of work runs after each call, 0 to below 1.
    """

    def __init__(self, seed=0, eagerness=0.5):
        super().__init__()
        self._random = random.Random(seed)
        self._eagerness = eagerness
        self._streams = []
        self._current = self.create_stream()
        self._free = {}
        self._slabs = []
        self.num_buffers = 0

    def create_stream(self):
        self._streams.append(LateStream())
        return self._streams[-1]

    def shared_stream(self, name):
        if name not in self._shared:
            self._shared[name] = self.create_stream()
        return self._shared[name]

    def create_event(self, *, timed=False):
        return LateEvent()

    def record_event(self, event, stream):
        event.recorded += 1
        number = event.recorded

        def finish():
            event.done = max(event.done, number)

        self._queue(stream, finish)

    def wait_event(self, stream, event):
        number = event.recorded
        self._queue(stream, lambda: None, ready=lambda: event.done >= number)

    def wait_stream(self, stream, other):
        event = LateEvent()
        self.record_event(event, other)
        self.wait_event(stream, event)

    def query_event(self, event):
        self._run_some()
        return event.done >= event.recorded

    def synchronize_event(self, event):
        while event.done < event.recorded:
            assert self._run_one(), "a wait that can never end"

    def synchronize_stream(self, stream):
        while stream.queue:
            assert self._run_one(), "a wait that can never end"

    def device_buffer(self, num_bytes):
        self.num_buffers += 1
        # As torch's allocator: a block goes back to the stream that it was allocated on.
        free = self._free.setdefault((self._current, num_bytes), [])
        if not free:
            slab = np.full(num_bytes, 255, dtype=np.uint8)
            self._slabs.append(slab)
            free.append(slab)
        slab = free.pop()
        block = slab[:]
        weakref.finalize(block, free.append, slab)
        return torch.from_numpy(block)

    def copy(self, target, source):
        write, read = self._by_address(target), self._by_address(source)
        self._queue(self._current, lambda: write().copy_(read()))

    def read_later(self, tensor, into):
        """Queue a read of a tensor on the current stream, as a kernel reads: by address."""
        read = self._by_address(tensor)
        self._queue(self._current, lambda: into.append(read().clone()))

    def run_all(self):
        """Run everything that is queued."""
        while any(stream.queue for stream in self._streams):
            assert self._run_one(), "streams that wait for each other"

    def _by_address(self, tensor):
        for slab in self._slabs:
            start = tensor.data_ptr() - slab.ctypes.data
            if 0 <= start <= slab.nbytes and tensor.numel():
                end = start + tensor.numel() * tensor.element_size()
                bytes_ = torch.from_numpy(slab[start:end])
                dtype, shape = tensor.dtype, tensor.shape
                return lambda: bytes_.view(dtype).view(shape)
        return lambda: tensor

    def _queue(self, stream, work, ready=lambda: True):
        stream.queue.append((ready, work))
        self._run_some()

    def _run_some(self):
        while self._random.random() < self._eagerness and self._run_one():
            pass

    def _run_one(self):
        ready = [stream for stream in self._streams if stream.queue and stream.queue[0][0]()]
        if not ready:
            return False
        self._random.choice(ready).queue.popleft()[1]()
        return True


def make_prefetcher(loader, device, *, depth=2, num_transfers=1, **knobs):
    host_waits = HostWaits(device)
    ring = StagingRing(
        device,
        host_waits=host_waits,
        depth=depth,
        transfer_streams=[device.create_stream() for _ in range(num_transfers)],
        **knobs,
    )
    return Prefetcher(loader, ring=ring, device=device, depth=depth), host_waits.stats


@settings(deadline=None, max_examples=150)
@given(
    seed=st.integers(0, 10_000),
    eagerness=st.sampled_from([0.0, 0.2, 0.5, 0.8]),
    sizes=st.lists(st.sampled_from([1, 5, 60, 700]), max_size=14),
    depth=st.integers(0, 4),
    num_transfers=st.integers(1, 3),
    max_host_slots=st.integers(1, 6),
    keep=st.sets(st.integers(0, 13), max_size=6),
)
def test_work_reads_its_own_batch_whenever_streams_run(
    seed, eagerness, sizes, depth, num_transfers, max_host_slots, keep
):
    """Whatever runs late, each batch is read whole, and kept batches are never overwritten."""
    device = LateDevice(seed, eagerness)
    data = [torch.full((size,), float(number)) for number, size in enumerate(sizes)]
    prefetcher, _ = make_prefetcher(
        data,
        device,
        depth=depth,
        num_transfers=num_transfers,
        max_host_slots=max_host_slots,
    )
    found, kept = [], {}
    for number, batch in enumerate(prefetcher):
        device.read_later(batch, found)
        if number in keep:
            kept[number] = batch
    device.run_all()

    assert all(map(torch.equal, data, found))
    assert len(data) == len(found)
    assert all(torch.equal(data[number], batch) for number, batch in kept.items())


@settings(deadline=None, max_examples=100)
@given(
    seed=st.integers(0, 10_000),
    eagerness=st.sampled_from([0.0, 0.2, 0.5, 0.8]),
    depth=st.integers(0, 3),
    num_transfers=st.integers(1, 3),
    num_kept=st.integers(1, 6),
)
def test_memory_that_is_let_go_of_is_still_read(seed, eagerness, depth, num_transfers, num_kept):
    """Work queued on a batch just before its last holder lets go reads that batch, no later one."""
    device = LateDevice(seed, eagerness)
    data = [torch.full((9,), float(number)) for number in range(30)]
    prefetcher, _ = make_prefetcher(data, device, depth=depth, num_transfers=num_transfers)
    found, kept = [], deque()
    for batch in prefetcher:
        kept.append(batch)
        if len(kept) > num_kept:
            device.read_later(kept.popleft(), found)
    device.run_all()

    assert all(map(torch.equal, data, found))
    assert 30 - num_kept == len(found)


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 10_000),
    eagerness=st.sampled_from([0.0, 0.3, 0.9]),
    actions=st.lists(st.sampled_from(["add", "many", "flush", "poll", "drain"]), max_size=12),
)
def test_losses_are_read_once_whenever_streams_run(seed, eagerness, actions):
    """However late the copies are, the history is that of the losses, also past a full ring."""
    device = LateDevice(seed, eagerness)
    losses = DeferredLoss(device)
    added = 0
    for action in actions:
        for _ in range({"add": 1, "many": 600}.get(action, 0)):
            losses.add(torch.tensor(float(added)), weight=2.0)
            added += 1
        if action not in ("add", "many"):
            getattr(losses, action)()
    losses.drain()

    assert [float(number) for number in range(added)] == losses.history
    assert [2.0] * added == losses.weights


def test_a_loop_that_keeps_nothing_uses_the_same_memory_again():
    """The ring has a slot for the batch whose name a `for` loop still holds: none is replaced."""
    device = LateDevice()
    prefetcher, _ = make_prefetcher([torch.ones(8)] * 50, device, depth=2)
    for _epoch in range(3):
        for batch in prefetcher:
            assert batch.numel() == 8

    assert device.num_buffers == 4


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 10_000),
    eagerness=st.sampled_from([0.0, 0.2, 0.5, 0.8]),
    depth=st.integers(0, 3),
    taken=st.lists(st.integers(0, 5), min_size=1, max_size=6),
)
def test_passes_that_were_left_early_disturb_no_later_one(seed, eagerness, depth, taken):
    """Copies of batches that nobody took are still on their way when the next pass starts."""
    device = LateDevice(seed, eagerness)
    data = [torch.full((9,), float(number)) for number in range(8)]
    prefetcher, _ = make_prefetcher(data, device, depth=depth, num_transfers=2)
    found = []
    for count in [*taken, len(data)]:
        batches = iter(prefetcher)
        for _ in range(count):
            device.read_later(next(batches), found)
        batches.close()
    device.run_all()

    expected = [batch for count in [*taken, len(data)] for batch in data[:count]]
    assert all(map(torch.equal, expected, found))
    assert len(expected) == len(found)
    assert device.num_buffers == depth + 2


def test_memory_grows_with_the_largest_batch_only():
    """Batches of changing size use buffers that grow a few times and then stay."""
    device = LateDevice()
    sizes = [1 + 37 * number % 900 for number in range(200)]
    prefetcher, _ = make_prefetcher([torch.ones(size) for size in sizes], device, depth=1)
    for batch in prefetcher:
        del batch

    # Three slots; from 512 bytes each doubles at most three times on its way to 4096.
    assert device.num_buffers <= 3 * 4


def test_a_full_host_ring_waits_for_its_oldest_transfer():
    """With two host slots and a device that does nothing by itself, staging waits and says so."""
    device = LateDevice(eagerness=0.0)
    data = [torch.full((3,), float(number)) for number in range(12)]
    prefetcher, stats = make_prefetcher(data, device, max_host_slots=2)
    found = []
    for batch in prefetcher:
        device.read_later(batch, found)
    device.run_all()

    assert all(map(torch.equal, data, found))
    assert list(stats.by_reason) == ["staging"]
    assert 1 <= stats.by_reason["staging"].count <= 10


def test_free_host_slots_are_not_waited_for():
    """A device that keeps up needs no wait."""
    data = [torch.ones(3)] * 40
    stats = gapless.WaitStats()

    list(gapless.prefetch(data, "cpu", wait_stats=stats))

    assert stats.count == 0


def test_pageable_memory_counts_every_copy():
    """Without pinned memory each copy blocks, and is in the account under its own reason."""
    stats = gapless.WaitStats()

    list(gapless.prefetch([torch.ones(3)] * 7, "cpu", pin_memory=False, wait_stats=stats))

    assert {name: wait.count for name, wait in stats.by_reason.items()} == {"pageable_copy": 7}


def test_a_batch_that_autograd_saved_is_not_overwritten():
    """Gradients computed after all batches were taken are those of each batch."""
    weight = torch.zeros(4, requires_grad=True)
    data = [torch.full((4,), float(number)) for number in range(12)]
    losses = [(weight * batch).sum() for batch in gapless.prefetch(data, "cpu", depth=1)]

    gradients = [torch.autograd.grad(loss, weight)[0] for loss in losses]

    assert all(map(torch.equal, data, gradients))


def test_the_callers_batch_is_not_touched():
    """Whatever is done to a batch on the device, the loader's own tensors stay."""
    data = [torch.arange(5)] * 6
    for batch in gapless.prefetch(data, "cpu"):
        batch.add_(100)

    assert data[0].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("where", ["same tensor twice", "overlapping views"])
def test_shared_tensors_arrive_whole(where):
    """A tensor that a batch holds twice, or in part, comes out right in both places."""
    base = torch.arange(6.0)
    pair = (base, base) if where == "same tensor twice" else (base[:4], base[2:])

    found = list(gapless.prefetch([pair] * 5, "cpu"))

    assert all(
        torch.equal(want, got) for batch in found for want, got in zip(pair, batch, strict=False)
    )
