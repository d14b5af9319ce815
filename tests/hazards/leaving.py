"""Loops that are left early, loaders that raise, and what is left behind."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest

from hazards.harness import HOLDS, case


def numbered(place, num=6, size=None):
    return [place.numbers(number, size or place.medium) for number in range(num)]


class Failing:
    """A loader that raises at one batch of its first pass."""

    def __init__(self, place, at, error):
        self.place, self.at, self.error, self.num_passes = place, at, error, 0

    def __iter__(self):
        self.num_passes += 1
        for number in range(6):
            if self.num_passes == 1 and number == self.at:
                raise self.error
            yield self.place.numbers(number, self.place.medium)


@case("A loop is left by break, and the next pass begins at the first batch.")
def left_and_again(place):
    prefetcher, results = place.prefetch(numbered(place)), []
    for stop in (2, 0, 4, 9):
        for number, x in enumerate(prefetcher):
            place.busy()
            results.append(x[:6])
            if number == stop:
                break
    return results


@case("The loader raises at batch 3, and is read again from its start.")
def loader_raises(place):
    prefetcher, results = place.prefetch(Failing(place, 3, OSError("disk"))), []
    with pytest.raises(OSError, match="disk"):
        for x in prefetcher:
            results.append(x[:6])
    results.extend(x[:6] for x in prefetcher)
    return results


@case("After a loader's error the same iterator is at its end, as a generator's is.")
def iterator_after_an_error(place):
    batches = iter(place.prefetch(iter(Failing(place, 2, OSError("disk")))))
    results = [next(batches), next(batches)]
    with pytest.raises(OSError, match="disk"):
        next(batches)
    with pytest.raises(StopIteration):
        next(batches)
    return results


@case(
    "The loader's error arrives as it was raised: type, arguments, line of the loader.",
    verdict=HOLDS,
)
def error_is_unchanged(place):
    class OwnError(Exception):
        pass

    error = OwnError("a", 5)
    with pytest.raises(OwnError) as caught:
        list(place.prefetch(Failing(place, 1, error)))
    assert caught.value is error
    assert any(entry.path.name == "leaving.py" for entry in caught.traceback[1:])


@case("Iterating the loader fails already in its `__iter__`.", verdict=HOLDS)
def iter_raises(place):
    class Broken:
        def __iter__(self):
            raise RuntimeError("no files")

    prefetcher = place.prefetch(Broken())
    with pytest.raises(RuntimeError, match="no files"):
        for _ in prefetcher:
            pass


@case("KeyboardInterrupt comes in the loader.")
def interrupted_loader(place):
    prefetcher, results = place.prefetch(Failing(place, 2, KeyboardInterrupt())), []
    with pytest.raises(KeyboardInterrupt):
        for x in prefetcher:
            results.append(x[:6])
    return results + [x[:6] for x in prefetcher]


@case("A half-read iterator is kept, while new passes run beside it, and is read on.")
def half_read_iterators(place):
    prefetcher = place.prefetch(numbered(place))
    halves, results = [], []
    for _ in range(4):
        batches = iter(prefetcher)
        results.append(next(batches)[:4])
        halves.append(batches)
    for batches in halves:
        place.busy()
        results.append(next(batches)[:4])
    return results


@case(
    "The loader cleans up when it is left (`finally`, `with`), as it does in a plain loop.",
    verdict=HOLDS,
)
def loader_is_closed(place):
    events = []

    class Files:
        def __iter__(self):
            events.append("open")
            try:
                for number in range(5):
                    yield place.numbers(number, 4)
            finally:
                events.append("close")

    prefetcher = place.prefetch(Files())
    for _ in prefetcher:
        break
    gc.collect()
    assert events == ["open", "close"]
    assert len(list(prefetcher)) == 5
    assert events == ["open", "close"] * 2


@case("Threads end with the pass, or with the prefetcher.", verdict=HOLDS)
def threads_end(place):
    before = set(threading.enumerate())
    for _ in range(3):
        prefetcher = place.prefetch(numbered(place, size=place.large))
        for _ in prefetcher:
            break
        list(prefetcher)
        del prefetcher
    gc.collect()
    for thread in set(threading.enumerate()) - before:
        thread.join(2)
    assert not [one for one in threading.enumerate() if one not in before and not one.daemon]


@case("Prefetcher and loader die when they are dropped, even half-read.", verdict=HOLDS)
def everything_dies(place):
    class Loader(list):
        pass

    loader = Loader(numbered(place))
    dying = weakref.ref(loader)
    batches = iter(place.prefetch(loader))
    x = next(batches)
    y = x * 1
    del loader, batches, x
    place.settle()
    gc.collect()
    assert dying() is None
    assert y.shape == (place.medium,)
