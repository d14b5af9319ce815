"""Tell blocks of autocast apart: torch has no number for them, but clears its casts at their end."""

from __future__ import annotations

from threading import local
from typing import TYPE_CHECKING

import torch


if TYPE_CHECKING:
    from collections.abc import Callable


class _Blocks:
    """Counts how often casts were cleared, once somebody asks, and says so."""

    def __init__(self) -> None:
        self.num_ended = 0
        # A thread has blocks of its own.
        self.of_thread = local()
        self._clear: Callable[[], None] | None = None

    def count(self) -> None:
        """Put a function that counts in the place of torch's."""
        if self._clear is not None:
            return
        clear = self._clear = torch.clear_autocast_cache

        def clear_and_count() -> None:
            self.num_ended += 1
            waiting: list[Callable[[], None]] = getattr(self.of_thread, "waiting", [])
            while waiting:
                waiting.pop()()
            clear()

        torch.clear_autocast_cache = clear_and_count


_BLOCKS = _Blocks()


def num_ended_blocks() -> int:
    """Return a number that two calls share only if they stand in one outermost block of autocast.

    Sync: Does not block the host.
    """
    _BLOCKS.count()
    return _BLOCKS.num_ended


def at_end_of_block(call: Callable[[], None]) -> None:
    """Let a function be called when this thread's outermost block of autocast ends.

    Sync: Does not block the host.
    """
    _BLOCKS.count()
    if not hasattr(_BLOCKS.of_thread, "waiting"):
        _BLOCKS.of_thread.waiting = []
    _BLOCKS.of_thread.waiting.append(call)
