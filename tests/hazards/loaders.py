"""Loaders of every kind, and loops that use them in every way."""

from __future__ import annotations

import collections.abc
import copy
import itertools
import pickle
import threading

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    TensorDataset,
)

from hazards.harness import GPU, HOLDS, REAL, case, snapshot


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


class Stream(IterableDataset):
    def __init__(self, num):
        self.num = num

    def __iter__(self):
        return (torch.full((3,), float(number)) for number in range(self.num))


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
    "two_buffers_refilled",
    "A loader refills two pinned buffers in turn.",
    lambda place: place.sizes(),
    pinned=True,
    num_buffers=2,
)
refill_case(
    "refilled_and_unpinned",
    "A loader refills one buffer, with `pin_memory=False`.",
    lambda place: place.sizes(),
    pinned=False,
    pin_memory=False,
)


@case("A loader refills a numpy array that its tensors share.")
def numpy_buffer_refilled(place):
    def loader():
        array = torch.zeros(place.medium).numpy()
        for number in range(9):
            array[:] = number * 10
            array[0] = 1
            yield torch.from_numpy(array)[: place.medium - number]
            array[:] = -1

    return read_all(place, loader())


@case("A loader refills parts of one buffer of mixed sizes, as `collate(out=...)` does.")
def parts_of_a_buffer_refilled(place):
    def loader():
        whole = place.pinned(torch.zeros(place.large))
        for number in range(9):
            size = [7, place.medium, place.large][number % 3]
            whole[:size] = place.numbers(number, size)
            yield {"x": whole[:size], "y": whole[size - 3 : size].clone(), "n": number}
            whole.zero_()

    results = []
    for batch in place.prefetch(loader()):
        place.busy()
        results.append((batch["x"] + batch["y"][0], batch["n"]))
    return results


@case("A loader frees its batch and makes the next in the same memory.")
def loader_drops_its_batch(place):
    def loader():
        for number in range(12):
            x = place.numbers(number, place.large)
            yield place.pinned(x) if number % 2 else x
            del x

    return read_all(place, loader())


@case("`itertools.islice` takes part of an infinite loader.")
def islice_of_infinite(place):
    loader = (place.numbers(number, 5) for number in itertools.count())
    first = list(itertools.islice(place.prefetch(loader), 7))
    return first, next(loader)[0].item()


@case("An infinite loader is left by break.")
def infinite_loader(place):
    results = []
    for number, x in enumerate(place.prefetch(place.numbers(n, 9) for n in itertools.count())):
        results.append(x)
        if number == 8:
            break
    return results


@case("A training by steps calls `iter` again whenever the pass is over.")
def endless_by_iter(place):
    prefetcher = place.prefetch([place.numbers(n, place.tiny) for n in range(3)])
    batches, results = iter(prefetcher), []
    for _ in range(10):
        try:
            x = next(batches)
        except StopIteration:
            batches = iter(prefetcher)
            x = next(batches)
        place.busy()
        results.append(x[1:])
    return results


@case("`itertools.cycle` keeps every batch.")
def cycled(place):
    cycle = itertools.cycle(place.prefetch([place.numbers(n, place.medium) for n in range(3)]))
    return [next(cycle)[:4] * 2 for _ in range(9)]


@case("Two prefetchers are zipped, labelled with unlabelled data.")
def zipped(place):
    left = place.prefetch([place.numbers(n, place.medium) for n in range(5)])
    right = place.prefetch([(place.numbers(n + 50, place.tiny), f"b{n}") for n in range(4)])
    results = []
    for x, (y, text) in zip(left, right, strict=False):
        place.busy()
        results.append((x[:3] + y[:3], text))
    return results


@case("Two shuffled DataLoaders are zipped: both draw their seeds before the first batch.")
def shuffled_and_zipped(place):
    torch.manual_seed(11)
    left, right = (place.prefetch(DataLoader(Squares(num), 2, shuffle=True)) for num in (10, 14))
    return [(x, rows, other) for (x, rows, _), (other, *_) in zip(left, right, strict=False)]


@case("Iterators are made before the loop, and random numbers are drawn before the first batch.")
def iterators_before_the_loop(place):
    torch.manual_seed(12)
    labelled = iter(place.prefetch(DataLoader(Squares(12), 3, shuffle=True)))
    noise = torch.randn(1).item()
    unlabelled = iter(place.prefetch(DataLoader(Squares(20), 4, shuffle=True)))
    found = [(next(labelled)[1], next(unlabelled)[1], torch.rand(1).item()) for _ in range(4)]
    return found, noise


@case("The data grow after the iterator was made.")
def data_change_after_iter(place):
    rows = [place.numbers(n, place.tiny) for n in range(4)]

    class Ends:
        def __iter__(self):
            return iter(list(rows))

    batches = iter(place.prefetch(Ends()))
    rows.append(place.numbers(9, place.tiny))
    return list(batches)


@case("The shorter of two loaders is cycled while the longer is read once.")
def zip_with_cycle(place):
    long = place.prefetch([place.numbers(n, 40) for n in range(7)])
    short = place.prefetch([place.numbers(n, 40) for n in range(2)])
    return [x - y for x, y in zip(long, itertools.cycle(short), strict=False)]


@case("A loop over a prefetcher within a loop over the same one.")
def nested_loops(place):
    prefetcher = place.prefetch([place.numbers(n, place.medium) for n in range(4)])
    results = []
    for x in prefetcher:
        for y in prefetcher:
            place.busy()
            results.append((x * y)[:5])
    return results


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


@case("A pass is begun in one thread and read in another.", devices=REAL)
def handed_to_a_thread(place):
    batches, results = iter(place.prefetch([place.numbers(n, 90) for n in range(5)])), []
    results.append(next(batches))
    thread = threading.Thread(target=lambda: results.extend(batches))
    thread.start()
    thread.join()
    place.settle()
    return results


@case("The prefetcher is made anew in each epoch, over one loader.")
def made_in_each_epoch(place):
    loader = [place.numbers(n, place.medium) for n in range(4)]
    results = []
    for _ in range(3):
        for x in place.prefetch(loader):
            place.busy()
            results.append(x[::7])
    return results


@case("One prefetcher serves several epochs, with evaluation between them.")
def several_epochs(place):
    train = place.prefetch([place.numbers(n, place.medium) for n in range(4)])
    valid = place.prefetch([place.numbers(n, place.medium) for n in range(9, 12)])
    results = []
    for _ in range(3):
        results.extend(x[:4] for x in train)
        with torch.no_grad():
            results.extend(x[4:8] for x in valid)
        place.busy()
    return results


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


@case("A DataLoader with workers is left early and read again.", devices=REAL)
def workers_left_early(place):
    loader = DataLoader(Squares(12), batch_size=3, num_workers=1)
    results = []
    for _ in range(2):
        for x, *_ in place.prefetch(loader):
            results.append(x)
            break
    return results


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


@case("An iterable dataset without a length.")
def iterable_dataset(place):
    prefetcher = place.prefetch(DataLoader(Stream(7), batch_size=2))
    with pytest.raises(TypeError):
        len(prefetcher)
    return list(prefetcher)


@case("The loader samples batches itself (`batch_size=None`).")
def no_automatic_batches(place):
    return list(place.prefetch(DataLoader(TensorDataset(place.numbers(0, 5, 3)), batch_size=None)))


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


@case("`set_epoch` reaches the loader, and what it says holds from the next pass on.")
def set_epoch(place):
    class Loader:
        epoch = 0

        def set_epoch(self, epoch):
            self.epoch = epoch

        def __iter__(self):
            return iter([place.numbers(self.epoch * 10 + n, 5) for n in range(3)])

    prefetcher, results = place.prefetch(Loader()), []
    for epoch in range(3):
        prefetcher.set_epoch(epoch)
        results.extend(prefetcher)
    return results, prefetcher.epoch


@case("An attribute that the loader has not is an AttributeError with its name.", verdict=HOLDS)
def missing_attribute(place):
    prefetcher = place.prefetch([place.numbers(0, 3)])
    assert not hasattr(prefetcher, "sampler")
    assert getattr(prefetcher, "no_such_thing", "default") == "default"
    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = prefetcher.no_such_thing


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


@case("A progress bar wraps the prefetcher: it asks for its length and counts.")
def progress_bar(place):
    class Bar:
        def __init__(self, iterable):
            self.iterable = iterable
            self.total = len(iterable) if hasattr(iterable, "__len__") else None
            self.num = 0

        def __iter__(self):
            for one in self.iterable:
                yield one
                self.num += 1

    sized, unsized = Bar(place.prefetch([place.numbers(n, 4) for n in range(5)])), None
    results = [x[1:] for x in sized]
    try:
        unsized = Bar(place.prefetch(place.numbers(n, 4) for n in range(5))).total
    except TypeError:
        unsized = None
    return results, sized.total, sized.num, unsized


@case("Loops ask `if loader:` and `isinstance(loader, Iterable)`.", verdict=HOLDS)
def truth_and_kind(place):
    full = place.prefetch([place.numbers(0, 3)])
    assert full
    assert not place.prefetch([])
    assert place.prefetch(one for one in [])
    assert isinstance(full, collections.abc.Iterable)
    assert not isinstance(full, DataLoader)
    assert iter(full) is not iter(full)


@case("The iterator is its own iterator, and stays at its end.", verdict=HOLDS)
def iterator_protocol(place):
    batches = iter(place.prefetch([place.numbers(0, 3)]))
    assert iter(batches) is batches
    assert len(next(batches)) == 3
    for _ in range(3):
        with pytest.raises(StopIteration):
            next(batches)


@case("A generator is a loader for one pass; the second is empty, as in a plain loop.")
def generator_twice(place):
    prefetcher = place.prefetch(place.numbers(n, 4) for n in range(3))
    return list(prefetcher), list(prefetcher)


@case("A loader with `__getitem__` alone (the old protocol).")
def old_protocol(place):
    class Old:
        def __getitem__(self, index):
            if index == 4:
                raise IndexError(index)
            return place.numbers(index, 6)

    return list(place.prefetch(Old()))


@case("A loader whose `__iter__` resets itself and returns itself.")
def loader_is_its_own_iterator(place):
    class Own:
        def __iter__(self):
            self.number = 0
            return self

        def __next__(self):
            if self.number == 3:
                raise StopIteration
            self.number += 1
            return place.numbers(self.number, 6)

    prefetcher = place.prefetch(Own())
    return list(prefetcher), list(prefetcher)


@case("The loader that was wrapped is copied and pickled, and goes on as it was.", verdict=HOLDS)
def loader_is_copied(place):
    loader = DataLoader(Squares(6), batch_size=2)
    prefetcher = place.prefetch(loader)
    first = [batch[1].tolist() for batch in prefetcher]
    for again in (copy.deepcopy(loader), pickle.loads(pickle.dumps(loader))):
        assert [batch[1].tolist() for batch in place.prefetch(again)] == first


@case(
    "The prefetcher itself is copied, which asks it for attributes that are not there yet.",
    verdict=HOLDS,
)
def prefetcher_is_copied(place):
    prefetcher = place.prefetch([place.numbers(n, 4) for n in range(3)])
    again = copy.copy(prefetcher)
    assert [int(x[0]) for x in again] == [int(x[0]) for x in prefetcher]


@case("Empty loaders: a list, a DataLoader.", verdict=HOLDS)
def empty_loaders(place):
    assert list(place.prefetch([])) == []
    assert list(place.prefetch(DataLoader(TensorDataset(torch.empty(0, 3))))) == []


@case("The last batch is short, and sizes grow and shrink.")
def short_last_batch(place):
    results = []
    for rows in (40, 3, 200, 40, 0, 1, 200):
        data = TensorDataset(place.numbers(rows, rows, 6))
        if rows:
            for (x,) in place.prefetch(DataLoader(data, batch_size=16)):
                place.busy()
                results.append(x[:, 0])
    return results


@case("A prefetcher is read through another prefetcher.")
def prefetcher_of_a_prefetcher(place):
    inner = place.prefetch([(place.numbers(n, place.medium), "a") for n in range(6)])
    results = []
    for x, text in place.prefetch(inner):
        place.busy()
        results.append((x[:5], text))
    return results


@case("A thread of the user's reads ahead through a queue of batches.", devices=REAL)
def read_by_a_queue(place):
    import queue

    waiting = queue.Queue(maxsize=2)

    def fill():
        for x in place.prefetch([place.numbers(n, place.medium) for n in range(8)]):
            waiting.put(x[5:])
        waiting.put(None)

    thread = threading.Thread(target=fill)
    thread.start()
    results = []
    while (x := waiting.get()) is not None:
        place.settle()
        results.append(snapshot(place, x))
    thread.join()
    return results


@case("Batches are taken by `list`, by unpacking, by `map` and by a comprehension.")
def all_at_once(place):
    prefetcher = place.prefetch([place.numbers(n, place.medium) for n in range(4)])
    first, *rest = prefetcher
    return first, rest, list(map(torch.sum, prefetcher)), dict(enumerate(prefetcher))


@case("On a machine with a GPU the loop asks for the CPU.", devices=(GPU,), verdict=HOLDS)
def cpu_beside_a_gpu(place):
    loader = [torch.ones(3), place.moved(torch.ones(2))]
    import gapless

    batches = list(gapless.prefetch(loader, "cpu"))
    assert batches[0] is loader[0]
    assert batches[1].device.type == "cpu"
