"""Loops of many batches: memory stays with the largest batch, and what is dropped dies."""

from __future__ import annotations

import gc
import sys
import weakref

import torch

from hazards.harness import CPU, GPU, HOLDS, REAL, case


MIB = 2**20


def blocks():
    """Return how many blocks of memory Python holds."""
    gc.collect()
    return sys.getallocatedblocks()


def device_bytes():
    gc.collect()
    return torch.cuda.memory_allocated()


def peak_of(place, loader, step=None, **options):
    """Return by how much the peak of allocated device memory grows over a pass."""
    torch.cuda.synchronize()
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    for batch in place.prefetch(loader, **options):
        if step is not None:
            step(batch)
        del batch
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


@case(
    "Ten thousand batches with new ids each leave nothing behind on the host.",
    devices=(CPU,),
    verdict=HOLDS,
)
def ten_thousand_with_ids(place):
    def loader(num):
        for number in range(num):
            yield {"x": torch.ones(1 + number % 7), "id": f"id-{number}", "n": number}

    prefetcher = place.prefetch
    for _ in prefetcher(loader(500)):
        pass
    before = blocks()
    for _ in prefetcher(loader(10_000)):
        pass
    assert blocks() - before < 1_000


@case(
    "Batches, and the loader's own tensors, die in the course of the loop.",
    devices=REAL,
    verdict=HOLDS,
)
def tensors_die(place):
    known = []

    def num_alive():
        return len({id(one()) for one in known if one() is not None})

    def loader():
        for number in range(20):
            x = place.numbers(number, place.sizes()[number % 3])
            known.append(weakref.ref(x))
            yield x
            del x

    most = 0
    for x in place.prefetch(loader()):
        known.append(weakref.ref(x))
        place.settle()
        del x
        most = max(most, num_alive())
    place.settle()
    gc.collect()
    # The batch at hand, and what is remembered until the next copy.
    assert most <= 6
    assert num_alive() <= 4


@case(
    "The number of Python objects does not grow with the number of batches.",
    devices=REAL,
    verdict=HOLDS,
)
def objects_do_not_grow(place):
    prefetcher = place.prefetch([(place.numbers(n, 8), f"{n}", n) for n in range(300)])
    counts = []
    for _ in range(4):
        for _ in prefetcher:
            pass
        place.settle()
        gc.collect()
        counts.append(len(gc.get_objects()))
    assert counts[-1] - counts[1] < 100, counts


@case("A batch is just larger than a power of two.", devices=(GPU,), verdict=HOLDS)
def just_above_a_power_of_two(place):
    batch = torch.empty(64 * MIB // 4 + 1)
    peaks = [peak_of(place, [one] * 6) for one in (batch, batch.pin_memory())]
    # The batch at hand, the next one, and an eighth above each.
    assert max(peaks) <= 2.3 * 64 * MIB + 2 * MIB, peaks


@case(
    "Reserved memory stays flat over fifty epochs with a prefetcher made in each.",
    devices=(GPU,),
    verdict=HOLDS,
)
def reserved_over_epochs(place):
    loader = [torch.empty(MIB) for _ in range(4)]
    reserved = []
    for _ in range(50):
        for x in place.prefetch(loader):
            x * 2
        torch.cuda.synchronize()
        reserved.append(torch.cuda.memory_reserved())
    assert reserved[-1] <= reserved[4] + 8 * MIB, reserved


@case(
    "One huge batch comes first, small ones after it: its memory comes back.",
    devices=(GPU,),
    verdict=HOLDS,
)
def one_huge_batch(place):
    before = device_bytes()

    def loader():
        yield torch.empty(128 * MIB // 4)
        for _ in range(200):
            yield torch.empty(1_000)

    prefetcher = place.prefetch(loader())
    for x in prefetcher:
        del x
    del prefetcher
    torch.cuda.synchronize()
    assert device_bytes() - before <= 2 * MIB


@case(
    "After the pass, with the prefetcher dropped, the device memory is as before.",
    devices=(GPU,),
    verdict=HOLDS,
)
def nothing_is_left(place):
    before = device_bytes()
    for depth in (0, 2):
        prefetcher = place.prefetch([torch.empty(MIB) for _ in range(6)], depth=depth)
        for number, x in enumerate(prefetcher):
            del x
            if number == 3:
                break
        del prefetcher
    torch.cuda.synchronize()
    assert device_bytes() - before <= MIB // 8


@case(
    "All batches are kept: memory is what they need, not a multiple.",
    devices=(GPU,),
    verdict=HOLDS,
)
def all_are_kept(place):
    kept = []
    peak = peak_of(place, [torch.empty(MIB) for _ in range(20)], kept.append)
    assert len(kept) == 20
    assert peak <= 20 * 4 * MIB * 1.15 + 8 * MIB


@case("Two hundred passes are left after one large batch.", devices=(GPU,), verdict=HOLDS)
def passes_left_early(place):
    prefetcher = place.prefetch([torch.empty(4 * MIB) for _ in range(3)])
    torch.cuda.synchronize()
    before = device_bytes()
    for _ in range(200):
        for x in prefetcher:
            del x
            break
    torch.cuda.synchronize()
    assert device_bytes() - before <= 3 * 16 * MIB


@case(
    "Page-locked memory does not grow with the number of batches.", devices=(GPU,), verdict=HOLDS
)
def pinned_memory_is_flat(place):
    prefetcher = place.prefetch([torch.empty(2 * MIB + 8 * n) for n in range(40)])
    for _ in prefetcher:
        pass
    torch.cuda.synchronize()
    stats = torch.cuda.host_memory_stats()["allocated_bytes.current"]
    for _ in range(5):
        for _ in prefetcher:
            pass
    torch.cuda.synchronize()
    assert torch.cuda.host_memory_stats()["allocated_bytes.current"] <= stats + 16 * MIB
