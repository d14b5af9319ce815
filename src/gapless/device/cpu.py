"""The CPU as a device: every stream runs at once, in the host's own order.

The same engine code runs here as on an accelerator. Copies are done when they return and events
when they are recorded, so waits cost nothing. They are requested and counted all the same.
"""

from __future__ import annotations

import gc
import platform
import resource
import sys
from contextlib import contextmanager, nullcontext
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Never

import torch

from gapless.errors import DeviceError


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from gapless.device.base import Cut, Graph, WaitObserver


_STATUS = Path("/proc/self/status")


def call(function: Callable[[], object]) -> None:
    """Cut where nothing is captured: call the function at once."""
    function()


class CpuStream:
    """A queue that is always empty, since work runs when it is queued."""


class CpuEvent:
    """A point in the host's own time; done as soon as it is recorded."""

    def __init__(self) -> None:
        self.recorded_at: float | None = None


class CpuGraph:
    """A function that is called again."""

    def __init__(self, work: Callable[[Cut], object]) -> None:
        self._work = work

    def replay(self) -> None:
        """Call the function; what it cuts out runs in its place."""
        self._work(call)

    def replay_segment(self, number: int) -> None:
        """Raise: there are no segments of a function.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError(f"a CPU has no segment {number} of a graph")


class CpuDevice:
    """Run everything in order on the host."""

    is_accelerator = False
    # There is no other memory to copy to.
    max_direct_copy_bytes = sys.maxsize
    max_queued_copy_bytes = sys.maxsize
    sees_all_threads = True

    def __init__(self) -> None:
        self.torch_device = torch.device("cpu")
        self._current = CpuStream()
        self._shared: dict[str, CpuStream] = {}

    def describe(self) -> str:
        """Return the processor's name and the number of threads torch uses."""
        name = platform.processor() or platform.machine()
        threads = torch.get_num_threads()
        return f"CPU {name}, {threads} thread{'' if threads == 1 else 's'}"

    def uuid(self) -> None:
        """Return None: processes share the CPU."""

    def make_current(self) -> None:
        """Do nothing: there is no other."""

    # --- streams, events and the order between them ---

    def create_stream(self) -> CpuStream:
        """Create a stream."""
        return CpuStream()

    def shared_stream(self, name: str) -> CpuStream:
        """Return the process-wide stream of that name."""
        return self._shared.setdefault(name, CpuStream())

    def current_stream(self) -> CpuStream:
        """Return the stream that work is attributed to now."""
        return self._current

    def set_current_stream(self, stream: CpuStream) -> None:
        """Attribute the work that follows to `stream`."""
        self._current = stream

    @contextmanager
    def use_stream(self, stream: CpuStream) -> Iterator[None]:
        """Attribute the work of a `with` body to `stream`."""
        previous, self._current = self._current, stream
        try:
            yield
        finally:
            self._current = previous

    def create_event(self, *, timed: bool = False) -> CpuEvent:
        """Create an event; on a CPU every event can be timed."""
        del timed
        return CpuEvent()

    def record_event(self, event: CpuEvent, stream: CpuStream) -> None:
        """Mark this moment."""
        del stream
        event.recorded_at = perf_counter()

    def query_event(self, event: CpuEvent) -> bool:
        """Return True: work before a record is done, and so is an event never recorded."""
        del event
        return True

    def wait_event(self, stream: CpuStream, event: CpuEvent) -> None:
        """Do nothing: whatever was recorded is done."""

    def wait_stream(self, stream: CpuStream, other: CpuStream) -> None:
        """Do nothing: whatever was queued is done."""

    def synchronize_event(self, event: CpuEvent) -> None:
        """Return at once: whatever was recorded is done."""

    def synchronize_stream(self, stream: CpuStream) -> None:
        """Return at once: whatever was queued is done."""

    def elapsed_ms(self, start: CpuEvent, end: CpuEvent) -> float:
        """Return the milliseconds between two recorded events."""
        if start.recorded_at is None or end.recorded_at is None:
            raise ValueError("elapsed_ms needs two recorded events")
        return (end.recorded_at - start.recorded_at) * 1000.0

    # --- memory and copies ---

    def host_buffer(self, num_bytes: int, *, pinned: bool) -> torch.Tensor:
        """Return a uint8 tensor; page-locking is of no use without a second memory."""
        del pinned
        return torch.empty(num_bytes, dtype=torch.uint8, device=self.torch_device)

    def device_buffer(self, num_bytes: int) -> torch.Tensor:
        """Return a uint8 tensor."""
        return torch.empty(num_bytes, dtype=torch.uint8, device=self.torch_device)

    def pinned_like(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return an empty tensor of the same form; page-locking is of no use here."""
        return self.device_like(tensor)

    def device_like(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return an empty tensor of the same form."""
        return torch.empty_strided(
            tensor.size(), tensor.stride(), dtype=tensor.dtype, device=self.torch_device
        )

    def needs_copy(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor is not in the CPU's memory."""
        return not tensor.is_cpu

    def record_stream(self, tensor: torch.Tensor, stream: CpuStream) -> None:
        """Do nothing: queued work has run already."""

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy at once."""
        target.copy_(source)

    # --- captures ---

    def capture(
        self,
        work: Callable[[Cut], object],
        *,
        like: Graph | None = None,
        generators: Sequence[torch.Generator] = (),
        keeps_casts: bool = False,
    ) -> CpuGraph:
        """Return a graph that calls the function: every call reads its static memory again."""
        del like, generators, keeps_casts
        return CpuGraph(work)

    # --- waits ---

    def delay(self, stream: CpuStream, ms: float) -> None:
        """Do nothing: work that runs in order cannot be overtaken."""

    def allow_waits(self) -> AbstractContextManager[None]:
        """Return an empty context: the host never waits for a CPU."""
        return nullcontext()

    def forbid_waits(self) -> AbstractContextManager[None]:
        """Return an empty context: the host never waits for a CPU."""
        return nullcontext()

    # --- random numbers ---

    def random_state(self) -> None:
        """Return None: work on a CPU draws from the host's generator."""

    def set_random_state(self, state: torch.Tensor) -> None:
        """Do nothing: work on a CPU draws from the host's generator."""

    # --- what can be measured ---

    def now_ms(self) -> float:
        """Return the host's time in milliseconds."""
        return perf_counter() * 1000.0

    def total_memory_bytes(self) -> None:
        """Return None: a CPU has no device memory."""

    def free_memory_bytes(self) -> None:
        """Return None: a CPU has no device memory."""

    def reserved_memory_bytes(self) -> int:
        """Return 0: a CPU has no device memory."""
        return 0

    def peak_memory_bytes(self) -> int:
        """Return the largest resident size of this program so far, in bytes.

        Linux's getrusage also counts what the process held before this program began in it: a
        child of a large program starts with that program's size.
        """
        if _STATUS.exists():
            lines = _STATUS.read_text(encoding="utf-8", errors="replace").splitlines()
            sizes = (line.split()[1] for line in lines if line.startswith("VmHWM:"))
            if (kibibytes := next(sizes, None)) is not None:
                return int(kibibytes) * 1024
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024

    def reset_peak_memory(self) -> None:
        """Do nothing: the system keeps the peak of the whole process."""

    def release_cached_memory(self) -> None:
        """Collect garbage."""
        gc.collect()

    def watch_waits(self, observer: WaitObserver) -> AbstractContextManager[None]:
        """Return an empty context: the host never waits for a CPU."""
        del observer
        return nullcontext()

    def watch_reads(self, observer: Callable[[str], None]) -> AbstractContextManager[None]:
        """Return an empty context: the host never waits for a CPU."""
        del observer
        return nullcontext()

    def trace_kernels(self, work: Callable[[], object]) -> None:
        """Return None: a CPU runs no kernels of a device."""

    def open_utilisation_meter(self) -> Never:
        """Raise DeviceError: no driver reports a CPU's utilisation."""
        raise DeviceError("the device is cpu, and NVML reports on NVIDIA GPUs only")
