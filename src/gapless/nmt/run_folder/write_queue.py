"""A queue of files to be written in another thread, each when its copies have reached the host."""

from __future__ import annotations

import itertools
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from gapless.checkpoint.files import may_pass


if TYPE_CHECKING:
    from collections.abc import Callable

    from gapless.nmt.run_folder.disk_space import DiskTroubles
    from gapless.pipeline.host_waits import HostWaits


# The jobs of two epochs: each has its weights, and a state, whose copies may serve as the best weights
# too. Copies that wait to be written take memory.
_MAX_JOBS = 4


class Arrival(Protocol):
    """Something that is being copied to the host."""

    def is_done(self) -> bool:
        """Return whether it is there."""

    def wait(self, host_waits: HostWaits, *, reason: str) -> None:
        """Wait until it is there."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """Work for the thread, to be done when what it needs has reached the host.

    Attributes:
        do: the work.
        needs: what has to be there.
        saves: "state" or "best", of each of which a later one does as well as it; None: the weights of an
            epoch, or nothing.
    """

    do: Callable[[], None]
    needs: tuple[Arrival, ...] = ()
    saves: str | None = None

    def is_ready(self) -> bool:
        """Return whether all that it needs has reached the host."""
        return all(need.is_done() for need in self.needs)


class WriteQueue:
    """Does jobs in a thread, in the order of the calls, each when what it needs has reached the host.

    A job that a full disk does not let write is tried again before each later one, and at the end. After
    any other error no more jobs are done, and the next `poll` raises.

    Args:
        host_waits: the door for waits, counted as "checkpoint": at the end, and when more than four
            jobs are pending.
        num_weights: newest epochs whose weights are still tried again.
        disk_troubles: reports a full disk.

    Attributes:
        failure: the error after which nothing is written any more; None while there is none.
    """

    def __init__(
        self, host_waits: HostWaits, *, num_weights: int, disk_troubles: DiskTroubles
    ) -> None:
        self._host_waits = host_waits
        self._num_weights = num_weights
        self._disk_troubles = disk_troubles
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="gapless-writer")
        self._copying: deque[Job] = deque()
        # The thread gets the number of a job, so that it never holds the last reference to a copy:
        # page-locked memory must not be freed while the training thread captures a graph.
        self._jobs: dict[int, Job] = {}
        self._writing: deque[tuple[int, Future[None]]] = deque()
        self._numbers = itertools.count()
        # What could not be written: weights by the number of their job, which is tried again, the
        # newest state under the name "state", and the best weights under "best".
        self._troubles: dict[int | str, OSError] = {}
        # The job of the best weights that could not be written, which is tried again too.
        self._best_to_try: int | None = None
        self.failure: BaseException | None = None

    def has(self, saves: str) -> bool:
        """Return whether a job that saves this is being copied or written."""
        writing = (self._jobs[number] for number, _ in self._writing)
        return any(job.saves == saves for job in (*self._copying, *writing))

    def trouble_of(self, saves: str) -> OSError | None:
        """Return why the newest job that saves this could not be written; None where it was."""
        return self._troubles.get(saves)

    def add(self, job: Job) -> None:
        """Queue a job, for `poll` to hand to the thread.

        Raises:
            OSError: an earlier file could not be written.

        Sync: Does not block the host on the device, unless more than four jobs are pending.
        """
        # Submitted by `poll` and not here: between two epochs the device has nothing to do, and
        # the thread would take time from the training thread.
        self._copying.append(job)
        while self._num_with_copies() > _MAX_JOBS:
            if self._writing:
                self._end_oldest()
            else:
                self._take_oldest()

    def poll(self) -> None:
        """Let the thread do the jobs whose copies have reached the host.

        Raises:
            OSError: a file could not be written.

        Sync: Does not block the host.
        """
        while self._writing and self._writing[0][1].done():
            self._end_oldest()
        while self._copying and self._copying[0].is_ready():
            self._submit_oldest()

    def drain(self) -> None:
        """Wait until everything was tried; what a full disk did not take is tried again later.

        Raises:
            OSError: a file could not be written, for another reason.

        Sync: Blocks the host until the last copy is done.
        """
        while self._copying:
            self._take_oldest()
        while self._writing:
            self._end_oldest()

    def finish(self) -> list[OSError]:
        """Wait until everything is done; return why a full disk still does not take what is missing.

        Raises:
            OSError: a file could not be written, for another reason.

        Sync: Blocks the host until the last copy is done.
        """
        if self._numbers_to_try():
            self.add(Job(do=lambda: None))
        self.drain()
        if self.failure is not None:
            raise self.failure
        return list(self._troubles.values())

    def close(self) -> None:
        """End the thread, after the jobs that it was handed."""
        self._thread.shutdown()

    def _num_with_copies(self) -> int:
        writing = (self._jobs[number] for number, _ in self._writing)
        return sum(job.saves != "best" for job in (*self._copying, *writing))

    def _take_oldest(self) -> None:
        for need in self._copying[0].needs:
            need.wait(self._host_waits, reason="checkpoint")
        self._submit_oldest()

    def _submit_oldest(self) -> None:
        number = next(self._numbers)
        self._jobs[number] = self._copying[0]
        self._writing.append((number, self._thread.submit(self._do, number)))
        # Last, so that an interrupt may lead to a job done twice, but to none left out.
        self._copying.popleft()

    def _end_oldest(self) -> None:
        number, written = self._writing[0]
        # If the wait is interrupted, nothing has changed yet.
        wait([written])
        self._writing.popleft()
        under_way = {number for number, _ in self._writing} | set(self._numbers_to_try())
        for number in [number for number in self._jobs if number not in under_way]:
            del self._jobs[number]
        written.result()
        self._report_troubles()

    def _report_troubles(self) -> None:
        troubles = list(self._troubles.values())
        if troubles:
            self._disk_troubles.begin("checkpoints", troubles[0])
        else:
            self._disk_troubles.end("checkpoints")

    # --- in the thread ---

    def _do(self, number: int) -> None:
        if self.failure is not None:
            return
        try:
            for earlier in self._numbers_to_try():
                self._try(earlier)
            self._try(number)
        except BaseException as failure:
            self.failure = failure
            raise

    def _try(self, number: int) -> None:
        # Of states and of best weights the newest are enough; the weights of an epoch come but once.
        key = self._jobs[number].saves or number
        try:
            self._jobs[number].do()
        except OSError as error:
            if not may_pass(error):
                raise
            self._troubles[key] = error
            if key == "best":
                self._best_to_try = number
            for oldest in self._weights_to_try()[: -self._num_weights]:
                del self._troubles[oldest]
        else:
            self._troubles.pop(key, None)
            if key == "best":
                self._best_to_try = None

    def _numbers_to_try(self) -> list[int]:
        best = self._best_to_try
        return [*self._weights_to_try(), *([] if best is None else [best])]

    def _weights_to_try(self) -> list[int]:
        return [key for key in list(self._troubles) if isinstance(key, int)]
