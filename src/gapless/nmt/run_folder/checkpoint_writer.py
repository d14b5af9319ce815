"""Write a run's checkpoints while it trains on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from gapless.checkpoint.packed_state import pack
from gapless.checkpoint.store import write_checkpoint
from gapless.errors import noted_on
from gapless.nmt.run_folder import checkpoints
from gapless.nmt.run_folder.disk_space import DiskTroubles
from gapless.nmt.run_folder.logs import Silent
from gapless.nmt.run_folder.write_queue import Job, WriteQueue
from gapless.pipeline.host_copy import HostCopy


if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from types import TracebackType

    import torch

    from gapless.device.base import Device
    from gapless.nmt.run_folder.training_progress import LateProgress
    from gapless.pipeline.host_waits import HostWaits


class CheckpointWriter:
    """Copies weights and state to the host, and writes them in another thread.

    Copies are queued on the current stream, and `poll` hands those that are done to the thread, so
    training does not wait for them. Checkpoints are written in the order of the calls, each whole
    or not at all. One state at a time is pending.

    A disk that is full may have room again: `disk_troubles` reports it, training goes on, and what is
    still needed is tried again with the next checkpoint and at the end. After any other error no
    more are written, and the next `poll` raises.

    Args:
        run_dir: of the run.
        host_waits: the door for waits, counted as "checkpoint": at the end, and when more than four
            jobs are pending.
        files: settings and vocabularies of the run, which each checkpoint keeps.
        keep: newest epochs whose weights are kept.
        keep_states: newest states that are kept.
        state_epochs: epochs done in each state that is there, by its updates.
        disk_troubles: reports a full disk.
    """

    def __init__(
        self,
        run_dir: Path,
        *,
        host_waits: HostWaits,
        files: Mapping[str, bytes] | None = None,
        keep: int = 1,
        keep_states: int = 3,
        state_epochs: Mapping[int, int] | None = None,
        disk_troubles: DiskTroubles | None = None,
    ) -> None:
        self._run_dir = run_dir
        self._host_waits = host_waits
        self._files = dict(files or {})
        self._keep = keep
        self._store = checkpoints.state_store(run_dir, keep=keep_states)
        self._state_epochs = dict(state_epochs or {})
        self._queue = WriteQueue(
            host_waits, num_weights=keep, disk_troubles=disk_troubles or DiskTroubles()
        )

    @property
    def is_saving_state(self) -> bool:
        """Whether a state is being copied or written."""
        return self._queue.has("state")

    def reserve(self, model: torch.nn.Module) -> None:
        """Have page-locked memory made for a state, which takes long, before the device has work.

        Torch keeps it when the buffers are given back. They are those of weights, and of the two
        moments that Adam keeps of each.

        Sync: Does not block the host on the device.
        """
        device = self._host_waits.device
        size = sum(weight.numel() * weight.itemsize for weight in model.parameters())
        buffers = [device.host_buffer(part, pinned=True) for part in (size, 2 * size)]
        del buffers

    def copy_weights(self, model: torch.nn.Module) -> HostCopy:
        """Queue a copy of the weights; shared ones are copied once, under their first name.

        Sync: Does not block the host on the device.
        """
        return HostCopy(dict(model.named_parameters()), device=self._host_waits.device)

    def save_epoch(self, weights: HostCopy, epoch: int, *, step: int = 0) -> None:
        """Save the weights after an epoch, and remove those of epochs that are no longer needed.

        Args:
            weights: of the end of the epoch.
            epoch: counted from 1.
            step: updates done.

        Raises:
            OSError: an earlier file could not be written.

        Sync: Does not block the host on the device, unless more than four jobs are pending.
        """
        path = checkpoints.epoch_path(self._run_dir, epoch)

        def write() -> None:
            write_checkpoint(path, step=step, tensors=weights.value, meta={}, files=self._files)
            self._drop_old_epochs()

        self._queue.add(Job(do=write, needs=(weights,)))

    def save_state(
        self,
        state: dict[str, Any],
        *,
        weights: HostCopy,
        step: int,
        epoch: int,
        late: LateProgress | None = None,
        is_best: bool = False,
        sync_first: Callable[[], None] = lambda: None,
    ) -> None:
        """Save the state from which the run can be resumed.

        Args:
            state: everything but the weights, as it is now.
            weights: of the same moment.
            step: updates done.
            epoch: epochs done.
            late: the part of the state that is not on the host yet.
            is_best: keep it as the best one as well.
            sync_first: brings to the disk what the state relies on; called in the thread.

        Raises:
            OSError: an earlier file could not be written.

        Sync: Does not block the host on the device, unless more than four jobs are pending.
        """
        rest = HostCopy(state, device=self._host_waits.device)

        def whole() -> dict[str, Any]:
            return {"model": weights.value, **rest.value, **(late.value() if late else {})}

        def write_best() -> None:
            path = checkpoints.best_path(self._run_dir)
            tensors, meta = pack(whole())
            write_checkpoint(path, step=step, tensors=tensors, meta=meta, files=self._files)

        def write() -> None:
            if late is not None and late.is_spoiled():
                return
            if trouble := self._queue.trouble_of("best"):
                # It counts on best weights that could not be written.
                raise trouble
            sync_first()
            tensors, meta = pack(whole())
            self._store.save(step, tensors, meta, files=self._files)
            self._state_epochs[step] = epoch
            self._drop_old_epochs()

        needs = (weights, rest) if late is None else (weights, rest, late)
        if is_best:
            # Before the state that says so: a run that is killed in between makes them again.
            self._queue.add(Job(do=write_best, needs=needs, saves="best"))
        self._queue.add(Job(do=write, needs=needs, saves="state"))

    def poll(self) -> None:
        """Let the thread write what has reached the host. Call it often, such as after each batch.

        Raises:
            OSError: a file could not be written.

        Sync: Does not block the host.
        """
        self._queue.poll()

    def finish(self) -> None:
        """Wait until everything is copied and written.

        Raises:
            OSError: a file could not be written.

        Sync: Blocks the host until the last copy is done.
        """
        for trouble in self._queue.finish():
            raise self._named(trouble)

    def _named(self, trouble: OSError) -> OSError:
        """Return an error that names the newest checkpoint from which the run can be resumed."""
        paths = self._store.paths()
        last = f"the last whole checkpoint is {paths[-1]}" if paths else "none was saved"
        return OSError(trouble.errno, f"{trouble.strerror}; {last}", trouble.filename)

    def drain(self) -> None:
        """Wait until everything was tried; what a full disk did not take is tried again later.

        Raises:
            OSError: a file could not be written, for another reason.

        Sync: Blocks the host until the last copy is done.
        """
        self._queue.drain()

    def _drop_old_epochs(self) -> None:
        steps = {path.name for path in self._store.paths()}
        self._state_epochs = {
            step: epoch
            for step, epoch in self._state_epochs.items()
            if self._store.path_of(step).name in steps
        }
        checkpoints.drop_old_epochs(
            self._run_dir, keep=self._keep, state_epochs=self._state_epochs.values()
        )

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
            elif error is not self._queue.failure:
                # Write what was saved before the failure.
                with noted_on(error):
                    self.finish()
        finally:
            self._queue.close()


# --- other ranks ---


class SilentCheckpointWriter(Silent):
    """Is in place of a `CheckpointWriter`: the weights are those of rank 0.

    Args:
        device: of the weights.
    """

    is_saving_state = False

    def __init__(self, device: Device) -> None:
        self._device = device

    def copy_weights(self, model: object) -> HostCopy:
        """Return a copy of nothing.

        Sync: Does not block the host.
        """
        return HostCopy({}, device=self._device)
