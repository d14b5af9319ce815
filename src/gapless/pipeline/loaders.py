"""Take batches from a loader, count its workers, and end them."""

from __future__ import annotations

from collections.abc import Generator
from itertools import islice
from time import perf_counter
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from torch.utils.data import DataLoader, IterableDataset, default_collate

from gapless.device.torch_private import (
    forget_deaths_of_workers,
    keep_iterator,
    keeps_workers,
    kept_iterator,
    shut_down_of,
    workers_of,
)


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


BatchT = TypeVar("BatchT")

# Longest waits for the end of a worker that was asked to end.
_TERMINATED_SECONDS = 1.0
_KILLED_SECONDS = 5.0


class LoaderPart(Generic[BatchT]):
    """Some batches of a loader, chosen by a generator.

    Args:
        loader: a loader, a list, or any other iterable of batches.
        take: a generator function that yields the batches wanted. Closing the generator has to
            end the loader.

    Attributes:
        loader: as given.
        num_workers: processes of the loader, None if unknown; plan `auto` asks for it.
    """

    def __init__(
        self, loader: Iterable[BatchT], take: Callable[[Iterable[BatchT]], Iterator[BatchT]]
    ) -> None:
        self.loader = loader
        self._take = take
        self.num_workers = num_workers(loader)

    def __iter__(self) -> Iterator[BatchT]:
        return self._take(self.loader)


def end_kept_workers(batches: Any) -> None:
    """End the workers that a loader keeps from epoch to epoch; the next epoch starts new ones.

    If a garbage collection ended them, torch would wait five seconds for each: the queues through
    which it asks them to end are gone by then. Torch has no public function for it.

    Args:
        batches: a loader, or a part of one. Nothing happens to anything else.

    Sync: Does not block the host on the device; waits for worker processes to end.
    """
    loader: Any = batches.loader if isinstance(batches, LoaderPart) else batches
    iterator = kept_iterator(loader)
    if shut_down_of(iterator) is not None:
        _end_workers(iterator)
        keep_iterator(loader, None)


def num_workers(batches: Any) -> int | None:
    """Return how many processes make these batches; None if unknown."""
    if isinstance(batches, list | tuple):
        return 0
    found = getattr(batches, "num_workers", None)
    return found if isinstance(found, int) else None


def has_fresh_memory(loader: Any) -> bool:
    """Return whether to take a batch from this loader is known to change no other batch's memory.

    Torch's makes new memory if worker processes make the batches, or its own collate function
    does; a list only hands out what it holds. Others may fill the same memory again.
    """
    if type(loader) in (list, tuple):
        return True
    return type(loader) is DataLoader and (
        loader.num_workers > 0 or loader.collate_fn is default_collate
    )


def end_loader(batches: Iterator[Any]) -> None:
    """End the generator, or the worker processes, behind a loader's iterator.

    Torch ends its workers when their iterator is freed. But the traceback of an error holds the
    iterator for as long as somebody holds the error. Torch has no public function to end them earlier.

    Sync: Does not block the host on the device; waits for worker processes to end.
    """
    if isinstance(batches, Generator):
        batches.close()
    if shut_down_of(batches) is not None and not keeps_workers(batches):
        _end_workers(batches)


def expect_no_signal(batches: Any) -> None:
    """Let torch raise an error of a worker's death where a batch is read, and nowhere else.

    Otherwise it raises in whatever the main thread does when the signal of that death comes, such
    as the clean-up after another error. A read that waits notices the death within five seconds.

    Args:
        batches: a loader's iterator. Nothing happens to one without worker processes.
    """
    forget_deaths_of_workers(batches)


def _end_workers(iterator: Any) -> None:
    """End the worker processes of an iterator of torch, and see them gone."""
    expect_no_signal(iterator)
    shut_down = shut_down_of(iterator)
    if shut_down is not None:
        shut_down()
    # Torch has sent SIGTERM to those that were not gone in time, and does not insist.
    workers = workers_of(iterator)
    for worker in workers:
        worker.join(_TERMINATED_SECONDS)
    for worker in workers:
        worker.kill()
        worker.join(_KILLED_SECONDS)


class EpochOf(Generic[BatchT]):
    """The first batches of a loader as one epoch; the `with` block ends the workers it started.

    For example, `with EpochOf(loader, 100) as batches: loop.run_epoch(batches, step)`.

    Args:
        loader: a loader, a list, or anything else that gives batches.
        count: most batches of the epoch.

    Attributes:
        num_workers: processes of the loader, None if unknown; plan `auto` asks for it.
        start_ms: time from the first batch asked for until it was there, if the loader started
            workers for it; 0 for other loaders, whose first batch is like any other.
    """

    def __init__(self, loader: Iterable[BatchT], count: int) -> None:
        self._loader = loader
        self._starts_workers = starts_workers(loader)
        self._count = min(count, _length(loader, count)) if self._starts_workers else count
        self._iterator: Iterator[BatchT] | None = None
        self.num_workers = num_workers(loader)
        self.start_ms = 0.0

    def __enter__(self) -> Self:
        return self

    def __iter__(self) -> Generator[BatchT]:
        """Yield the batches; a generator, which the loop closes when an epoch is cut short."""
        if not self._starts_workers:
            yield from islice(self._loader, self._count)
            return
        start = perf_counter()
        self._iterator = iter(self._loader)
        for number, batch in enumerate(islice(self._iterator, self._count)):
            if not number:
                self.start_ms = (perf_counter() - start) * 1000.0
            yield batch

    def __exit__(self, *error: object) -> None:
        """End the workers that were started; their end is no part of the epoch's time.

        Sync: Does not block the host on the device; waits for worker processes to end.
        """
        if self._iterator is not None:
            end_loader(self._iterator)
            self._iterator = None


def starts_workers(loader: Iterable[Any]) -> bool:
    """Return whether this loader starts worker processes for each pass over it."""
    return bool(num_workers(loader)) and not getattr(loader, "persistent_workers", False)


def _length(loader: Any, most: int) -> int:
    """Return the number of batches; `most` if the loader does not know it.

    If torch's loader is asked for one batch too many, it ends its workers before it says so.
    """
    if isinstance(getattr(loader, "dataset", None), IterableDataset):
        return most
    try:
        return len(loader)
    except TypeError:
        return most
