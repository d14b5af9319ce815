"""Batches on their way to the device."""

from __future__ import annotations

import torch

import gapless
from gapless.pipeline.host_waits import HostWaits
from simulation.registry import scenario
from simulation.workloads import Sums, make_prefetcher, numbered, read_back


@scenario()
def a_loop_of_ones_own(device):
    stats = gapless.WaitStats()
    sums = Sums(device, 12)
    asked, allocate = [], device.device_buffer
    device.device_buffer = lambda num_bytes: asked.append(num_bytes) or allocate(num_bytes)
    for number, batch in enumerate(gapless.prefetch(numbered([6] * 12), device, wait_stats=stats)):
        sums.add(number, batch)
    assert sums.all() == list(range(12))
    assert stats.count == 0
    # A slot for each batch ahead, the one in use and the one before: no memory is replaced.
    assert len(asked) == 4


@scenario()
def batches_that_are_on_the_device_already(device):
    """What is there stays where it is; its neighbours are moved."""
    there = device.device_buffer(4).view(torch.float32)
    there.fill_(5.0)
    data = [(torch.full((2,), float(number)), there) for number in range(5)]
    sums = Sums(device, 5)
    for number, (moved, same) in enumerate(gapless.prefetch(data, device)):
        assert same is there
        sums.add(number, moved + same)
    assert sums.all() == [5.0, 6.0, 7.0, 8.0, 9.0]
    assert [batch[1] for batch in gapless.prefetch([(3, there)], device)] == [there]


@scenario()
def batches_kept_or_let_go_late(device):
    data = numbered([5] * 14)
    sums = Sums(device, 14)
    kept, waiting = {}, []
    prefetcher, _, _ = make_prefetcher(data, device, depth=1, num_transfers=2)
    for number, batch in enumerate(prefetcher):
        waiting.append((number, batch))
        if number in (2, 3, 7):
            kept[number] = batch
        if len(waiting) > 1 + number % 3:
            sums.add(*waiting.pop(0))
        del batch
    for pair in waiting:
        sums.add(*pair)
    assert sums.all() == list(range(14))
    assert all(torch.equal(data[n], read_back(device, batch)) for n, batch in kept.items())


@scenario()
def batches_of_changing_size(device):
    sizes = [1, 300, 20, 700, 5, 1500, 60, 60, 3, 900]
    sums = Sums(device, len(sizes))
    prefetcher, _, _ = make_prefetcher(numbered(sizes), device, num_transfers=2)
    for number, batch in enumerate(prefetcher):
        sums.add(number, batch)
    assert sums.all() == list(range(len(sizes)))


@scenario()
def left_early_and_started_again_with_larger_batches(device):
    sums = Sums(device, 8)
    prefetcher, _, _ = make_prefetcher(numbered([40] * 9), device, depth=3, num_transfers=3)
    for batch in prefetcher:
        sums.add(0, batch)
        small = torch.empty_like(batch)
        break
    del batch
    prefetcher._loader = numbered([400] * 8)
    kept = []
    for number, batch in enumerate(prefetcher):
        # Fresh memory of the compute stream, which must not be that of a copy still under way.
        kept += [torch.full_like(small, 0.0) for _ in range(3)]
        sums.add(number, batch + kept[-1][0])
    assert sums.all() == list(range(8))


@scenario()
def a_full_host_ring(device):
    sums = Sums(device, 10)
    prefetcher, stats, ring = make_prefetcher(numbered([3] * 10), device, max_host_slots=2)
    for number, batch in enumerate(prefetcher):
        sums.add(number, batch)
    assert sums.all() == list(range(10))
    assert set(stats.by_reason) <= {"staging"}
    assert len(ring._host_slots) <= 2


@scenario()
def free_host_slots_are_used_again(device):
    prefetcher, _, ring = make_prefetcher(numbered([3] * 30), device, depth=1)
    for batch in prefetcher:
        # A loop that waits every batch keeps few transfers in flight.
        HostWaits(device).wait_stream(device.current_stream(), reason="test")
        del batch
    assert len(ring._host_slots) <= 4


@scenario()
def two_prefetchers_at_once(device):
    sums = Sums(device, 14)
    pairs = zip(
        gapless.prefetch(numbered([4] * 7), device),
        gapless.prefetch([7.0 + part for part in numbered([9] * 7)], device, depth=1),
        strict=True,
    )
    for number, (first, second) in enumerate(pairs):
        sums.add(number, first)
        sums.add(7 + number, second)
    assert sums.all() == list(range(14))
