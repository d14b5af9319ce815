"""Sentence pairs in memory, and a pool of processes that works through any number of them in their order."""

from __future__ import annotations

import os
import signal
import threading
import time
import unicodedata
from collections import deque
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import chain, islice
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any, TypeVar


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from concurrent.futures import Future


_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

# Pairs that are read, looked at and encoded at a time. A few for each process are in memory.
CHUNK = 1 << 12

# Items that are taken before the first is done: of fewer it is known how many workers they need.
_MOST_COUNTED = 4

# A worker looks this often, in seconds, whether the process that it works for is gone.
_LOOKS_EVERY = 0.5


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """Sentence pairs, side by side.

    Attributes:
        src: source sentences.
        tgt: target sentences, as many.
        notes: what their reader should know of the files that they are from, a line each.
    """

    src: list[str]
    tgt: list[str]
    notes: tuple[str, ...] = field(default=(), compare=False)

    @classmethod
    def of(cls, pairs: Sequence[tuple[str, str]], *, notes: tuple[str, ...] = ()) -> Pairs:
        """Return pairs, each given as two sentences."""
        return cls(src=[src for src, _ in pairs], tgt=[tgt for _, tgt in pairs], notes=notes)

    def __len__(self) -> int:
        return len(self.src)

    def chunks(self) -> Iterator[Pairs]:
        """Yield the pairs, so many at a time."""
        for start in range(0, len(self), CHUNK):
            yield self.take(range(start, min(start + CHUNK, len(self))))

    def take(self, numbers: Iterable[int]) -> Pairs:
        """Return the pairs of these numbers."""
        numbers = list(numbers)
        return Pairs(src=[self.src[n] for n in numbers], tgt=[self.tgt[n] for n in numbers])


def plain(sentence: str) -> str:
    """Return a sentence without what makes no other one: capitals, forms of characters, spaces and joiners.

    Which pairs a run holds out depends on it.
    """
    # Invisible characters are not printable, so that nearly all sentences skip this loop.
    if not sentence.isprintable():
        sentence = "".join(sign for sign in sentence if unicodedata.category(sign) != "Cf")
    return " ".join(unicodedata.normalize("NFKC", sentence).casefold().split())


# --- several processes ---


def in_order(
    function: Callable[[_Item], _Result], items: Iterable[_Item], *, workers: int
) -> Iterator[tuple[_Item, _Result]]:
    """Yield each item and what a function makes of it, in the items' order.

    A few items are in work at a time, however many there are. One item is done in this process.

    Args:
        function: which forked processes inherit.
        items: that are sent to them.
        workers: most processes; with one it is all done in this one.
    """
    items = iter(items)
    begin = list(islice(items, _MOST_COUNTED))
    if len(begin) < _MOST_COUNTED:
        # All workers are forked at once, which takes longer than a small corpus does.
        workers = min(workers, len(begin))
    if workers < 2:
        for item in chain(begin, items):
            yield item, function(item)
        return
    pool = ProcessPoolExecutor(
        workers,
        mp_context=get_context("fork"),
        initializer=_begin_worker,
        initargs=(function, os.getpid()),
    )
    try:
        waiting: deque[tuple[_Item, Future[_Result]]] = deque()
        for item in chain(begin, items):
            waiting.append((item, pool.submit(_work, item)))
            if len(waiting) > 2 * workers:
                done, result = waiting.popleft()
                yield done, result.result()
        while waiting:
            done, result = waiting.popleft()
            yield done, result.result()
    finally:
        pool.shutdown(cancel_futures=True)


_function: Callable[[Any], Any]


def _begin_worker(function: Callable[[Any], Any], parent: int) -> None:
    global _function
    _function = function
    # What stops the command ends the process that the workers serve, and they end with it.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN if number == signal.SIGINT else signal.SIG_DFL)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOKS_EVERY)
    os.kill(os.getpid(), signal.SIGTERM)


def _work(item: Any) -> Any:
    return _function(item)
