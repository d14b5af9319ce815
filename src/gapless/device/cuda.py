"""NVIDIA GPUs through torch.cuda."""

from __future__ import annotations

import gc
import os
import warnings
from contextlib import contextmanager, nullcontext
from functools import cache
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch

from gapless.device.call_site import call_site
from gapless.device.cuda_waits import watch_waits


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from gapless.device.base import WaitObserver


_SYNC_WARNING = "called a synchronizing CUDA operation"


class CudaDevice:
    """One GPU: real streams, real events, page-locked staging memory."""

    is_accelerator = True

    def __init__(self, index: int) -> None:
        _keep_garbage_from_children()
        self.torch_device = torch.device("cuda", index)
        self._shared: dict[str, torch.cuda.Stream] = {}
        self._cycles_per_ms: float | None = None

    def describe(self) -> str:
        """Return the GPU's name."""
        return torch.cuda.get_device_name(self.torch_device)

    def create_stream(self) -> torch.cuda.Stream:
        """Take a stream from torch's pool of 32.

        Sync: Does not block the host.
        """
        return torch.cuda.Stream(self.torch_device)

    def shared_stream(self, name: str) -> torch.cuda.Stream:
        """Return the process-wide stream of that name, created on first use.

        Sync: Does not block the host.
        """
        # Memory is cached per stream: a stream for every epoch would strand it (pytorch caching
        # allocator), so short-lived users share these.
        if name not in self._shared:
            self._shared[name] = self.create_stream()
        return self._shared[name]

    def current_stream(self) -> torch.cuda.Stream:
        """Return torch's current stream on this GPU."""
        return torch.cuda.current_stream(self.torch_device)

    def set_current_stream(self, stream: torch.cuda.Stream) -> None:
        """Send the work that follows to `stream`."""
        torch.cuda.set_stream(stream)

    def use_stream(self, stream: torch.cuda.Stream) -> AbstractContextManager[object]:
        """Send the work of a `with` body to `stream`."""
        return torch.cuda.stream(stream)

    def create_event(self, *, timed: bool = False) -> torch.cuda.Event:
        """Create an event; without timing it is cheaper."""
        return torch.cuda.Event(enable_timing=timed)

    def record_event(self, event: torch.cuda.Event, stream: torch.cuda.Stream) -> None:
        """Mark the end of all work queued on `stream` so far.

        Sync: Does not block the host.
        """
        event.record(stream)

    def query_event(self, event: torch.cuda.Event) -> bool:
        """Return whether the work before the last record is done.

        Sync: Does not block the host.
        """
        return bool(event.query())

    def wait_event(self, stream: torch.cuda.Stream, event: torch.cuda.Event) -> None:
        """Let `stream` wait for the last record of `event`.

        Sync: Does not block the host.
        """
        stream.wait_event(event)

    def wait_stream(self, stream: torch.cuda.Stream, other: torch.cuda.Stream) -> None:
        """Let `stream` wait for all work queued on `other` so far.

        Sync: Does not block the host.
        """
        stream.wait_stream(other)

    def synchronize_event(self, event: torch.cuda.Event) -> None:
        """Wait for the last record of `event`.

        Sync: Blocks the host. Only `gapless.pipeline.host_waits` may call this.
        """
        event.synchronize()

    def synchronize_stream(self, stream: torch.cuda.Stream) -> None:
        """Wait for all work queued on `stream`.

        Sync: Blocks the host. Only `gapless.pipeline.host_waits` may call this.
        """
        stream.synchronize()

    def elapsed_ms(self, start: torch.cuda.Event, end: torch.cuda.Event) -> float:
        """Return the milliseconds between two timed events that are done.

        Sync: Does not block the host.
        """
        return float(start.elapsed_time(end))

    def host_buffer(self, num_bytes: int, *, pinned: bool) -> torch.Tensor:
        """Return a uint8 tensor in host memory, page-locked if asked."""
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=pinned)

    def device_buffer(self, num_bytes: int) -> torch.Tensor:
        """Return a uint8 tensor on the GPU, allocated under the current stream."""
        return torch.empty(num_bytes, dtype=torch.uint8, device=self.torch_device)

    def needs_copy(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor lies elsewhere than on this GPU."""
        return tensor.device != self.torch_device

    def record_stream(self, tensor: torch.Tensor, stream: torch.cuda.Stream) -> None:
        """Keep a tensor's memory from being used again before `stream` is done with it.

        Sync: Does not block the host.
        """
        tensor.record_stream(stream)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Queue a copy on the current stream.

        Sync: Does not block the host if the host side is page-locked and dense; a copy from
            pageable memory blocks until the host side has been read.
        """
        target.copy_(source, non_blocking=True)

    def capture(
        self, work: Callable[[], None], *, like: torch.cuda.CUDAGraph | None = None
    ) -> torch.cuda.CUDAGraph:
        """Return the work that a function queues as a CUDA graph, with `replay`.

        Run the function once or twice before, so that kernels are loaded and memory is made.

        Args:
            work: queues it on the current stream.
            like: a graph whose memory this one may use as well.

        Raises:
            RuntimeError: the work does something that cannot be captured, such as a host wait.

        Sync: Blocks the host until the device is idle.
        """
        graph = torch.cuda.CUDAGraph()
        pool = torch.cuda.graph_pool_handle() if like is None else like.pool()
        current = self.current_stream()
        is_default = current == torch.cuda.default_stream(self.torch_device)
        failure: RuntimeError | None = None
        # The current stream, because autograd binds gradients to the stream they first saw; but
        # nothing can be captured on the default one. "thread_local", so that a user's thread
        # that pins memory does not end the capture.
        try:
            with torch.cuda.graph(
                graph,
                pool=pool,
                stream=None if is_default else current,
                capture_error_mode="thread_local",
            ):
                try:
                    # Torch refuses a read of a value before CUDA sees it, which would spoil the
                    # capture.
                    with self.forbid_waits():
                        work()
                except RuntimeError as error:
                    failure = error
                    raise
        except RuntimeError as error:
            if error is not failure:
                self._recover(pool, current)
            # What the work did wrong, rather than that its capture cannot be ended.
            raise failure or error from None
        return graph

    def _recover(self, pool: Any, current: torch.cuda.Stream) -> None:
        """Bring torch back after a capture that CUDA has called off.

        Torch is then still on the stream of the capture, its memory still goes to the capture's
        pool, and its random generator believes that it is being captured, until a capture ends
        well (torch 2.13, `CUDAGraph::capture_end`, which stops at CUDA's error).
        """
        torch.cuda.set_stream(current)
        index = self.torch_device.index
        torch._C._cuda_endAllocateToPool(index, pool)
        torch._C._cuda_releasePool(index, pool)
        number = torch.zeros((), device=self.torch_device)
        with torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode="thread_local"):
            number.add_(1)

    def delay(self, stream: torch.cuda.Stream, ms: float) -> None:
        """Keep `stream` busy for about so many milliseconds.

        Sync: Does not block the host, but for a calibration before the first.
        """
        if self._cycles_per_ms is None:
            self._cycles_per_ms = _measure_cycles_per_ms()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(int(ms * self._cycles_per_ms))

    def watch_waits(self, observer: WaitObserver) -> AbstractContextManager[None]:
        """Call `observer(what, site)` for every host wait of the body, declared or not.

        Not seen: waits of CUDA libraries and extensions of their own, and spinning on `query`.
        """
        return watch_waits(observer)

    def watch_reads(self, observer: Callable[[str], None]) -> AbstractContextManager[None]:
        """Call `observer(site)` for the host waits of the body that torch itself can tell of.

        Those are reads of values, such as `item`, `nonzero` or a copy that blocks; explicit
        synchronisation is not among them. Nothing is told while `forbid_waits` is in force.
        """
        if torch.cuda.get_sync_debug_mode() != 0:
            return nullcontext()
        return _reads_told_to(observer)

    def now_ms(self) -> float:
        """Return the host's time in milliseconds."""
        return perf_counter() * 1000.0

    def total_memory_bytes(self) -> int:
        """Return the GPU's memory in bytes."""
        return torch.cuda.get_device_properties(self.torch_device).total_memory

    def reserved_memory_bytes(self) -> int:
        """Return the memory that torch holds on this GPU, in use or not, in bytes."""
        return torch.cuda.memory_reserved(self.torch_device)

    def peak_memory_bytes(self) -> int:
        """Return the most memory that tensors held since `reset_peak_memory`, in bytes."""
        return torch.cuda.max_memory_allocated(self.torch_device)

    def reset_peak_memory(self) -> None:
        """Start a new measurement of the peak memory."""
        torch.cuda.reset_peak_memory_stats(self.torch_device)

    def allow_waits(self) -> AbstractContextManager[None]:
        """Lift `forbid_waits` in the body, for a wait that is declared."""
        if torch.cuda.get_sync_debug_mode() == 0:
            return nullcontext()
        return _sync_mode("default")

    def forbid_waits(self) -> AbstractContextManager[None]:
        """Make every synchronisation that torch detects raise RuntimeError in the body.

        Torch does not see waits for events and devices, nor copies from pageable memory that
        block.
        """
        return _sync_mode("error")


@cache
def _keep_garbage_from_children() -> None:
    """Let forked processes, such as a loader's workers, leave alone what was there before them.

    CUDA does not work in a forked process. A garbage collection there that meets page-locked
    memory or a graph which its parent has dropped would end the process.
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=gc.freeze)


def _measure_cycles_per_ms() -> float:
    cycles = 20_000_000
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(cycles)  # the first call loads the kernel
    start.record()
    torch.cuda._sleep(cycles)
    end.record()
    end.synchronize()
    return cycles / float(start.elapsed_time(end))


@contextmanager
def _sync_mode(mode: str) -> Iterator[None]:
    previous = torch.cuda.get_sync_debug_mode()
    _set_sync_mode(mode)
    try:
        yield
    finally:
        _set_sync_mode(previous)


@contextmanager
def _reads_told_to(observer: Callable[[str], None]) -> Iterator[None]:
    """Turn torch's warnings about synchronisations into calls of an observer."""
    with warnings.catch_warnings():
        warnings.filterwarnings("always", message=_SYNC_WARNING)
        show = warnings.showwarning

        def note(message: Warning | str, *place: Any, **more: Any) -> None:
            if str(message).startswith(_SYNC_WARNING):
                observer(call_site())
            else:
                show(message, *place, **more)

        warnings.showwarning = note
        with _sync_mode("warn"):
            yield


def _set_sync_mode(mode: str | int) -> None:
    with warnings.catch_warnings():
        # Torch says that it does not see every synchronisation; `forbid_waits` says which.
        warnings.filterwarnings("ignore", message="Synchronization debug mode")
        torch.cuda.set_sync_debug_mode(mode)
