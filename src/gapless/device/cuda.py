"""NVIDIA GPUs through torch.cuda."""

from __future__ import annotations

import warnings
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

import torch


if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager


class CudaDevice:
    """One GPU: real streams, real events, page-locked staging memory."""

    is_accelerator = True

    def __init__(self, index: int) -> None:
        self.torch_device = torch.device("cuda", index)
        self._shared: dict[str, torch.cuda.Stream] = {}

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

        Sync: Blocks the host. Only `gapless.pipeline.sync` may call this.
        """
        event.synchronize()

    def synchronize_stream(self, stream: torch.cuda.Stream) -> None:
        """Wait for all work queued on `stream`.

        Sync: Blocks the host. Only `gapless.pipeline.sync` may call this.
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

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is on this GPU already."""
        return tensor.device == self.torch_device

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Queue a copy on the current stream.

        Sync: Does not block the host if the host side is page-locked and dense; a copy from
            pageable memory blocks until the host side has been read.
        """
        target.copy_(source, non_blocking=True)

    def peak_memory_bytes(self) -> int:
        """Return the most memory that tensors held since `reset_peak_memory`, in bytes."""
        return torch.cuda.max_memory_allocated(self.torch_device)

    def reset_peak_memory(self) -> None:
        """Start a new measurement of the peak memory."""
        torch.cuda.reset_peak_memory_stats(self.torch_device)

    def allow_syncs(self) -> AbstractContextManager[None]:
        """Lift `forbid_syncs` in the body, for a wait that is declared."""
        if torch.cuda.get_sync_debug_mode() == 0:
            return nullcontext()
        return _sync_mode("default")

    def forbid_syncs(self) -> AbstractContextManager[None]:
        """Make every synchronisation that torch detects raise RuntimeError in the body.

        Torch does not see waits for events and devices, nor copies from pageable memory that
        block.
        """
        return _sync_mode("error")


@contextmanager
def _sync_mode(mode: str) -> Iterator[None]:
    previous = torch.cuda.get_sync_debug_mode()
    _set_sync_mode(mode)
    try:
        yield
    finally:
        _set_sync_mode(previous)


def _set_sync_mode(mode: str | int) -> None:
    with warnings.catch_warnings():
        # Torch says that it does not see every synchronisation; `forbid_syncs` says which.
        warnings.filterwarnings("ignore", message="Synchronization debug mode")
        torch.cuda.set_sync_debug_mode(mode)
