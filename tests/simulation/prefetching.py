"""Batches on their way to the device."""

from __future__ import annotations

import torch

import gapless
from gapless.pipeline.host_waits import HostWaits
from gapless.pipeline.prefetch import Prefetcher
from gapless.pipeline.transfer import TransferLane
from simulation.registry import scenario
from simulation.workloads import Lent, Sums, make_prefetcher, numbered, read_back


@scenario()
def a_loop_of_ones_own(device):
    stats = gapless.WaitStats()
    sums = Sums(device, 12)
    with Lent(device) as lent:
        batches = gapless.prefetch(numbered([6] * 12), device, wait_stats=stats)
        for number, batch in enumerate(batches):
            sums.add(number, batch)
    assert sums.all() == list(range(12))
    assert stats.count == 0
    # For the batch in use, the one that the loop still names, and the one that is staged.
    assert len(lent) == 3


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
    prefetcher, _ = make_prefetcher(data, device, num_lanes=2)
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
def views_of_batches_that_are_kept(device):
    """Who holds a part of a batch holds its memory; and only as long as that."""
    data = numbered([50] * 20)
    sums = Sums(device, 20)
    views = []
    prefetcher, _ = make_prefetcher(data, device, depth=1)
    for number, batch in enumerate(prefetcher):
        views.append((number, batch[3:5]))
        del batch
        if len(views) == 4:
            sums.add(*views.pop(0))
    while views:
        sums.add(*views.pop(0))
    assert sums.all() == list(range(20))


@scenario()
def batches_of_changing_size(device):
    sizes = [1, 300, 20, 700, 5, 1500, 60, 60, 3, 900]
    sums = Sums(device, len(sizes))
    prefetcher, _ = make_prefetcher(numbered(sizes), device, num_lanes=2, depth=2)
    for number, batch in enumerate(prefetcher):
        sums.add(number, batch)
    assert sums.all() == list(range(len(sizes)))


@scenario()
def left_early_and_started_again(device):
    """Copies under way, and memory that is still read, are not in the way of the next pass."""
    sums = Sums(device, 10)
    prefetcher, _ = make_prefetcher(numbered([40] * 9), device, depth=3, num_lanes=3)
    for number in range(2):
        for batch in prefetcher:
            sums.add(number, batch)
            small = torch.empty_like(batch)
            break
        del batch
    prefetcher._loader = [batch + 2 for batch in numbered([40] * 8)]
    kept = []
    for number, batch in enumerate(prefetcher, 2):
        # Fresh memory of the compute stream, which must not be that of a copy still under way.
        kept += [torch.full_like(small, 0.0) for _ in range(3)]
        sums.add(number, batch + kept[-1][0])
    assert sums.all() == [0.0, 0.0, *range(2, 10)]


@scenario()
def few_copies_under_way(device):
    sums = Sums(device, 10)
    prefetcher, stats = make_prefetcher(numbered([3] * 10), device, max_in_flight=2)
    under_way = []
    for number, batch in enumerate(prefetcher):
        event = device.create_event()
        device.record_event(event, prefetcher._lanes[0].stream)
        under_way = [one for one in [*under_way, event] if not one.mark.is_done]
        assert len(under_way) <= 2
        sums.add(number, batch)
    assert sums.all() == list(range(10))
    assert set(stats.by_reason) <= {"staging"}


@scenario(only="lazy")
def many_copies_under_way_are_no_reason_to_wait(device):
    """As long as there are fewer than the limit."""
    prefetcher, stats = make_prefetcher(numbered([3] * 9), device, max_in_flight=10)
    assert len(list(prefetcher)) == 9
    assert stats.count == 0


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


@scenario()
def events_of_passes_are_used_again(device):
    """A loop whose device keeps up needs a few events for each pass, and few for the lane."""
    created, create = [], device.create_event
    device.create_event = lambda **kind: created.append(True) or create(**kind)
    host_waits = HostWaits(device)
    lanes = [TransferLane(device, device.create_stream())]
    for depth in (0, 2):
        created.clear()
        prefetcher = Prefetcher(
            numbered([3] * 40), device=device, host_waits=host_waits, lanes=lanes, depth=depth
        )
        for _ in prefetcher:
            host_waits.wait_stream(device.current_stream(), reason="test")
        assert len(created) <= 10 + 3 * depth


@scenario()
def a_loop_on_a_stream_of_its_own(device):
    """A batch is read on the stream on which it is asked for, whatever the one before was."""
    sums = Sums(device, 12)
    outer = device.current_stream()
    streams = [device.create_stream() for _ in range(2)]
    prefetcher, _ = make_prefetcher(numbered([30] * 12), device, depth=1)
    batches = iter(prefetcher)
    for number in range(12):
        stream = streams[number % 2]
        device.wait_stream(stream, outer)
        with device.use_stream(stream):
            batch = next(batches)
            sums.add(number, batch)
            del batch
        device.wait_stream(outer, stream)
    assert sums.all() == list(range(12))
