"""The processor: the cores that this process may use, the time used, and that of torch's compiler."""

from __future__ import annotations

import os
import resource
import time
from time import perf_counter
from typing import TYPE_CHECKING, Self


if TYPE_CHECKING:
    from types import TracebackType


def num_cores() -> int:
    """Return how many cores the system lets this process run on, at least 1.

    Schedulers of clusters, containers and `taskset` give a process some of the machine's cores.
    Systems other than Linux do not say; there it is the number of all.

    Sync: Does not block the host.
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_seconds() -> float:
    """Return the processor time used so far by this process and its children, in seconds.

    Read from clocks of nanosecond resolution: those that count in ticks of 10 ms are of no use
    for rounds of that length. Running children have such a clock on Linux only; elsewhere their
    time is added when they end.

    Sync: Does not block the host on the device.
    """
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    # Imported here: the command line asks for cores, and its help is to be quick.
    import multiprocessing

    running = sum(_running(child.pid) for child in multiprocessing.active_children())
    return time.process_time() + ended.ru_utime + ended.ru_stime + running


def _running(pid: int | None) -> float:
    if pid is None:
        return 0.0
    # The clock id of another process's processor time, built as clock_getcpuclockid(3) builds it
    # on Linux, since Python does not offer it: the inverted process id, shifted, plus 2, which
    # selects the scheduler's clock.
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return 0.0


class CompileClock:
    """Add up the time that torch.compile spends in a `with` body, on any thread.

    Torch's compiler calls back around every compilation, once for nested ones.

    Attributes:
        seconds: spent so far.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._started_at: float | None = None

    def _start(self, *_: object) -> None:
        self._started_at = perf_counter()

    def _end(self, *_: object) -> None:
        if self._started_at is not None:
            self.seconds += perf_counter() - self._started_at
        self._started_at = None

    def __enter__(self) -> Self:
        # Imported here: torch takes seconds, which other commands need not spend.
        from gapless.device.torch_private import CompileCallbacks

        self._callbacks = CompileCallbacks(self._start, self._end)
        self._callbacks.__enter__()
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._callbacks.__exit__(error_type, error, trace)
