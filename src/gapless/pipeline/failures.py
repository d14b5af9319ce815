"""What is left to do when something has raised already."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def noted_on(failure: BaseException) -> Iterator[None]:
    """Run a clean-up after a failure; an error in it becomes a note on the failure.

    The failure is what the user has to see. An interrupt is no error and gets through.
    """
    try:
        yield
    except Exception as second:
        failure.add_note(f"the clean-up after this failed: {type(second).__name__}: {second}")


def end_loader(batches: Iterator[Any]) -> None:
    """End the generator, or the worker processes, behind a loader's iterator.

    Torch ends its workers when their iterator is freed, but the traceback of an error, also of
    one that was raised in a worker, holds the iterator as long as somebody holds the error. There
    is no public way to end them earlier.

    Sync: Does not block the host on the device; waits for worker processes to end.
    """
    if isinstance(batches, Generator):
        batches.close()
    shut_down = getattr(batches, "_shutdown_workers", None)
    if shut_down is not None and not getattr(batches, "_persistent_workers", False):
        shut_down()
