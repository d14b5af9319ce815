"""A part of what a loader gives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


BatchT = TypeVar("BatchT")


class LoaderPart(Generic[BatchT]):
    """Batches of a loader as a generator takes them, such as the first few.

    Args:
        loader: a loader, a list, or anything else that gives batches.
        take: a generator of the batches wanted; closing it has to end the loader.

    Attributes:
        loader: as given.
        num_workers: processes of the loader, None if that is not known; plan `auto` asks for it.
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
    """End the workers that a loader keeps from epoch to epoch; it starts new ones if need be.

    Where a garbage collection meets them, torch waits five seconds for each: the queues by which
    it tells them to end are gone by then. There is no public way to end them.

    Args:
        batches: a loader, a part of one, or anything else, to which nothing is done.

    Sync: Does not block the host on the device; waits for worker processes to end.
    """
    loader: Any = batches.loader if isinstance(batches, LoaderPart) else batches
    shut_down = getattr(getattr(loader, "_iterator", None), "_shutdown_workers", None)
    if shut_down is not None:
        shut_down()
        loader._iterator = None


def num_workers(batches: Any) -> int | None:
    """Return how many processes make these batches, None if that is not known."""
    if isinstance(batches, list | tuple):
        return 0
    found = getattr(batches, "num_workers", None)
    return found if isinstance(found, int) else None
