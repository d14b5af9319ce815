"""Cases measured side by side, each on cores of its own; what is timed takes turns on the device."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor, as_completed
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from benchmarks.doctor.commands import RunError


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from benchmarks.doctor.options import Options


def side_by_side(
    names: Sequence[str], measured: Callable[[str], dict[str, Any]], options: Options
) -> Iterator[dict[str, Any]]:
    """Yield the entry of each case as soon as it is there; as many run at once as `at_once` says.

    Raises:
        RunError: a case failed; all others are there.
    """
    cores = sorted(os.sched_getaffinity(0))
    each = max(1, len(cores) // options.at_once)
    shares: SimpleQueue[list[int]] = SimpleQueue()
    for number in range(options.at_once):
        shares.put(cores[number * each : (number + 1) * each] or cores)
    with ThreadPoolExecutor(
        options.at_once,
        # Processes that a thread starts have its cores.
        initializer=lambda: os.sched_setaffinity(0, shares.get()),
    ) as pool:
        running = {pool.submit(measured, name): name for name in names}
        failed = []
        for done in as_completed(running):
            try:
                entry = {"name": running[done], **done.result()}
            except RunError as error:
                failed.append(f"{running[done]}: {error}")
            else:
                yield entry
    if failed:
        raise RunError("; ".join(failed))
