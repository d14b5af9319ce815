"""The watch of this process, which a script tells of its steps. No torch, and nothing that loads it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol


if TYPE_CHECKING:
    from collections.abc import Iterator


class ToldOfSteps(Protocol):
    """Somebody who watches."""

    def step(self) -> None:
        """Note that a step has ended."""


_watches: list[ToldOfSteps] = []


def step() -> None:
    """Say that a step of the script has ended, for `gapless doctor --step` and `watch`.

    Where nobody watches, nothing happens. Only these calls are steps from then on.

    Sync: Does not block the host.
    """
    for watch in _watches:
        watch.step()


@contextmanager
def watched_by(watch: ToldOfSteps) -> Iterator[None]:
    """Tell somebody of the steps in the body."""
    _watches.append(watch)
    try:
        yield
    finally:
        _watches.remove(watch)
