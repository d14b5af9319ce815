"""Move the batches of one pass over a loader to the device.

Everything in a batch arrives as `to(device, non_blocking=True)` would have made it:

    small tensors, and all that is    by just that call, on the stream that reads them
    no plain dense tensor
    larger ones                       through page-locked memory, on the stream that reads them,
                                      so that the host does not wait for the work queued there
    large ones                        through page-locked memory, on a transfer stream, beside that
                                      work; see `gapless.pipeline.transfer`
"""

from __future__ import annotations

import warnings
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Self

import torch

from gapless.errors import BatchError, noted_on
from gapless.pipeline.host_memory import Helpers, is_plain, page_locked_copy
from gapless.pipeline.in_flight import (
    DEFAULT_MAX_IN_FLIGHT,
    BatchesInFlight,
    LoaderMemory,
    StagedBatch,
    may_be_pinned,
)
from gapless.pipeline.streams import EventPool
from gapless.pipeline.transfer import Loan, Loans
from gapless.pipeline.tree.containers import endless, tensors_inside
from gapless.pipeline.tree.move import BatchWalk, takes_non_blocking


if TYPE_CHECKING:
    from types import TracebackType

    from gapless.device.base import Device, Event
    from gapless.pipeline.host_waits import HostWaits
    from gapless.pipeline.transfer import TransferLane


class BatchMover:
    """Move batches to the device: `stage` starts, `hand_out` makes them readable.

    Args:
        device: where batches go.
        host_waits: the door for waits.
        lanes: carry large tensors, in turn.
        looks_ahead: whether a batch is staged before the batches ahead of it are used. Then
            nothing is handed out that shares memory with the loader, and a background thread
            copies large tensors into page-locked memory.
        has_fresh_memory: whether the loader makes new memory for each batch, so that nobody has to
            wait until a batch has left it.
        pin_memory: stage in page-locked memory; without it the copy of a large tensor blocks the
            host, and is counted as such.
        max_in_flight: most batches with copies in flight.
    """

    def __init__(
        self,
        device: Device,
        *,
        host_waits: HostWaits,
        lanes: list[TransferLane],
        looks_ahead: bool = False,
        has_fresh_memory: bool = False,
        pin_memory: bool = True,
        max_in_flight: int = DEFAULT_MAX_IN_FLIGHT,
    ) -> None:
        self._device = device
        self._host_waits = host_waits
        self._lanes = deque(lanes)
        self._looks_ahead = looks_ahead
        self._leaves_late = device.is_accelerator and not has_fresh_memory
        self._pin_memory = pin_memory
        self._copies_in_thread = looks_ahead and pin_memory and device.sees_all_threads
        self._walk = BatchWalk(self._move_tensor, self._move_object, self._leave)
        self._batch: Any = None
        self._left: set[type] = set()
        self._takes_non_blocking: dict[type, bool] = {}
        self._max_direct_bytes = -1 if looks_ahead else device.max_direct_copy_bytes
        is_queued = pin_memory and not looks_ahead
        self._max_queued_bytes = device.max_queued_copy_bytes if is_queued else -1
        # For page-locked memory of the loader. A copy on the step's stream reads it only after the steps
        # queued before. With a loader that refills its memory (a ring of pinned buffers) the host would
        # wait in `leave_loader_memory` for all of those steps, at every batch. With -1 these copies go
        # to the transfer stream, which reads at once.
        self._max_late_bytes = -1 if self._leaves_late else self._max_queued_bytes
        self._events = EventPool(device)
        self._loans = Loans(device)
        self._in_flight = BatchesInFlight(
            device, host_waits=host_waits, events=self._events, most=max_in_flight
        )
        self._thread: ThreadPoolExecutor | None = None
        self._helpers = Helpers()
        self._last: StagedBatch | None = None
        self._loader_memory = LoaderMemory(device, host_waits=host_waits)

    # --- a batch, from the loader to the step ---

    def leave_loader_memory(self) -> None:
        """Return when the batch that was staged last has left the loader's memory.

        The loader may change its memory as soon as it is asked for the next batch.

        Sync: Blocks the host only for copies from page-locked memory that are still in flight
            ("loader_memory"), and for the background thread ("staging").
        """
        last, self._last = self._last, None
        if last is not None:
            if last.enqueued is not None:
                self._wait_for_thread(last.enqueued)
            if last.reads_loader_memory:
                self._wait_for_copies(last)
        if self._loader_memory.tensors:
            self._loader_memory.leave()

    def stage(self, batch: Any) -> StagedBatch:
        """Start to move a batch.

        Raises:
            BatchError: a container in it cannot be rebuilt, or leads to itself.
            Exception: what an object raises that moves itself.

        Sync: Does not block the host, unless too many copies are in flight ("staging"), or
            without page-locked memory ("pageable_copy").
        """
        device, lane = self._device, self._lanes[0]
        self._lanes.rotate(-1)
        self._last = staged = StagedBatch(device.current_stream(), lane)
        try:
            self._batch = batch
            staged.value = self._walk.move(batch)
        except RecursionError:
            raise BatchError(endless(batch)) from None
        finally:
            self._batch = None
            self._mark_ends(staged)
        # Only after this batch's memory was allocated. Otherwise it could get the memory of the last
        # batch, and its copy would wait for the step that reads that one.
        self._loans.collect()
        return staged

    def hand_out(self, staged: StagedBatch) -> Any:
        """Return a staged batch, ordered so that work on the current stream reads it complete.

        Sync: Does not block the host, unless the background thread has not queued its copies yet
            ("staging").
        """
        if staged.enqueued is not None:
            self._wait_for_thread(staged.enqueued)
        # The loop owns it now. A reference kept here would hold its memory for one more step.
        value, staged.value = staged.value, None
        staged.was_handed_out = True
        if staged.copies:
            stream = self._device.current_stream()
            self._device.wait_event(stream, staged.copied)
            for target in staged.copies:
                self._loans.add(Loan(staged.lane, target.detach(), stream))
            staged.copies.clear()
            if not (staged.is_in_flight or staged.reads_loader_memory):
                self._events.give_back(staged.copied)  # the host will not ask about it
        if staged.was_moved is not None:
            self._order_moves(staged, staged.was_moved)
        return value

    def _order_moves(self, staged: StagedBatch, was_moved: Event) -> None:
        """Order tensors that were moved ahead on one stream for the stream that reads them."""
        stream = self._device.current_stream()
        if stream != staged.stream:
            self._device.wait_event(stream, was_moved)
            for tensor in tensors_inside(staged.moved):
                if not self._device.needs_copy(tensor):  # an object may leave some on the host
                    self._device.record_stream(tensor, stream)
        staged.moved.clear()
        self._events.give_back(was_moved)

    def close(self) -> None:
        """End the pass: release all memory, and end the background thread.

        Sync: As `leave_loader_memory`.
        """
        try:
            self.leave_loader_memory()
        finally:
            self._loans.close()
            if self._thread is not None:
                self._thread.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None or isinstance(error, GeneratorExit):
            self.close()
        else:
            with noted_on(error):
                self.close()

    # --- tensors and objects ---

    def _move_tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        assert self._last is not None
        if self._is_large(tensor) and self._is_plain(tensor):
            return self._move_large(tensor, self._last)
        return self._move_directly(tensor)

    def _move_directly(self, tensor: torch.Tensor) -> torch.Tensor:
        if self._leaves_late:
            memory = self._loader_memory
            if memory.clones_pinned and self._is_small_and_pinned(tensor):
                tensor = tensor.clone()
            else:
                memory.tensors.append(tensor)
        if not self._looks_ahead:
            return tensor.to(self._device.torch_device, non_blocking=True)
        moved = tensor.to(self._device.torch_device, non_blocking=True, copy=True)
        assert self._last is not None
        self._last.moved.append(moved)
        return moved

    def _is_small_and_pinned(self, tensor: torch.Tensor) -> bool:
        is_small = tensor.layout is torch.strided and tensor.nbytes <= self._max_direct_bytes
        return is_small and may_be_pinned(tensor)

    def _is_large(self, tensor: torch.Tensor) -> bool:
        # Others than strided tensors cannot tell how many bytes they have.
        return tensor.layout is torch.strided and tensor.nbytes > self._max_direct_bytes

    def _is_plain(self, tensor: torch.Tensor) -> bool:
        return self._device.needs_copy(tensor) and is_plain(tensor)

    def _move_object(self, value: Any) -> Any:
        assert self._last is not None
        type_ = type(value)
        if type_ not in self._takes_non_blocking:
            self._takes_non_blocking[type_] = takes_non_blocking(type_)
        if self._leaves_late:
            self._loader_memory.tensors += tensors_inside(value)
        device = self._device.torch_device
        moved = (
            value.to(device, non_blocking=True)
            if self._takes_non_blocking[type_]
            else value.to(device)
        )
        found = value if moved is None else moved
        if self._looks_ahead:
            self._last.moved.append(found)
        return found

    def _leave(self, value: Any) -> None:
        """Say once of a type whose values nobody can take apart that their tensors stay where they are."""
        type_ = type(value)
        if type_ in self._left or not any(map(self._device.needs_copy, tensors_inside(value))):
            return
        self._left.add(type_)
        within = "" if value is self._batch else f" of a {type(self._batch).__qualname__}"
        warnings.warn(
            f"prefetch leaves the tensors in a {type_.__qualname__}{within} on the host; put them into a "
            "tuple, list, dict or object in the loader's collate_fn",
            stacklevel=2,
        )

    # --- large tensors ---

    def _move_large(self, tensor: torch.Tensor, staged: StagedBatch) -> torch.Tensor:
        is_pinned = tensor.is_pinned()
        if tensor.nbytes > (self._max_late_bytes if is_pinned else self._max_queued_bytes):
            target = self._copy(tensor, staged)
            staged.copies.append(target)
            return target
        if is_pinned:
            return self._move_directly(tensor)
        self._in_flight.make_room(tensor.nbytes)
        staging = self._page_locked(tensor, staged)
        return staging.to(self._device.torch_device, non_blocking=True)

    def _copy(self, source: torch.Tensor, staged: StagedBatch) -> torch.Tensor:
        """Start to copy a large tensor beside other work; return where it goes."""
        self._in_flight.make_room(source.nbytes)
        if self._copies_in_thread:
            target = staged.lane.allocate_like(source)
            staged.jobs.append((target, source))
            return target
        if not (self._pin_memory or source.is_pinned()):
            with self._host_waits.blocking("pageable_copy"):
                return staged.lane.copy(source)
        return staged.lane.copy(self._page_locked(source, staged))

    def _page_locked(self, source: torch.Tensor, staged: StagedBatch) -> torch.Tensor:
        if source.is_pinned():
            staged.reads_loader_memory = self._leaves_late
            return source
        staged.num_bytes += source.nbytes
        # Torch's allocator keeps this memory until the copies that read it are done.
        return page_locked_copy(source, self._device, self._helpers)

    def _mark_ends(self, staged: StagedBatch) -> None:
        """Mark where the moves and copies of a batch end, also if one of them failed."""
        if self._loader_memory.tensors:
            self._device.record_event(self._loader_memory.were_read, staged.stream)
        if self._looks_ahead:
            staged.was_moved = self._events.record(staged.stream)
        if staged.copies or staged.num_bytes:
            self._mark_copies(staged)

    def _mark_copies(self, staged: StagedBatch) -> None:
        staged.copied = self._events.take()
        if staged.num_bytes or staged.jobs:
            self._in_flight.add(staged)
        if not staged.jobs:
            stream = staged.lane.stream if staged.copies else staged.stream
            self._device.record_event(staged.copied, stream)
            return
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="gapless-staging")
        staged.enqueued = self._thread.submit(
            self._do_jobs, staged, is_inference=torch.is_inference_mode_enabled()
        )

    def _do_jobs(self, staged: StagedBatch, *, is_inference: bool) -> None:
        stream = staged.lane.stream
        with torch.inference_mode(is_inference), self._device.use_stream(stream):
            for target, source in staged.jobs:
                self._device.copy(target, self._page_locked(source, staged))
        staged.jobs.clear()
        self._device.record_event(staged.copied, stream)

    def _wait_for_copies(self, staged: StagedBatch) -> None:
        if not self._device.query_event(staged.copied):
            self._host_waits.wait_event(staged.copied, reason="loader_memory")
        staged.reads_loader_memory = False
        if staged.was_handed_out and not staged.is_in_flight:
            self._events.give_back(staged.copied)

    def _wait_for_thread(self, enqueued: Future[None]) -> None:
        if enqueued.done():
            enqueued.result()
        else:
            with self._host_waits.blocking("staging"):
                enqueued.result()
