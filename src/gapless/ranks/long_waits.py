"""Tell of a wait for other ranks of a user's loop that takes long: one of them may never come."""

from __future__ import annotations

import os
import select
import threading
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from gapless.python_private import current_frames


if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import timedelta


# Before it is told. Ranks of one loop are seldom as far apart, but where one of them writes a checkpoint.
SECONDS_UNTOLD = 10.0

_PACKAGE = f"{Path(__file__).parents[1]}{os.sep}"


@contextmanager
def told_if_long(*, rank: int, limit: timedelta) -> Iterator[None]:
    """Write a line to standard error if the body, in which this rank waits for others, takes long.

    Args:
        rank: of this process.
        limit: of the wait.
    """
    seconds = SECONDS_UNTOLD
    timer = threading.Timer(seconds, _tell, (rank, seconds, limit, threading.get_ident()))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def _tell(rank: int, seconds: float, limit: timedelta, thread: int) -> None:
    _write(
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


def _write(text: str) -> None:
    """Write if there is room: the thread that waits must be able to go on."""
    with suppress(OSError):
        if select.select([], [2], [], 0)[1]:
            os.write(2, text.encode(errors="replace"))
