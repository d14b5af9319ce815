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
        num_workers: processes of the loader, None if that is not known; plan `auto` asks for it.
    """

    def __init__(
        self, loader: Iterable[BatchT], take: Callable[[Iterable[BatchT]], Iterator[BatchT]]
    ) -> None:
        self._loader = loader
        self._take = take
        self.num_workers = num_workers(loader)

    def __iter__(self) -> Iterator[BatchT]:
        return self._take(self._loader)


def num_workers(batches: Any) -> int | None:
    """Return how many processes make these batches, None if that is not known."""
    if isinstance(batches, list | tuple):
        return 0
    found = getattr(batches, "num_workers", None)
    return found if isinstance(found, int) else None
