"""Errors and messages of a rank that waits for others: one of them is gone, or the wait takes long."""

from __future__ import annotations

import os
import select
import threading
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import torch.distributed as dist

from gapless.errors import PeerLostError
from gapless.python_private import current_frames


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import timedelta


# One for each time that this process has joined ranks: waits a little, and does not return if one is lost.
_heartbeats: list[Callable[[], None]] = []

# Ranks of one loop are seldom further apart, except where one of them writes a checkpoint.
SECONDS_UNTIL_REPORT = 10.0

_PACKAGE = f"{Path(__file__).parents[1]}{os.sep}"


@contextmanager
def heartbeat_tells(let_tell: Callable[[], None]) -> Iterator[None]:
    """Let the heartbeat report a lost rank, by its number, if a connection fails in the body.

    Args:
        let_tell: waits a little, and does not return if a rank is lost.
    """
    _heartbeats.append(let_tell)
    try:
        yield
    finally:
        _heartbeats.remove(let_tell)


@contextmanager
def named_as_lost(what: str) -> Iterator[None]:
    """Raise PeerLostError for what torch raises where a connection is closed.

    Args:
        what: the collective in the body, as the error names it.
    """
    try:
        yield
    except RuntimeError as error:
        if not is_of_a_connection(error):
            raise
        for let_tell in _heartbeats:
            let_tell()
        raise PeerLostError(
            f"another rank is gone: the {what} of all ranks failed ({first_line(error)}); its own "
            "output says why"
        ) from error


def is_of_a_connection(error: RuntimeError) -> bool:
    """Return whether gloo or the store raised an error; those of gloo have no type, only a text."""
    of_store = isinstance(error, dist.DistNetworkError | dist.DistStoreError)
    return of_store or "gloo" in str(error)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text."""
    return str(error).partition("\n")[0]


@contextmanager
def reported_if_long(*, rank: int, limit: timedelta) -> Iterator[None]:
    """Write a line to standard error if the body, in which this rank waits for others, takes long.

    Args:
        rank: of this process.
        limit: of the wait.
    """
    seconds = SECONDS_UNTIL_REPORT
    timer = threading.Timer(seconds, _tell, (rank, seconds, limit, threading.get_ident()))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def _tell(rank: int, seconds: float, limit: timedelta, thread: int) -> None:
    write_if_room(
        f"gapless: rank {rank} has waited {seconds:g} s for the other ranks{_place_of(thread)}, and "
        f"waits {limit.total_seconds():,.0f} s at most; all ranks have to make this call, and equally "
        "often: none may stand under a condition such as `if rank == 0`\n"
    )


def _place_of(thread: int) -> str:
    """Return the line of the user's program that a thread is at; nothing if there is none."""
    frame = current_frames().get(thread)
    is_inside = False
    while frame is not None:
        is_ours = frame.f_code.co_filename.startswith(_PACKAGE)
        if is_inside and not is_ours:
            return f" in {frame.f_code.co_filename}, line {frame.f_lineno}"
        is_inside = is_inside or is_ours
        frame = frame.f_back
    return ""


def write_if_room(text: str) -> None:
    """Write to standard error if that does not block, without streams and locks.

    A thread that hangs may hold the locks, and whoever writes must be able to go on.
    """
    with suppress(OSError):
        if select.select([], [2], [], 0)[1]:
            os.write(2, text.encode(errors="replace"))
