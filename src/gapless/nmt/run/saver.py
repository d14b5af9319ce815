"""Write a run's checkpoints while it trains on."""

from __future__ import annotations

import itertools
import math
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any, Self

from gapless.errors import noted_on
from gapless.nmt.run import checkpoints
from gapless.pipeline.host_copy import HostCopy


if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import TracebackType

    import torch

    from gapless.pipeline.host_waits import HostWaits


# Seconds between two states. A run that is killed loses its work since the last one. Where an
# epoch takes a fraction of a second, a state for each would keep disk and thread busy for nothing.
_STATE_SECONDS = 5.0

# The jobs of two epochs. Each epoch has up to five: its weights, the best weights, a state, and
# removing old files twice. Copies that wait to be written take memory.
_MAX_JOBS = 10


@dataclass(frozen=True, kw_only=True)
class _Job:
    """Work for the thread, to be done when these copies have reached the host."""

    do: Callable[[], None]
    needs: tuple[HostCopy, ...] = ()

    def is_ready(self) -> bool:
        return all(copy.is_done() for copy in self.needs)


class Saver:
    """Copies weights and state to the host, and writes them in another thread.

    Copies are queued on the current stream, and `poll` hands those that are done to the thread, so
    training does not wait for them. Files are written in the order of the calls, each whole or not
    at all. After a file that cannot be written no more are written, and the next `poll` raises.

    Args:
        run_dir: of the run.
        host_waits: the door for waits, counted as "checkpoint": at the end, and when more than ten
            jobs are under way.
        keep: newest epochs whose weights are kept.
        state_epoch: epochs done in the state that the run resumes from, 0 for a new run.
    """

    def __init__(
        self, run_dir: Path, *, host_waits: HostWaits, keep: int = 1, state_epoch: int = 0
    ) -> None:
        self._run_dir = run_dir
        self._host_waits = host_waits
        self._keep = keep
        self._state_epoch = state_epoch
        self._state_at = -math.inf
        self._best: HostCopy | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="gapless-saver")
        self._copying: deque[_Job] = deque()
        # The thread gets the number of a job, so that it never holds the last reference to a copy:
        # page-locked memory must not be freed while the training thread captures a graph.
        self._jobs: dict[int, _Job] = {}
        self._writing: deque[tuple[int, Future[None]]] = deque()
        self._numbers = itertools.count()
        self._failure: BaseException | None = None

    def copy_weights(self, model: torch.nn.Module) -> HostCopy:
        """Queue a copy of the weights; shared ones are copied once, under their first name.

        Sync: Does not block the host on the device.
        """
        return HostCopy(dict(model.named_parameters()), device=self._host_waits.device)

    def save_epoch(self, weights: HostCopy, epoch: int) -> None:
        """Save the weights after an epoch, and remove those of epochs that are no longer needed.

        Raises:
            OSError: an earlier file could not be written.

        Sync: Does not block the host on the device, unless more than ten jobs are under way.
        """
        self._save_weights(weights, checkpoints.epoch_path(self._run_dir, epoch))
        self._drop_old_epochs()

    def save_best(self, weights: HostCopy) -> None:
        """Save weights as the best so far, when the next state is saved, which knows of them.

        Sync: Does not block the host.
        """
        self._best = weights

    def state_is_due(self) -> bool:
        """Whether the last state is older than five seconds, or there is none."""
        return perf_counter() - self._state_at > _STATE_SECONDS

    def save_state(self, state: dict[str, Any], *, weights: HostCopy, epoch: int) -> None:
        """Save the state from which the run can be resumed.

        Args:
            state: everything but the weights, as it is now.
            weights: of the same moment.
            epoch: epochs done.

        Raises:
            OSError: an earlier file could not be written.

        Sync: Does not block the host on the device, unless more than ten jobs are under way.
        """
        if self._best is not None:
            self._save_weights(self._best, checkpoints.best_path(self._run_dir))
            self._best = None
        rest = HostCopy(state, device=self._host_waits.device)
        path = checkpoints.state_path(self._run_dir)

        def write() -> None:
            checkpoints.save_state({"model": weights.value, **rest.value}, path)

        self._add(_Job(do=write, needs=(weights, rest)))
        self._state_epoch, self._state_at = epoch, perf_counter()
        self._drop_old_epochs()

    def poll(self) -> None:
        """Let the thread write what has reached the host. Call it often, such as after each batch.

        Raises:
            OSError: a file could not be written.

        Sync: Does not block the host.
        """
        while self._writing and self._writing[0][1].done():
            self._end_oldest()
        while self._copying and self._copying[0].is_ready():
            self._submit_oldest()

    def finish(self) -> None:
        """Wait until everything is copied and written.

        Raises:
            OSError: a file could not be written.

        Sync: Blocks the host until the last copy is done.
        """
        while self._copying:
            self._take_oldest()
        while self._writing:
            self._end_oldest()
        if self._failure is not None:
            raise self._failure

    def _save_weights(self, weights: HostCopy, path: Path) -> None:
        self._add(
            _Job(do=lambda: checkpoints.write_weights(weights.value, path), needs=(weights,))
        )

    def _drop_old_epochs(self) -> None:
        # By the time this job runs, the state of that epoch has been written.
        epoch = self._state_epoch
        self._add(
            _Job(
                do=lambda: checkpoints.drop_old_epochs(
                    self._run_dir, keep=self._keep, state_epoch=epoch
                )
            )
        )

    def _add(self, job: _Job) -> None:
        # Submitted by `poll` and not here: between two epochs the device has nothing to do, and
        # the thread would take time from the training thread.
        self._copying.append(job)
        while len(self._copying) + len(self._writing) > _MAX_JOBS:
            if self._writing:
                self._end_oldest()
            else:
                self._take_oldest()

    def _take_oldest(self) -> None:
        for copy in self._copying[0].needs:
            copy.wait(self._host_waits, reason="checkpoint")
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
        del self._jobs[number]
        written.result()

    def _do(self, number: int) -> None:
        if self._failure is not None:
            return
        try:
            self._jobs[number].do()
        except BaseException as failure:
            self._failure = failure
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self.finish()
            elif error is not self._failure:
                # Write what was saved before the failure.
                with noted_on(error):
                    self.finish()
        finally:
            self._thread.shutdown()
