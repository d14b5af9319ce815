"""The order of runs: defaults first, then, for the same time, the configurations of each cut.

Where a time is given that the defaults will not need, the configurations have that, and all runs
can share the machine at once.
"""

from __future__ import annotations

import heapq
import math
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any

from benchmarks.newcomers.runs import Run, kill_all


if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from benchmarks.newcomers.cuts import Cut


DEFAULTS = "defaults"

Found = dict[str, Any]


def configuration_name(at: int) -> str:
    """Return the name of a grid's configuration, counted from 0."""
    return f"configuration {at + 1:02}"


class Order:
    """Runs of several cuts, of which some have been made before.

    Defaults are measured while as many other runs share the machine as later, beside the
    configurations. So where there are fewer cuts than jobs, the defaults run again with other seeds.

    Args:
        cuts: in the order in which they are measured.
        configurations: flags of each cut's configurations, by the cut's name.
        defaults: flags of the runs with nothing else.
        jobs: runs beside each other.
        seconds: of each configuration; None: as many as the defaults of its cut took.
        names: of the runs to make; empty: all.
    """

    def __init__(
        self,
        cuts: Sequence[Cut],
        configurations: dict[str, list[list[str]]],
        *,
        defaults: tuple[str, ...],
        jobs: int,
        seconds: int | None = None,
        names: Collection[str] = (),
    ) -> None:
        self._cuts = {cut.name: (number, cut) for number, cut in enumerate(cuts)}
        self._configurations = configurations
        self._waiting: list[tuple[bool, int, int, Run]] = []
        self._known: dict[tuple[str, str, str | None], Found] = {}
        self._seconds = seconds
        self._names = names
        repeats = max(1, math.ceil(jobs / len(cuts))) if cuts and seconds is None else 1
        for repeat in range(repeats):
            for number, cut in enumerate(cuts):
                seed = () if repeat == 0 else ("--seed", str(repeat + 1))
                name = DEFAULTS if repeat == 0 else f"{DEFAULTS}, seed {repeat + 1}"
                run = Run(cut=cut, name=name, flags=(*defaults, *seed))
                self._let_wait(False, number, repeat, run)
        if seconds is not None:
            for cut in cuts:
                self._let_configurations_wait(cut.name, seconds)

    def __len__(self) -> int:
        return len(self._waiting)

    def know(self, found: Sequence[Found]) -> None:
        """Take runs that were made before; they are not made again."""
        for one in found:
            self._known.setdefault((one["cut"], one["run"], one["max_time"]), one)

    def next(self, seconds_left: float) -> Run | None:
        """Return the next run to make that can end in the time that is left, None if none can."""
        while self._waiting:
            *_, run = self._waiting[0]
            before = self._known.get((run.cut.name, run.name, run.max_time))
            if before is None:
                if run.seconds > seconds_left:
                    return None
                heapq.heappop(self._waiting)
                return run
            heapq.heappop(self._waiting)
            self.has_ended(before)
        return None

    def has_ended(self, found: Found) -> None:
        """After a cut's defaults, let its configurations wait for their turns."""
        if found["run"] == DEFAULTS and not found["problem"] and self._seconds is None:
            self._let_configurations_wait(found["cut"], max(1, math.floor(found["seconds"])))

    def _let_configurations_wait(self, name: str, seconds: int) -> None:
        number, cut = self._cuts[name]
        max_time = f"{seconds}s"
        for at, flags in enumerate(self._configurations[cut.name]):
            run = Run(cut=cut, name=configuration_name(at), flags=tuple(flags), max_time=max_time)
            self._let_wait(True, number, at, run)

    def _let_wait(self, is_configuration: bool, number: int, at: int, run: Run) -> None:
        if not self._names or run.name in self._names:
            heapq.heappush(self._waiting, (is_configuration, number, at, run))


def make_all(
    order: Order,
    make: Callable[[Run], Found],
    *,
    jobs: int,
    seconds_left: Callable[[], float],
    tell: Callable[[Found, int], None],
) -> None:
    """Make all runs, several beside each other, as long as time is left.

    Args:
        order: of the runs.
        make: makes one run; called in threads.
        jobs: runs beside each other.
        seconds_left: no run begins that needs more.
        tell: called with each run and how many are known to be left, as soon as the run has ended.
    """
    active: set[Future[Found]] = set()
    pool = ThreadPoolExecutor(jobs)
    try:
        while True:
            while len(active) < jobs and (run := order.next(seconds_left())) is not None:
                active.add(pool.submit(make, run))
            if not active:
                return
            done, active = wait(active, return_when=FIRST_COMPLETED)
            for future in done:
                order.has_ended(future.result())
                tell(future.result(), len(order) + len(active))
    finally:
        kill_all()
        pool.shutdown(cancel_futures=True)
