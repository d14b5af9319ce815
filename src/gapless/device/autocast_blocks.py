"""Distinguish blocks of autocast: torch gives them no number, but clears its cache of casts at their end."""

from __future__ import annotations

import weakref
from threading import local
from typing import TYPE_CHECKING

import torch

from gapless.unnoticed import PatchesWhileAlive


if TYPE_CHECKING:
    from collections.abc import Callable

    from gapless.unnoticed import Patches


class _Needed:
    """Keeps torch's function patched as long as it lives: held by all that need the end of a block."""


class Block:
    """An outermost block of autocast, or the time between two of them."""

    __slots__ = ("__weakref__", "_needed")

    def __init__(self, needed: _Needed) -> None:
        self._needed = needed


class _Waiting:
    """What a thread has to call at the end of its block."""

    def __init__(self, needed: _Needed) -> None:
        self.calls: list[Callable[[], None]] = []
        self._needed = needed


class _Blocks:
    """Notices when casts are cleared, as long as a block is kept or its end is waited for."""

    def __init__(self) -> None:
        # Weak: a block that nobody keeps is never compared.
        self._current: weakref.ref[Block] | None = None
        # One for all blocks: each step has a new block, and would patch and restore torch.
        self._needed: weakref.ref[_Needed] | None = None
        # Blocks of autocast belong to a thread.
        self._of_thread = local()
        self._heard = PatchesWhileAlive(self._hear)

    def block(self) -> Block:
        """Return what is the same until the next end."""
        block = None if self._current is None else self._current()
        if block is None:
            block = Block(self._need())
            self._current = weakref.ref(block)
        return block

    def _need(self) -> _Needed:
        needed = None if self._needed is None else self._needed()
        if needed is None:
            needed = _Needed()
            self._heard.need(needed)
            self._needed = weakref.ref(needed)
        return needed

    def call_at_end(self, call: Callable[[], None]) -> None:
        """Call a function at this thread's next end."""
        waiting: _Waiting | None = getattr(self._of_thread, "waiting", None)
        if waiting is None:
            waiting = self._of_thread.waiting = _Waiting(self._need())
        waiting.calls.append(call)

    def _hear(self, patches: Patches) -> None:
        hearing = self._hearing(torch.clear_autocast_cache)
        patches.put(torch, "clear_autocast_cache", hearing)

    def _hearing(self, clear: Callable[[], None]) -> Callable[[], None]:
        def clear_and_hear() -> None:
            self._current = None
            waiting: _Waiting | None = getattr(self._of_thread, "waiting", None)
            while waiting is not None and waiting.calls:
                waiting.calls.pop()()
            self._of_thread.waiting = None
            clear()

        return clear_and_hear


_BLOCKS = _Blocks()


def block_of_autocast() -> Block:
    """Return an object that two calls share only if they are in the same outermost block of autocast.

    While one of them is kept, `torch.clear_autocast_cache` is patched.

    Sync: Does not block the host.
    """
    return _BLOCKS.block()


def at_end_of_block(call: Callable[[], None]) -> None:
    """Let a function be called when this thread's outermost block of autocast ends.

    Sync: Does not block the host.
    """
    _BLOCKS.call_at_end(call)
