"""Write a run's checkpoints while it trains on."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from gapless.nmt import checkpoint
from gapless.pipeline.failures import noted_on
from gapless.pipeline.hostcopy import HostCopy


if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import TracebackType

    import torch

    from gapless.pipeline.sync import HostSync


# Of two epochs: each has weights, the best ones, a state, and old files to remove. Copies that
# wait to be written take memory.
_MAX_JOBS = 8


@dataclass(frozen=True, kw_only=True)
class _Job:
    """What the thread is to do, once these copies have reached the host."""

    do: Callable[[], None]
    needs: tuple[HostCopy, ...] = ()

    def is_ready(self) -> bool:
        return all(copy.is_done() for copy in self.needs)


class Saver:
    """Copies weights and state to the host, and writes them in another thread.

    The copies are queued on the current stream and taken up by `poll`, so that training need not
    wait for them. Files are written in the order of the calls, each whole or not at all. After
    one that cannot be written nothing more is, and a later call says why.

    Args:
        run_dir: of the run.
        sync: the door for the waits at the end, counted as "checkpoint".
    """

    def __init__(self, run_dir: Path, *, sync: HostSync) -> None:
        self._run_dir = run_dir
        self._sync = sync
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="gapless-saver")
        self._copying: deque[_Job] = deque()
        self._writing: deque[Future[None]] = deque()
        self._failure: BaseException | None = None

    def copy_weights(self, model: torch.nn.Module) -> HostCopy:
        """Queue a copy of the weights, shared ones once, under their first name.

        Sync: Does not block the host on the device.
        """
        return HostCopy(dict(model.named_parameters()), device=self._sync.device)

    def save_weights(self, weights: HostCopy, path: Path) -> None:
        """Save weights as they were when they were copied.

        Raises:
            OSError: an earlier file could not be written.

        Sync: Does not block the host on the device, unless eight files wait to be written.
        """
        self._add(_Job(do=lambda: checkpoint.write_weights(weights.value, path), needs=(weights,)))

    def save_state(self, state: dict[str, Any], *, weights: HostCopy) -> None:
        """Save the state from which the run goes on.

        Args:
            state: everything but the weights, as it is now.
            weights: of the same moment.

        Raises:
            OSError: an earlier file could not be written.

        Sync: Does not block the host on the device, unless eight files wait to be written.
        """
        rest = HostCopy(state, device=self._sync.device)
        path = checkpoint.state_path(self._run_dir)

        def write() -> None:
            checkpoint.save_state({"model": weights.value, **rest.value}, path)

        self._add(_Job(do=write, needs=(weights, rest)))

    def drop_old_epochs(self, *, keep: int) -> None:
        """Remove all but the newest epoch checkpoints, once those before are written."""
        self._add(_Job(do=lambda: checkpoint.drop_old_epochs(self._run_dir, keep=keep)))

    def poll(self) -> None:
        """Let the thread write what has reached the host; to be called now and then.

        Raises:
            OSError: an earlier file could not be written.

        Sync: Does not block the host.
        """
        while self._copying and self._copying[0].is_ready():
            self._submit(self._copying.popleft())

    def finish(self) -> None:
        """Wait until everything is copied and written.

        Raises:
            OSError: a file could not be written.

        Sync: Blocks the host until the last copy is done.
        """
        self._take_all()
        while self._writing:
            self._writing.popleft().result()
        if self._failure is not None:
            raise self._failure

    def _add(self, job: _Job) -> None:
        # Taken up by `poll` rather than here: the thread would be in the way of what comes
        # between two epochs, while the device has nothing to do.
        self._copying.append(job)
        while len(self._copying) + len(self._writing) > _MAX_JOBS:
            if self._writing:
                self._writing.popleft().result()
            else:
                self._take_oldest()

    def _take_oldest(self) -> None:
        for copy in self._copying[0].needs:
            copy.wait(self._sync, reason="checkpoint")
        self._submit(self._copying.popleft())

    def _take_all(self) -> None:
        while self._copying:
            self._take_oldest()

    def _submit(self, job: _Job) -> None:
        while self._writing and self._writing[0].done():
            self._writing.popleft().result()
        self._writing.append(self._thread.submit(self._do, job.do))

    def _do(self, job: Callable[[], None]) -> None:
        if self._failure is not None:
            return
        try:
            job()
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
            else:
                # What was saved before it is kept.
                with noted_on(error):
                    self._take_all()
        finally:
            self._thread.shutdown()
