"""Processor time of this process and of the loader workers that it started."""

from __future__ import annotations

import multiprocessing
import resource
import time


def cpu_seconds() -> float:
    """Return the processor time used so far by this process and its children, in seconds.

    By clocks of nanoseconds: what the system counts in ticks of 10 ms says nothing of a round
    that is no longer. Children that run have clocks of that kind on Linux alone; elsewhere their
    time is missing until they end.

    Sync: Does not block the host on the device.
    """
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    running = sum(_running(child.pid) for child in multiprocessing.active_children())
    return time.process_time() + ended.ru_utime + ended.ru_stime + running


def _running(pid: int | None) -> float:
    if pid is None:
        return 0.0
    # The processor clock of another process, made as clock_getcpuclockid(3) does on Linux, which
    # Python does not offer: the inverted id, shifted, and 2 for the scheduler's account.
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return 0.0
