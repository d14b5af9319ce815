"""Loaders of every kind, and loops that use them in every way."""

from __future__ import annotations

import collections.abc
import copy
import threading

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    RandomSampler,
    TensorDataset,
)

from hazards.harness import GPU, HOLDS, REAL, case


class Squares(Dataset):
    """Rows made when they are asked for."""

    def __init__(self, num):
        self.num, self.epoch = num, 0

    def __len__(self):
        return self.num

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __getitem__(self, index):
        return torch.full((5,), float(index * index + self.epoch)), index, f"row {index}"


def refilled(place, buffers, num=12):
    """Yield the same buffers again and again, refilled in place, and spoilt once they were read."""
    for number in range(num):
        buffer = buffers[number % len(buffers)]
        buffer.copy_(place.numbers(number, buffer.numel()))
        yield buffer
        buffer.fill_(-5)


def read_all(place, loader, **options):
    results = []
    for x in place.prefetch(loader, **options):
        place.busy()
        results.append(x * 2)
    return results


def refill_case(name, sentence, sizes, *, pinned, num_buffers=1, **options):
    def loop(place):
        results = []
        for size in sizes(place):
            make = place.pinned if pinned else (lambda one: one)
            buffers = [make(torch.zeros(size)) for _ in range(num_buffers)]
            results.append(read_all(place, refilled(place, buffers), **options))
        return results

    loop.__name__ = name
    # On a CPU `.to` returns the loader's own buffer, and what is kept changes.
    case(sentence)(loop)


refill_case(
    "pageable_buffer_refilled",
    "A loader refills one pageable buffer in place.",
    lambda place: place.sizes(),
    pinned=False,
)
refill_case(
    "pinned_buffer_refilled",
    "A loader refills one pinned buffer in place.",
    lambda place: place.sizes(),
    pinned=True,
)
refill_case(
    "refilled_and_unpinned",
    "A loader refills one buffer, with `pin_memory=False`.",
    lambda place: place.sizes(),
    pinned=False,
    pin_memory=False,
)


@case("A loader frees its batch and makes the next in the same memory.")
def loader_drops_its_batch(place):
    def loader():
        for number in range(12):
            x = place.numbers(number, place.large)
            yield place.pinned(x) if number % 2 else x
            del x

    return read_all(place, loader())


@case("Two shuffled DataLoaders are zipped: both draw their seeds before the first batch.")
def shuffled_and_zipped(place):
    torch.manual_seed(11)
    left, right = (place.prefetch(DataLoader(Squares(num), 2, shuffle=True)) for num in (10, 14))
    return [(x, rows, other) for (x, rows, _), (other, *_) in zip(left, right, strict=False)]


@case("The data grow after the iterator was made.")
def data_change_after_iter(place):
    rows = [place.numbers(n, place.tiny) for n in range(4)]

    class Ends:
        def __iter__(self):
            return iter(list(rows))

    batches = iter(place.prefetch(Ends()))
    rows.append(place.numbers(9, place.tiny))
    return list(batches)


@case("Two passes over one prefetcher are read in turn.")
def two_passes_in_turn(place):
    prefetcher = place.prefetch([place.numbers(n, place.medium) for n in range(6)])
    one, two = iter(prefetcher), iter(prefetcher)
    results = [next(one)[:9], next(one)[:9]]
    for x, y in zip(one, two, strict=False):
        place.busy()
        results.append((x[:9], y[:9]))
    return results


@case("Two threads read passes of their own.", devices=REAL)
def two_threads(place):
    prefetcher = place.prefetch([place.numbers(n, place.medium) for n in range(8)])
    results, failures = {}, []

    def read(name):
        try:
            side = place.stream()
            with place.on(side):
                found = []
                for x in prefetcher:
                    place.busy()
                    found.append(x[:20] * 2)
                place.settle()
                results[name] = found
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=read, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    return results["a"], results["b"]


@case("A DataLoader shuffles with the default generator, over two epochs.")
def data_loader(place):
    loader = DataLoader(Squares(23), batch_size=4, shuffle=True)
    prefetcher = place.prefetch(loader)
    return [batch for _ in range(2) for batch in prefetcher], torch.rand(3).tolist()


@case("A DataLoader with worker processes, which are kept.", devices=REAL)
def persistent_workers(place):
    loader = DataLoader(Squares(12), batch_size=3, num_workers=1, persistent_workers=True)
    results = []
    try:
        for epoch in range(2):
            loader.dataset.set_epoch(epoch)
            results += [(x, index) for x, index, _ in place.prefetch(loader)]
    finally:
        loader._iterator._shutdown_workers()
    return [index for _, index in results], [x.shape for x, _ in results]


@case("A DataLoader pins its batches in a thread.", devices=(GPU,))
def pinning_loader(place):
    data = TensorDataset(place.numbers(0, 64, 300), torch.arange(64))
    loader = DataLoader(data, batch_size=8, pin_memory=True)
    results = []
    for x, y in place.prefetch(loader):
        place.busy()
        results.append((x[:, :2], y))
        del x, y
    return results


@case(
    "What the loop asks of its loader is there: dataset, samplers, batch_size, len.", verdict=HOLDS
)
def the_loader_shows_through(place):
    data = Squares(10)
    sampler = RandomSampler(data)
    loader = DataLoader(data, batch_sampler=BatchSampler(sampler, 3, drop_last=False))
    prefetcher = place.prefetch(loader)
    assert len(prefetcher) == 4
    assert prefetcher.dataset is data
    assert prefetcher.batch_sampler is loader.batch_sampler
    assert prefetcher.batch_sampler.sampler is sampler
    assert prefetcher.batch_size is None
    assert prefetcher.num_workers == 0
    assert prefetcher.sampler is loader.sampler
    assert prefetcher.drop_last is False
    assert len(prefetcher.dataset) == 10


@case("The loader changes its length or its attributes while it is wrapped.", verdict=HOLDS)
def attributes_are_live(place):
    class Loader(list):
        batch_size = 4

    loader = Loader([place.numbers(0, 3)])
    prefetcher = place.prefetch(loader)
    loader.append(place.numbers(1, 3))
    loader.batch_size = 9
    assert len(prefetcher) == 2
    assert prefetcher.batch_size == 9
    assert len(list(prefetcher)) == 2


@case("`next(prefetcher)` is a TypeError that speaks of `iter`.", verdict=HOLDS)
def next_is_refused(place):
    prefetcher = place.prefetch([place.numbers(0, 3)])
    with pytest.raises(TypeError, match="iter"):
        next(prefetcher)
    assert len(list(prefetcher)) == 1


@case("Loops ask `if loader:` and `isinstance(loader, Iterable)`.", verdict=HOLDS)
def truth_and_kind(place):
    full = place.prefetch([place.numbers(0, 3)])
    assert full
    assert not place.prefetch([])
    assert place.prefetch(one for one in [])
    assert isinstance(full, collections.abc.Iterable)
    assert not isinstance(full, DataLoader)
    assert iter(full) is not iter(full)


@case(
    "The prefetcher itself is copied, which asks it for attributes that are not there yet.",
    verdict=HOLDS,
)
def prefetcher_is_copied(place):
    prefetcher = place.prefetch([place.numbers(n, 4) for n in range(3)])
    again = copy.copy(prefetcher)
    assert [int(x[0]) for x in again] == [int(x[0]) for x in prefetcher]


@case("On a machine with a GPU the loop asks for the CPU.", devices=(GPU,), verdict=HOLDS)
def cpu_beside_a_gpu(place):
    loader = [torch.ones(3), place.moved(torch.ones(2))]
    import gapless

    batches = list(gapless.prefetch(loader, "cpu"))
    assert batches[0] is loader[0]
    assert batches[1].device.type == "cpu"
