"""What is left to do when something has raised already."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING


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
