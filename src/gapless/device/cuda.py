"""NVIDIA GPUs through torch.cuda."""

from __future__ import annotations

import gc
import os
from functools import cache
from time import perf_counter
from typing import TYPE_CHECKING

import torch

from gapless.device import cuda_waits
from gapless.device.capture_edges import capture_edges
from gapless.device.cuda_graph import CudaCapture, CudaGraph, forget_errors
from gapless.device.instruments.kernel_trace import trace_kernels
from gapless.device.instruments.nvml import Nvml
from gapless.device.torch_private import current_stream_key, empty_host_cache, sleep_on_device
from gapless.device.waiting_operations import MAX_INLINE_COPY_BYTES


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from gapless.device.base import Cut, WaitObserver
    from gapless.device.instruments.kernel_trace import KernelTrace


class _OnStream:
    """Send the work of a `with` body to a stream of the current GPU.

    As `torch.cuda.stream`, which takes 10 us because it looks after other GPUs as well.
    """

    __slots__ = ("_device", "_outer", "_stream")

    def __init__(self, device: CudaDevice, stream: torch.cuda.Stream) -> None:
        self._device = device
        self._stream = stream

    def __enter__(self) -> None:
        self._outer = self._device.current_stream()
        torch.cuda.set_stream(self._stream)

    def __exit__(self, *error: object) -> None:
        torch.cuda.set_stream(self._outer)


class CudaDevice:
    """One GPU: real streams, real events, page-locked staging memory."""

    is_accelerator = True
    max_direct_copy_bytes = MAX_INLINE_COPY_BYTES
    # A copy takes an H200 20 us a megabyte; to copy it beside other work costs the host 40.
    max_queued_copy_bytes = 2 << 20
    sees_all_threads = True

    def __init__(self, index: int) -> None:
        _keep_garbage_from_children()
        self.torch_device = torch.device("cuda", index)
        self._shared: dict[str, torch.cuda.Stream] = {}
        self._streams: dict[tuple[int, int, int], torch.cuda.Stream] = {}
        self._cycles_per_ms: float | None = None

    def describe(self) -> str:
        """Return the GPU's name."""
        return torch.cuda.get_device_name(self.torch_device)

    def uuid(self) -> str:
        """Return the GPU's own number, which no other GPU of any host has."""
        return str(torch.cuda.get_device_properties(self.torch_device).uuid)

    def make_current(self) -> None:
        """Let this thread's work, and memory that names no GPU, be of this one.

        Sync: Does not block the host.
        """
        torch.cuda.set_device(self.torch_device)

    # --- streams, events and the order between them ---

    def create_stream(self) -> torch.cuda.Stream:
        """Take a stream from torch's pool of 32.

        Sync: Does not block the host.
        """
        return torch.cuda.Stream(self.torch_device)

    def shared_stream(self, name: str) -> torch.cuda.Stream:
        """Return the process-wide stream of that name, created on first use.

        Sync: Does not block the host.
        """
        # Torch's allocator caches memory by stream: a new stream for every epoch would strand
        # it. So short-lived users share these streams.
        if name not in self._shared:
            # Torch hands out its 32 streams in turn, again and again. Those of a priority of their
            # own are nobody else's: what others queue must not become part of a capture.
            self._shared[name] = torch.cuda.Stream(self.torch_device, priority=-1)
        return self._shared[name]

    def current_stream(self) -> torch.cuda.Stream:
        """Return torch's current stream on this GPU."""
        # As `torch.cuda.current_stream`, which takes 4 us because it makes an object each time.
        if not self._streams:
            torch.cuda.init()
        found = current_stream_key(self.torch_device.index)
        if found not in self._streams:
            self._streams[found] = torch.cuda.current_stream(self.torch_device)
        return self._streams[found]

    def set_current_stream(self, stream: torch.cuda.Stream) -> None:
        """Send the work that follows to `stream`."""
        torch.cuda.set_stream(stream)

    def use_stream(self, stream: torch.cuda.Stream) -> AbstractContextManager[object]:
        """Send the work of a `with` body to `stream`."""
        if torch.cuda.current_device() != self.torch_device.index:
            return torch.cuda.stream(stream)
        return _OnStream(self, stream)

    def create_event(self, *, timed: bool = False) -> torch.cuda.Event:
        """Create an event; untimed ones are cheaper."""
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

    # --- memory and copies ---

    def host_buffer(self, num_bytes: int, *, pinned: bool) -> torch.Tensor:
        """Return a uint8 tensor in host memory, page-locked if asked."""
        return torch.empty(num_bytes, dtype=torch.uint8, device="cpu", pin_memory=pinned)

    def device_buffer(self, num_bytes: int) -> torch.Tensor:
        """Return a uint8 tensor on the GPU, allocated under the current stream."""
        return torch.empty(num_bytes, dtype=torch.uint8, device=self.torch_device)

    def pinned_like(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return an empty page-locked tensor with the shape, strides and dtype of a dense one."""
        return torch.empty_strided(
            tensor.size(), tensor.stride(), dtype=tensor.dtype, device="cpu", pin_memory=True
        )

    def device_like(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return an empty tensor on the GPU with the shape, strides and dtype of a dense one.

        It is allocated under the current stream.
        """
        return torch.empty_strided(
            tensor.size(), tensor.stride(), dtype=tensor.dtype, device=self.torch_device
        )

    def needs_copy(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor is not on this GPU."""
        return tensor.device != self.torch_device

    def record_stream(self, tensor: torch.Tensor, stream: torch.cuda.Stream) -> None:
        """Keep a tensor's memory from being reused before `stream` is done with it.

        Sync: Does not block the host.
        """
        tensor.record_stream(stream)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Queue a copy on the current stream.

        Sync: Does not block the host if the host side is page-locked and dense; a copy from
            pageable memory blocks until the host side has been read.
        """
        target.copy_(source, non_blocking=True)

    # --- captures ---

    def capture(
        self,
        work: Callable[[Cut], object],
        *,
        like: CudaGraph | None = None,
        generators: Sequence[torch.Generator] = (),
        keeps_casts: bool = False,
    ) -> CudaGraph:
        """Capture the work that a function queues, without running it.

        A failure leaves the stream, the random generators and the memory pool as they were. Run
        the function once or twice before, so that its kernels are loaded and its memory exists.

        Args:
            work: queues the work on the current stream; takes a function that cuts (see `Device`).
            like: a graph whose memory pool the new graph shares.
            generators: of random numbers that the work draws from, beside the GPU's own.
            keeps_casts: leave autocast's casts of weights alone.

        Raises:
            RuntimeError: the work does something that cannot be captured, such as a host wait.

        Sync: Blocks the host until the device is idle.
        """
        if torch.cuda.is_current_stream_capturing():
            raise RuntimeError("cannot capture inside a capture")
        # On the current stream, because autograd binds gradients to the stream of their first
        # use; but CUDA cannot capture the default stream.
        stream = self.current_stream()
        if stream == torch.cuda.default_stream(self.torch_device):
            stream = self.shared_stream("gapless.capture")
        capture = CudaCapture(
            self.torch_device,
            stream=stream,
            pool=None if like is None else like.pool,
            generators=generators,
        )
        _free_idle_memory(self.torch_device)
        try:
            with self.use_stream(stream), capture_edges(keeps_casts=keeps_casts):
                capture.begin()
                try:
                    # Torch refuses a read of a value before CUDA sees it; in CUDA it would spoil
                    # the capture. (It refuses waits of a user's other threads as well.)
                    with self.forbid_waits():
                        work(capture.cut)
                except BaseException:
                    # The error of the work, rather than the later one that the capture cannot end.
                    capture.abandon()
                    raise
                return capture.finish()
        except BaseException:
            forget_errors(self.torch_device)
            raise

    # --- waits ---

    def delay(self, stream: torch.cuda.Stream, ms: float) -> None:
        """Keep `stream` busy for about `ms` milliseconds.

        Sync: Does not block the host, except for a calibration before the first delay.
        """
        if self._cycles_per_ms is None:
            self._cycles_per_ms = _measure_cycles_per_ms()
        with torch.cuda.stream(stream):
            sleep_on_device(int(ms * self._cycles_per_ms))

    def allow_waits(self) -> AbstractContextManager[None]:
        """Lift `forbid_waits` in the body, for a declared wait."""
        return cuda_waits.allow_waits()

    def forbid_waits(self) -> AbstractContextManager[None]:
        """Make every host wait of the body that torch detects raise RuntimeError at once.

        Torch does not detect waits for events and devices, nor copies that block because their
        memory is pageable.
        """
        return cuda_waits.forbid_waits()

    # --- random numbers ---

    def random_state(self) -> torch.Tensor:
        """Return the state of this GPU's random generator, as a tensor on the host."""
        return torch.cuda.get_rng_state(self.torch_device)

    def set_random_state(self, state: torch.Tensor) -> None:
        """Restore what `random_state` returned.

        Only that: torch's own setter also makes the next recurrent layer with dropout read a
        number on the host, draw from the generator, and free the state of cuDNN's random numbers,
        which graphs write to. So the state is set through another generator that shares it.
        """
        torch.cuda.init()
        own = torch.cuda.default_generators[self.torch_device.index]
        own.graphsafe_get_state().set_state(state)

    # --- what can be measured ---

    def now_ms(self) -> float:
        """Return the host's time in milliseconds."""
        return perf_counter() * 1000.0

    def total_memory_bytes(self) -> int:
        """Return the GPU's memory in bytes."""
        return torch.cuda.get_device_properties(self.torch_device).total_memory

    def free_memory_bytes(self) -> int:
        """Return the GPU memory that no process holds, in bytes.

        Sync: Does not block the host.
        """
        return int(torch.cuda.mem_get_info(self.torch_device)[0])

    def reserved_memory_bytes(self) -> int:
        """Return the memory that torch holds on this GPU, in use or cached, in bytes."""
        return torch.cuda.memory_reserved(self.torch_device)

    def peak_memory_bytes(self) -> int:
        """Return the most memory that tensors held since `reset_peak_memory`, in bytes."""
        return torch.cuda.max_memory_allocated(self.torch_device)

    def reset_peak_memory(self) -> None:
        """Start a new measurement of the peak memory."""
        torch.cuda.reset_peak_memory_stats(self.torch_device)

    def release_cached_memory(self) -> None:
        """Collect garbage and return cached memory to the GPU.

        Sync: Blocks the host until the device is idle.
        """
        gc.collect()
        torch.cuda.empty_cache()

    def watch_waits(self, observer: WaitObserver) -> AbstractContextManager[None]:
        """Call `observer(what, site)` for every host wait of the body, declared or not.

        Not seen: waits inside CUDA libraries and extensions, and loops that poll `query`.
        """
        return cuda_waits.watch_waits(observer)

    def watch_reads(self, observer: Callable[[str], None]) -> AbstractContextManager[None]:
        """Call `observer(site)` for the host waits of the body that torch itself reports.

        Torch reports reads of values, such as `item`, `nonzero` or a blocking copy; it does not
        report explicit synchronisation. Nothing is reported inside `forbid_waits`.
        """
        return cuda_waits.watch_reads(observer)

    def trace_kernels(self, work: Callable[[], object]) -> KernelTrace | None:
        """Call `work` and return which kernels ran; None if none did.

        Sync: Blocks the host until the device is idle.
        """
        return trace_kernels(self.torch_device.index, work)

    def open_utilisation_meter(self) -> Nvml:
        """Return the driver's utilisation meter; the caller closes it.

        Raises:
            DeviceError: the driver's library is missing, or does not report on this GPU.
        """
        # By UUID, because CUDA_VISIBLE_DEVICES changes the numbers of GPUs.
        return Nvml(f"GPU-{torch.cuda.get_device_properties(self.torch_device).uuid}")


@cache
def _keep_garbage_from_children() -> None:
    """Keep forked processes, such as a loader's workers, from freeing their parent's objects.

    CUDA does not work in a forked process. If a garbage collection there frees page-locked memory
    or a graph that its parent dropped, the process dies.
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=gc.freeze)


def _free_idle_memory(device: torch.device) -> None:
    """Give back cached memory as `torch.cuda.graph` does before a capture.

    What is cached may carry events that torch asks about at the next allocation, which CUDA does
    not allow in a capture.
    """
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    empty_host_cache()


def _measure_cycles_per_ms() -> float:
    cycles = 20_000_000
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    sleep_on_device(cycles)  # the first call loads the kernel
    start.record()
    sleep_on_device(cycles)
    end.record()
    end.synchronize()
    return cycles / float(start.elapsed_time(end))
