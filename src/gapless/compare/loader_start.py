"""The batches of one epoch, with what starting and ending a loader's workers takes told apart.

A loader without persistent workers starts its processes whenever it is gone through. A training
run pays that once in thousands of steps, a round of a comparison once in fifty, where it would
outweigh what differs between plans.
"""

from __future__ import annotations

from itertools import islice
from time import perf_counter
from typing import TYPE_CHECKING, Any

from torch.utils.data import IterableDataset

from gapless.pipeline.failures import end_loader
from gapless.pipeline.loaders import num_workers


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class EpochBatches:
    """The first batches of a loader, gone through once; `end` has to follow.

    Args:
        loader: a loader, a list, or anything else that gives batches.
        count: most batches of the epoch.

    Attributes:
        start_ms: time from the first batch asked for until it was there, if the loader started
            workers for it; 0 for other loaders, whose first batch is like any other.
    """

    def __init__(self, loader: Iterable[Any], count: int) -> None:
        self._starts_workers = starts_workers(loader)
        self._count = min(count, _length(loader, count)) if self._starts_workers else count
        self._iterator: Iterator[Any] | None = None
        self.start_ms = 0.0

    def take(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Yield them; a generator, which the loop closes when an epoch is cut short."""
        if not self._starts_workers:
            yield from islice(loader, self._count)
            return
        start = perf_counter()
        self._iterator = iter(loader)
        for number, batch in enumerate(islice(self._iterator, self._count)):
            if not number:
                self.start_ms = (perf_counter() - start) * 1000.0
            yield batch

    def end(self) -> None:
        """End the workers that were started, which the epoch's time has no part in.

        Sync: Does not block the host on the device; waits for worker processes to end.
        """
        if self._iterator is not None:
            end_loader(self._iterator)
            self._iterator = None


def starts_workers(loader: Iterable[Any]) -> bool:
    """Return whether this loader starts worker processes each time it is gone through."""
    return bool(num_workers(loader)) and not getattr(loader, "persistent_workers", False)


def _length(loader: Any, most: int) -> int:
    """Return how many batches there are, as far as the loader can know; `most` if it cannot.

    Asked for one more, torch's loader ends its workers before it says that there is none.
    """
    if isinstance(getattr(loader, "dataset", None), IterableDataset):
        return most
    try:
        return len(loader)
    except TypeError:
        return most
