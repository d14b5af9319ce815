"""What gapless asks of a device: streams, events, buffers, copies, captured work.

`Device` is the protocol that the engine and its users write against. It has three parts: `Instruments` is
what can be measured on a device (time, memory, waits, kernels), `Streams` orders work, `Memory` holds and
copies tensors. `Device` adds what it is, captures and random numbers.

Backends: `gapless.device.cuda`, `gapless.device.cpu`, and `gapless.testing.simulated` for tests.
`gapless.find_device("auto")` returns the one to use. Stream and event handles belong to the backend
that made them; no other code looks inside.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    import torch

    from gapless.device.instruments.kernel_trace import KernelTrace


Stream: TypeAlias = Any
Event: TypeAlias = Any

# Takes the call that waits, such as "Tensor.item", and the file:line that made it.
WaitObserver: TypeAlias = "Callable[[str, str], None]"

# Ends a segment of captured work; takes what every replay calls there.
Cut: TypeAlias = "Callable[[Callable[[], object]], None]"


class Graph(Protocol):
    """Captured work, in one segment or several with calls between them."""

    def replay(self) -> None:
        """Launch the work on the current stream, on the memory it was captured with.

        Sync: Does not block the host, unless a call between two segments does.
        """

    def replay_segment(self, number: int) -> None:
        """Launch one segment on the current stream; the calls between segments are left out.

        Sync: Does not block the host.
        """


class UtilisationMeter(Protocol):
    """The driver's own figure of how busy a device is."""

    def utilisation(self) -> float:
        """Return the share of the last sample window in which a kernel ran, in percent.

        Raises:
            DeviceError: the driver does not report it.

        Sync: Does not block the host on the device.
        """

    def close(self) -> None:
        """Release the driver's library."""


class Instruments(Protocol):
    """What can be measured on a device."""

    def describe(self) -> str:
        """Return the hardware's name for reports."""

    def uuid(self) -> str | None:
        """Return a name that no other device has; None if processes share the device."""

    def now_ms(self) -> float:
        """Return the host's time in milliseconds; on a simulated device, its virtual time."""

    def total_memory_bytes(self) -> int | None:
        """Return the device's memory in bytes; None if it computes in the host's."""

    def free_memory_bytes(self) -> int | None:
        """Return the memory that no process holds, in bytes; None as `total_memory_bytes`.

        Sync: Does not block the host.
        """

    def reserved_memory_bytes(self) -> int:
        """Return the device memory that this process holds, in use or cached, in bytes."""

    def peak_memory_bytes(self) -> int:
        """Return the most memory that was in use since `reset_peak_memory`, in bytes."""

    def reset_peak_memory(self) -> None:
        """Start a new measurement of the peak memory."""

    def release_cached_memory(self) -> None:
        """Collect garbage and return cached memory to the device.

        Sync: Blocks the host until the device is idle.
        """

    def watch_waits(self, observer: WaitObserver) -> AbstractContextManager[None]:
        """Call `observer(what, site)` for every host wait of the body, declared or not."""

    def watch_reads(self, observer: Callable[[str], None]) -> AbstractContextManager[None]:
        """Call `observer(site)` for the host waits of the body that torch itself reports.

        Torch reports reads of values, such as `item`, `nonzero` or a blocking copy; it does not
        report explicit synchronisation. Unlike `watch_waits` this costs nothing afterwards.
        """

    def trace_kernels(self, work: Callable[[], object]) -> KernelTrace | None:
        """Call `work` and return which kernels ran; None, without the call, if there is no trace.

        Args:
            work: queues kernels, and waits for them.

        Sync: Blocks the host until the device is idle.
        """

    def open_utilisation_meter(self) -> UtilisationMeter:
        """Return the driver's utilisation meter; the caller closes it.

        Raises:
            DeviceError: the device has none.
        """


class Streams(Protocol):
    """Queues of work on a device, the order between them, and waits of the host for them."""

    def create_stream(self) -> Stream:
        """Create a stream.

        Sync: Does not block the host.
        """

    def shared_stream(self, name: str) -> Stream:
        """Return the process-wide stream of that name, created on first use.

        Sync: Does not block the host.
        """

    def current_stream(self) -> Stream:
        """Return the stream that receives work now."""

    def set_current_stream(self, stream: Stream) -> None:
        """Send the work that follows to `stream`."""

    def use_stream(self, stream: Stream) -> AbstractContextManager[object]:
        """Send the work of a `with` body to `stream`."""

    def create_event(self, *, timed: bool = False) -> Event:
        """Create an event; `elapsed_ms` needs `timed` ones."""

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

    def elapsed_ms(self, start: Event, end: Event) -> float:
        """Return the milliseconds between two timed events that are done.

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

    def allow_waits(self) -> AbstractContextManager[None]:
        """Lift `forbid_waits` in the body, for a declared wait."""

    def forbid_waits(self) -> AbstractContextManager[None]:
        """Make every host wait of the body that torch detects raise RuntimeError at once.

        `gapless.forbid_waits` sees other waits too, and raises at the end of its body.
        """

    def delay(self, stream: Stream, ms: float) -> None:
        """Keep `stream` busy for about `ms` milliseconds; for tests.

        Sync: Does not block the host, except for a calibration before the first delay.
        """


class Memory(Protocol):
    """Memory of a device and page-locked memory beside it, and copies between them."""

    @property
    def max_direct_copy_bytes(self) -> int:
        """Size up to which a copy from pageable memory does not wait for queued work."""

    @property
    def max_queued_copy_bytes(self) -> int:
        """Size up to which a copy from page-locked memory is queued on the stream that reads it.

        To copy so little beside the work of that stream would save the device less time than it
        costs the host.
        """

    def host_buffer(self, num_bytes: int, *, pinned: bool) -> torch.Tensor:
        """Return a uint8 tensor in host memory, page-locked if asked and if that exists here."""

    def device_buffer(self, num_bytes: int) -> torch.Tensor:
        """Return a uint8 tensor on the device, allocated under the current stream."""

    def pinned_like(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return an empty page-locked tensor with the shape, strides and dtype of a dense one."""

    def device_like(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return an empty tensor on the device with the shape, strides and dtype of a dense one.

        It is allocated under the current stream.
        """

    def needs_copy(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor must be copied before work on this device may read it."""

    def record_stream(self, tensor: torch.Tensor, stream: Stream) -> None:
        """Keep a tensor's memory from being reused before `stream` is done with it.

        Sync: Does not block the host.
        """

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Queue a copy on the current stream.

        Sync: Does not block the host if the host side is page-locked and dense; a copy from
            pageable memory blocks until the host side has been read.
        """


class Device(Instruments, Streams, Memory, Protocol):
    """A place where tensors live and where queued work runs in streams."""

    @property
    def torch_device(self) -> torch.device:
        """The device as torch names it, with its index."""

    @property
    def is_accelerator(self) -> bool:
        """Whether work runs beside the host; on a CPU it runs in the host's own order."""

    @property
    def sees_all_threads(self) -> bool:
        """Whether work of other threads is queued as that of this thread is."""

    def make_current(self) -> None:
        """Let this thread's work, and memory that names no device, be of this one.

        Sync: Does not block the host.
        """

    def capture(
        self,
        work: Callable[[Cut], object],
        *,
        like: Any = None,
        generators: Sequence[torch.Generator] = (),
        keeps_casts: bool = False,
    ) -> Graph:
        """Capture the work that a function queues, without running it.

        The function uses memory that stays in its place: static inputs and outputs. A failure
        leaves nothing behind.

        Args:
            work: queues the work on the current stream. It takes a function `cut`: `cut(call)`
                ends a segment of the work and begins the next in the same memory pool. `call` is
                not called by the capture, but between the two segments of every replay.
            like: a graph whose memory pool the new graph shares. The two must not run at the
                same time, and neither may read what the other left in the pool.
            generators: of random numbers on the device that the work draws from, beside the
                device's own.
            keeps_casts: leave autocast's casts of weights alone; none of those that the work uses
                is there.

        Raises:
            RuntimeError: the work does something that cannot be captured, such as a host wait or
                a cut inside a backward pass.

        Sync: Blocks the host on a GPU, which starts a capture with an idle device.
        """

    def random_state(self) -> torch.Tensor | None:
        """Return the state of the device's random generator; None if it uses the host's."""

    def set_random_state(self, state: torch.Tensor) -> None:
        """Restore what `random_state` returned."""
