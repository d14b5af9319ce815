"""Write a run's checkpoints while it trains on."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Self

from gapless.nmt import checkpoint
from gapless.pipeline.structure import map_tensors


if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import TracebackType

    import torch

    from gapless.pipeline.sync import HostSync


# Copies that wait to be written take memory.
_MAX_PENDING = 4


class Saver:
    """Copies weights and state to the host at once, and writes them in another thread.

    Files are written in the order of the calls, each whole or not at all. After one that cannot
    be written nothing more is, and the next call says why.

    Args:
        run_dir: of the run.
        sync: the door for the waits that the copies are, counted as "checkpoint".
    """

    def __init__(self, run_dir: Path, *, sync: HostSync) -> None:
        self._run_dir = run_dir
        self._sync = sync
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="gapless-saver")
        self._pending: deque[Future[None]] = deque()
        self._failure: BaseException | None = None

    def save_weights(self, model: torch.nn.Module, path: Path) -> None:
        """Save the weights as they are now.

        Raises:
            OSError: an earlier file could not be written.

        Sync: Blocks the host until the weights are copied.
        """
        with self._sync.blocking("checkpoint"):
            weights = checkpoint.host_weights(model)
        self._submit(lambda: checkpoint.write_weights(weights, path))

    def save_state(self, state: dict[str, Any]) -> None:
        """Save the state from which the run goes on.

        Raises:
            OSError: an earlier file could not be written.

        Sync: Blocks the host until everything is copied.
        """
        with self._sync.blocking("checkpoint"):
            copied = map_tensors(state, _on_host)
        self._submit(lambda: checkpoint.save_state(copied, checkpoint.state_path(self._run_dir)))

    def drop_old_epochs(self, *, keep: int) -> None:
        """Remove all but the newest epoch checkpoints, once those before are written."""
        self._submit(lambda: checkpoint.drop_old_epochs(self._run_dir, keep=keep))

    def finish(self) -> None:
        """Wait until everything is written.

        Raises:
            OSError: a file could not be written.
        """
        while self._pending:
            self._pending.popleft().result()
        if self._failure is not None:
            raise self._failure

    def _submit(self, job: Callable[[], None]) -> None:
        while self._pending and (self._pending[0].done() or len(self._pending) >= _MAX_PENDING):
            self._pending.popleft().result()
        self._pending.append(self._thread.submit(self._do, job))

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
        finally:
            self._thread.shutdown()


def _on_host(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to("cpu", copy=True)
