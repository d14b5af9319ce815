"""Write a run's checkpoints while it trains on."""

from __future__ import annotations

import itertools
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self

from gapless.checkpoint.files import may_pass
from gapless.checkpoint.packed_state import pack
from gapless.errors import noted_on
from gapless.nmt.run_folder import checkpoints
from gapless.nmt.run_folder.disk_space import DiskTroubles
from gapless.pipeline.host_copy import HostCopy


if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from types import TracebackType

    import torch

    from gapless.device.base import Device
    from gapless.nmt.run_folder.training_progress import LateProgress
    from gapless.pipeline.host_waits import HostWaits


# The jobs of two epochs: each has its weights, and a state, whose copies may serve as the best weights
# too. Copies that wait to be written take memory.
_MAX_JOBS = 4


class Arrival(Protocol):
    """Something that is on its way to the host."""

    def is_done(self) -> bool:
        """Return whether it is there."""

    def wait(self, host_waits: HostWaits, *, reason: str) -> None:
        """Wait until it is there."""


@dataclass(frozen=True, kw_only=True)
class _Job:
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
        return all(need.is_done() for need in self.needs)


class CheckpointWriter:
    """Copies weights and state to the host, and writes them in another thread.

    Copies are queued on the current stream, and `poll` hands those that are done to the thread, so
    training does not wait for them. Checkpoints are written in the order of the calls, each whole
    or not at all. One state at a time is under way.

    A disk that is full may have room again: `disk_troubles` are told, training goes on, and what is
    still needed is tried again with the next checkpoint and at the end. After any other error no
    more are written, and the next `poll` raises.

    Args:
        run_dir: of the run.
        host_waits: the door for waits, counted as "checkpoint": at the end, and when more than four
            jobs are under way.
        files: settings and vocabularies of the run, which each checkpoint keeps.
        keep: newest epochs whose weights are kept.
        keep_states: newest states that are kept.
        state_epochs: epochs done in each state that is there, by its updates.
        disk_troubles: are told when a full disk takes no checkpoint.
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
        self._disk_troubles = disk_troubles or DiskTroubles()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="gapless-saver")
        self._copying: deque[_Job] = deque()
        # The thread gets the number of a job, so that it never holds the last reference to a copy:
        # page-locked memory must not be freed while the training thread captures a graph.
        self._jobs: dict[int, _Job] = {}
        self._writing: deque[tuple[int, Future[None]]] = deque()
        self._numbers = itertools.count()
        # What could not be written: weights by the number of their job, which is tried again, the
        # newest state under the name "state", and the best weights under "best".
        self._troubles: dict[int | str, OSError] = {}
        # The job of the best weights that could not be written, which is tried again too.
        self._best_to_try: int | None = None
        self._failure: BaseException | None = None

    @property
    def is_saving_state(self) -> bool:
        """Whether a state is being copied or written."""
        writing = (self._jobs[number] for number, _ in self._writing)
        return any(job.saves == "state" for job in (*self._copying, *writing))

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

        Sync: Does not block the host on the device, unless more than four jobs are under way.
        """
        path = checkpoints.epoch_path(self._run_dir, epoch)

        def write() -> None:
            checkpoints.write_weights(weights.value, path, step=step, files=self._files)
            self._drop_old_epochs()

        self._add(_Job(do=write, needs=(weights,)))

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

        Sync: Does not block the host on the device, unless more than four jobs are under way.
        """
        rest = HostCopy(state, device=self._host_waits.device)

        def whole() -> dict[str, Any]:
            return {"model": weights.value, **rest.value, **(late.value() if late else {})}

        def write_best() -> None:
            path = checkpoints.best_path(self._run_dir)
            checkpoints.write_best(path, step=step, state=whole(), files=self._files)

        def write() -> None:
            if late is not None and late.is_spoiled():
                return
            if "best" in self._troubles:
                # It counts on best weights that could not be written.
                raise self._troubles["best"]
            sync_first()
            tensors, meta = pack(whole())
            self._store.save(step, tensors, meta, files=self._files)
            self._state_epochs[step] = epoch
            self._drop_old_epochs()

        needs = (weights, rest) if late is None else (weights, rest, late)
        if is_best:
            # Before the state that says so: a run that is killed in between makes them again.
            self._add(_Job(do=write_best, needs=needs, saves="best"))
        self._add(_Job(do=write, needs=needs, saves="state"))

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
        if self._numbers_to_try():
            self._add(_Job(do=lambda: None))
        self.drain()
        if self._failure is not None:
            raise self._failure
        for trouble in self._troubles.values():
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
        while self._copying:
            self._take_oldest()
        while self._writing:
            self._end_oldest()

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

    def _add(self, job: _Job) -> None:
        # Submitted by `poll` and not here: between two epochs the device has nothing to do, and
        # the thread would take time from the training thread.
        self._copying.append(job)
        while self._num_with_copies() > _MAX_JOBS:
            if self._writing:
                self._end_oldest()
            else:
                self._take_oldest()

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
        self._tell()

    def _tell(self) -> None:
        troubles = list(self._troubles.values())
        if troubles:
            self._disk_troubles.begin("checkpoints", troubles[0])
        else:
            self._disk_troubles.end("checkpoints")

    # --- in the thread ---

    def _do(self, number: int) -> None:
        if self._failure is not None:
            return
        try:
            for earlier in self._numbers_to_try():
                self._try(earlier)
            self._try(number)
        except BaseException as failure:
            self._failure = failure
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
            for oldest in self._weights_to_try()[: -self._keep]:
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


# --- other ranks ---


class SilentCheckpointWriter:
    """Is in place of a `CheckpointWriter`: the weights are those of rank 0.

    Args:
        device: of the weights.
    """

    is_saving_state = False

    def __init__(self, device: Device) -> None:
        self._device = device

    def reserve(self, model: object) -> None:
        """Do nothing."""

    def copy_weights(self, model: object) -> HostCopy:
        """Return a copy of nothing.

        Sync: Does not block the host.
        """
        return HostCopy({}, device=self._device)

    def save_epoch(self, weights: HostCopy, epoch: int, *, step: int = 0) -> None:
        """Write nothing."""

    def save_state(self, state: dict[str, Any], **about: Any) -> None:
        """Write nothing."""

    def poll(self) -> None:
        """Do nothing."""

    def drain(self) -> None:
        """Do nothing."""

    def finish(self) -> None:
        """Do nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Do nothing."""
