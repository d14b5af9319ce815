"""How a rank leaves the others when all is done: in one order, and never for ever."""

from __future__ import annotations

import faulthandler
import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gapless.ranks.pulse import Pulse


# The communicator of a GPU looks for ever after a graph that still holds it.
LEAVING_SECONDS = 20.0


def leave(
    pulse: Pulse,
    *,
    wait_for_device: Callable[[], None],
    destroy_groups: Callable[[], None],
    limit_seconds: float = LEAVING_SECONDS,
) -> None:
    """Leave the other ranks, when all losses are read and no graph is used any more.

    The ranks agree that they have ended, while the heartbeat still watches over them. Then each lets
    its last graphs go, waits for its device and destroys its groups: those of a GPU cannot be
    destroyed while a graph holds them or a collective runs.

    Args:
        pulse: heartbeat of this rank.
        wait_for_device: blocks until no work is queued on the device.
        destroy_groups: takes the groups down.
        limit_seconds: for all that follows the agreement. After it the process writes the stacks of
            its threads and exits with 1.

    Sync: Blocks the host until all ranks are here and the device is idle.
    """
    pulse.end()
    with _limited(limit_seconds):
        # A graph that is held by a circle of references is let go by the collector alone.
        gc.collect()
        wait_for_device()
        destroy_groups()


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    # A thread of Python could not end this: what hangs may hold the interpreter.
    faulthandler.dump_traceback_later(seconds, exit=True, file=2)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
