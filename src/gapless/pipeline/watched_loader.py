"""A loader whose worker processes never keep a loop waiting for ever, and never outlive it."""

from __future__ import annotations

import signal
import threading
from multiprocessing.connection import wait
from multiprocessing.util import get_temp_dir
from time import monotonic
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from gapless.device.torch_private import (
    WorkersIterator,
    close_queues,
    keep_iterator,
    kept_iterator,
    note_shut_down,
    tell_workers_to_end,
    workers_of,
)
from gapless.errors import LoaderError
from gapless.pipeline.loaders import expect_no_signal


if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from multiprocessing.process import BaseProcess

    from torch.utils.data import DataLoader


BatchT = TypeVar("BatchT")
ValueT = TypeVar("ValueT")

# For workers to end when they are asked to; those that can take a fraction of it.
_POLITE_SECONDS = 2.0
_KILLED_SECONDS = 5.0

_DEATH_SECONDS = 1.0

_WATCH_SECONDS = 1.0

_URGENT_SECONDS = 5.0

_END: Any = object()


class WatchedLoader(Generic[BatchT]):
    """A torch loader that is watched while a loop waits for its batches.

    A worker that dies, raises, or is silent for too long ends the pass with one error. `close` ends
    the workers, those that are stuck as well.

    Args:
        loader: without workers, or with persistent ones.
        timeout_seconds: longest wait for one batch. Time in which this process was suspended does
            not count.
        is_urgent: asked now and then; once it is true, no wait is longer than five seconds.

    Attributes:
        num_workers: processes of the loader.
    """

    def __init__(
        self,
        loader: DataLoader[BatchT],
        *,
        timeout_seconds: float,
        is_urgent: Callable[[], bool] = lambda: False,
    ) -> None:
        self.num_workers = loader.num_workers
        self._loader = loader
        self._timeout_seconds = timeout_seconds
        self._is_urgent = is_urgent
        self._num_reads = 0
        self._is_reading = False
        self._is_silent = False
        self._is_closed = threading.Event()
        self._watch: threading.Thread | None = None

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Generator[BatchT]:
        """Yield the batches of an epoch.

        Raises:
            LoaderError: a worker died, raised, or was silent for too long.

        Sync: Does not block the host on the device; waits for worker processes.
        """
        if not self.num_workers:
            yield from self._loader
            return
        self._start_watch()
        if kept_iterator(self._loader) is None:
            batches: Any = self._read(lambda: _start_workers(self._loader))
            keep_iterator(self._loader, batches)
        else:
            batches = self._read(lambda: iter(self._loader))
        while (batch := self._read(lambda: _next(batches))) is not _END:
            yield batch

    def close(self) -> None:
        """End the workers; the next pass would start new ones.

        Sync: Does not block the host on the device; waits for worker processes to end.
        """
        self._is_closed.set()
        if self._watch is not None:
            self._watch.join()
            self._watch = None
        iterator = kept_iterator(self._loader)
        keep_iterator(self._loader, None)
        if iterator is not None:
            _end_workers(iterator, are_well=not self._is_silent)

    # --- reading ---

    def _read(self, read: Callable[[], ValueT]) -> ValueT:
        self._num_reads += 1
        self._is_reading = True
        try:
            return read()
        except Exception as error:
            raise LoaderError(self._explained(error)) from error
        finally:
            self._is_reading = False

    def _explained(self, error: Exception) -> str:
        if self._is_silent:
            return (
                f"no batch came from the {self.num_workers} loader workers within "
                f"{self._timeout_seconds:g} s; see what they wait for, raise `loader_timeout`, or "
                "make batches without them by `workers=0`"
            )
        dead = self._dead_workers(is_broken=isinstance(error, OSError | EOFError))
        if dead:
            return f"loader worker {dead[0].pid} {_ending(dead[0].exitcode or 0)}"
        # Torch puts the worker's traceback before it.
        lines = str(error).strip().splitlines() or [type(error).__name__]
        return f"a loader worker failed: {lines[-1]}"

    def _dead_workers(self, *, is_broken: bool) -> list[BaseProcess]:
        workers = self._workers()
        if is_broken:
            # Connections break a little before the worker behind them is seen to be dead.
            gone = wait([worker.sentinel for worker in workers], timeout=_DEATH_SECONDS)
            _join([w for w in workers if w.sentinel in gone], seconds=_DEATH_SECONDS)
        return [worker for worker in workers if not worker.is_alive()]

    def _workers(self) -> list[BaseProcess]:
        return workers_of(kept_iterator(self._loader))

    # --- watching ---

    def _start_watch(self) -> None:
        if self._watch is None:
            # The workers keep sockets in the folder of this process, which removes it: one that is
            # killed could not remove its own.
            get_temp_dir()
            self._is_closed = threading.Event()
            self._is_silent = False
            self._watch = threading.Thread(
                target=self._watch_reads, name="gapless-loader-watch", daemon=True
            )
            self._watch.start()

    def _watch_reads(self) -> None:
        """Kill the workers when one read takes too long, which ends the read wherever it waits."""
        period = min(_WATCH_SECONDS, self._timeout_seconds / 10)
        number, waited = 0, 0.0
        while not self._is_closed.wait(period):
            if self._is_reading and self._num_reads == number:
                waited += period
            else:
                number, waited = self._num_reads, 0.0
            limit = self._timeout_seconds
            if waited >= (min(limit, _URGENT_SECONDS) if self._is_urgent() else limit):
                self._is_silent = True
                for worker in self._workers():
                    worker.kill()
                return


def _start_workers(loader: DataLoader[Any]) -> Any:
    """Return a loader's iterator; torch's own `iter` leaves workers behind if one fails to start."""
    if WorkersIterator is None:
        return iter(loader)
    iterator: Any = WorkersIterator.__new__(WorkersIterator)
    try:
        iterator.__init__(loader)
    except BaseException:
        note_shut_down(iterator)
        for worker in workers_of(iterator):
            worker.kill()
        raise
    expect_no_signal(iterator)
    return iterator


def _next(batches: Any) -> Any:
    try:
        return next(batches)
    except StopIteration as end:
        if end.args:  # raised by a worker, and passed on with its traceback
            raise RuntimeError(*end.args) from end
        return _END


def _end_workers(iterator: Any, *, are_well: bool) -> None:
    """End worker processes: ask them to end, then kill those that are left.

    Torch's own shutdown waits five seconds for each, and for ever for a lock that a killed worker held.
    There is no public function for it.
    """
    workers = workers_of(iterator)
    note_shut_down(iterator)
    expect_no_signal(iterator)
    if are_well and all(worker.is_alive() for worker in workers):
        tell_workers_to_end(iterator)
        _join(workers, seconds=_POLITE_SECONDS)
    for worker in workers:
        worker.kill()
    _join(workers, seconds=_KILLED_SECONDS)
    close_queues(iterator)


def _join(workers: list[BaseProcess], *, seconds: float) -> None:
    deadline = monotonic() + seconds
    for worker in workers:
        worker.join(max(0.0, deadline - monotonic()))


def _ending(exit_code: int) -> str:
    """Return how a worker ended that should not have."""
    if exit_code >= 0:
        return f"ended with exit code {exit_code}; make batches without workers by `workers=0`"
    name = signal.Signals(-exit_code).name
    hints = {
        "SIGBUS": "; was shared memory full? enlarge /dev/shm, or set `workers=0`",
        "SIGKILL": "; was memory short? lower `workers`",
    }
    return f"was killed by {name}{hints.get(name, '')}"
