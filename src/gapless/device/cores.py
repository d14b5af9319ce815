"""How many cores of the processor this process may use."""

from __future__ import annotations

import os


def num_cores() -> int:
    """Return how many cores the system lets this process run on, at least 1.

    Schedulers of clusters, containers and `taskset` give a process some of the machine's cores.
    Systems other than Linux do not tell; there it is the number of all.

    Sync: Does not block the host.
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
