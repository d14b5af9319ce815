"""What the pipeline asks of a device: streams, events, buffers and copies.

Backends are `gapless.device.cuda`, `gapless.device.cpu` and, for tests of anything that orders
streams, `gapless.testing.simulated`. Stream and event handles belong to
the backend that made them; nobody else looks inside.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias


if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    import torch


Stream: TypeAlias = Any
Event: TypeAlias = Any

# Takes the call that waits, such as "Tensor.item", and the file:line that made it.
WaitObserver: TypeAlias = "Callable[[str, str], None]"


class Graph(Protocol):
    """Work that was captured."""

    def replay(self) -> None:
        """Launch the work on the current stream, on the memory it was captured with.

        Sync: Does not block the host.
        """


class Device(Protocol):
    """A place where tensors live and queued work runs in streams."""

    @property
    def torch_device(self) -> torch.device:
        """The device as torch names it, with its index."""

    @property
    def is_accelerator(self) -> bool:
        """Whether work runs beside the host; on a CPU it runs in the host's own order."""

    def describe(self) -> str:
        """Return the hardware's name for reports."""

    def create_stream(self) -> Stream:
        """Create a stream.

        Sync: Does not block the host.
        """

    def shared_stream(self, name: str) -> Stream:
        """Return the process-wide stream of that name, created on first use.

        Sync: Does not block the host.
        """

    def current_stream(self) -> Stream:
        """Return the stream that queued work goes to now."""

    def set_current_stream(self, stream: Stream) -> None:
        """Send the work that follows to `stream`."""

    def use_stream(self, stream: Stream) -> AbstractContextManager[object]:
        """Send the work of a `with` body to `stream`."""

    def create_event(self, *, timed: bool = False) -> Event:
        """Create an event; `timed` ones can be given to `elapsed_ms`."""

    def record_event(self, event: Event, stream: Stream) -> None:
        """Mark the end of all work queued on `stream` so far.

        Sync: Does not block the host.
        """

    def query_event(self, event: Event) -> bool:
        """Return whether the work before the last record is done.

        Sync: Does not block the host.
        """

    def wait_event(self, stream: Stream, event: Event) -> None:
        """Let `stream` wait for the last record of `event`.

        Sync: Does not block the host.
        """

    def wait_stream(self, stream: Stream, other: Stream) -> None:
        """Let `stream` wait for all work queued on `other` so far.

        Sync: Does not block the host.
        """

    def synchronize_event(self, event: Event) -> None:
        """Wait for the last record of `event`.

        Sync: Blocks the host. Only `gapless.pipeline.host_waits` may call this.
        """

    def synchronize_stream(self, stream: Stream) -> None:
        """Wait for all work queued on `stream`.

        Sync: Blocks the host. Only `gapless.pipeline.host_waits` may call this.
        """

    def elapsed_ms(self, start: Event, end: Event) -> float:
        """Return the milliseconds between two timed events that are done.

        Sync: Does not block the host.
        """

    def host_buffer(self, num_bytes: int, *, pinned: bool) -> torch.Tensor:
        """Return a uint8 tensor in host memory, page-locked if asked and if that exists here."""

    def device_buffer(self, num_bytes: int) -> torch.Tensor:
        """Return a uint8 tensor on the device, allocated under the current stream."""

    def needs_copy(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor has to be copied before work on this device may read it."""

    def record_stream(self, tensor: torch.Tensor, stream: Stream) -> None:
        """Keep a tensor's memory from being used again before `stream` is done with it.

        Sync: Does not block the host.
        """

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Queue a copy on the current stream.

        Sync: Does not block the host if the host side is page-locked and dense; a copy from
            pageable memory blocks until the host side has been read.
        """

    def capture(self, work: Callable[[], None], *, like: Any = None) -> Graph:
        """Return the work that a function queues, without doing it, to be launched again.

        The function works on memory that stays where it is: static inputs and outputs.

        Args:
            work: queues it on the current stream.
            like: a graph whose memory this one may use as well. The two must not run at the
                same time, nor read what the other left in memory of its own.

        Raises:
            RuntimeError: the work does something that cannot be captured, such as a host wait.

        Sync: Blocks the host on a GPU, which starts a capture with an idle device.
        """

    def delay(self, stream: Stream, ms: float) -> None:
        """Keep `stream` busy for about so many milliseconds; for tests.

        Sync: Does not block the host, but for a calibration before the first.
        """

    def watch_waits(self, observer: WaitObserver) -> AbstractContextManager[None]:
        """Call `observer(what, site)` for every host wait of the body, declared or not."""

    def watch_reads(self, observer: Callable[[str], None]) -> AbstractContextManager[None]:
        """Call `observer(site)` for the host waits of the body that torch itself can tell of.

        Those are reads of values, such as `item`, `nonzero` or a copy that blocks; explicit
        synchronisation is not among them. Unlike `watch_waits` this costs nothing afterwards.
        """

    def now_ms(self) -> float:
        """Return the host's time in milliseconds; on a simulated device, its virtual time."""

    def total_memory_bytes(self) -> int | None:
        """Return the device's memory in bytes; None if it has none of its own."""

    def reserved_memory_bytes(self) -> int:
        """Return the device memory that this process holds, in use or not, in bytes."""

    def peak_memory_bytes(self) -> int:
        """Return the most memory that was in use since `reset_peak_memory`, in bytes."""

    def reset_peak_memory(self) -> None:
        """Start a new measurement of the peak memory."""

    def allow_waits(self) -> AbstractContextManager[None]:
        """Lift `forbid_waits` in the body, for a wait that is declared."""

    def forbid_waits(self) -> AbstractContextManager[None]:
        """Make every synchronisation that torch detects raise RuntimeError in the body."""
