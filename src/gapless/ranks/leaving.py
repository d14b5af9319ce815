"""How a rank leaves the others: when all is done, in one order and never for ever; or by an error."""

from __future__ import annotations

import faulthandler
import gc
import signal
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gapless.unnoticed import Patches


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from gapless.ranks.heartbeat import Heartbeat


# NCCL waits for ever for a graph that still holds its communicator.
LEAVING_SECONDS = 20.0


def leave(
    heartbeat: Heartbeat,
    destroy_groups: Callable[[], None],
    *,
    limit_seconds: float = LEAVING_SECONDS,
) -> None:
    """Leave the other ranks, when no work is queued on the device and no graph is used any more.

    The ranks agree that they have ended while the heartbeat still watches over them. Then each lets
    its last graphs go and destroys its groups, in this order; but not groups of which a rank is lost.

    Args:
        heartbeat: heartbeat of this rank.
        destroy_groups: destroys all process groups.
        limit_seconds: for all that follows the agreement. After it the process writes the stacks of
            its threads and exits with 1.

    Sync: Blocks the host until all ranks are here.
    """
    if not heartbeat.end():
        return
    with _limited(limit_seconds):
        # A graph in a reference cycle is freed by the collector alone.
        gc.collect()
        destroy_groups()


@contextmanager
def errors_end_all(heartbeat: Heartbeat) -> Iterator[None]:
    """Let an error that nobody catches end all ranks, and be written once; inside a `with` block.

    Args:
        heartbeat: heartbeat of this rank.
    """
    write, is_over = sys.excepthook, False

    def end_all(
        error_type: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        if is_over:  # a hook that was put on top of this one still calls it
            write(error_type, error, trace)
            return
        code = 128 + signal.SIGINT if issubclass(error_type, KeyboardInterrupt) else 1
        heartbeat.fail(lambda: write(error_type, error, trace), code=code)

    with Patches() as patches:
        patches.put(sys, "excepthook", end_all)
        try:
            yield
        finally:
            is_over = True


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    # Not a `threading.Timer`: a call of NCCL that hangs may hold the interpreter.
    faulthandler.dump_traceback_later(seconds, exit=True, file=2)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
