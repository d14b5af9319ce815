"""The simulated device, for tests of code that orders streams."""

from __future__ import annotations

import gc
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Never, Self

import torch

from gapless.device.waits import declared_as
from gapless.errors import DeviceError
from gapless.testing.simulated.dispatch import QueueOperations
from gapless.testing.simulated.host_reads import WatchHost
from gapless.testing.simulated.patches import TorchReplaced
from gapless.testing.simulated.places import DEVICE
from gapless.testing.simulated.queues import SimulatedEvent
from gapless.testing.simulated.simulation import Simulation


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from types import TracebackType

    from gapless.device.base import Cut, WaitObserver
    from gapless.testing.simulated.queues import Scheduler, SimulatedStream
    from gapless.testing.simulated.races import RaceReport
    from gapless.testing.simulated.simulation import SimulatedGraph
    from gapless.testing.simulated.virtual_clock import Timeline


# As a large GPU has; host memory is allocated as it is used.
_TOTAL_BYTES = 128 << 30


class SimulatedDevice:
    """Streams that run late, over real CPU tensors, with a race checker and a virtual clock.

    Inside `with device:` a loop runs as it is written for a GPU, with `device.torch_device` as its
    device. Every torch operation on device memory is queued on the current stream and runs when the
    scheduler decides; results have the CPU's bits. Device memory is what `to(device.torch_device)`,
    `device=device.torch_device`, `cuda()` and `device_buffer` give, what is computed from it, and
    host tensors that device work uses, for example a model's weights that were never moved.

    Differences from a GPU:

    * `device.torch_device` is `cpu:1`, an index that torch itself ignores. `is_cuda` is False, and
      autocast has the type `cpu`.
    * A backward operation runs on the stream that is current when `backward` is called; on a GPU, on
      the stream of its forward operation. Its hooks see `cpu` as the device of every tensor.
    * A host tensor without dimensions is read when the work is launched.
    * Torch runs its code for the CPU, with the checks that only a CPU makes.
    * Work of other threads runs at once and is not checked. Sparse tensors are refused.

    Not recorded: accesses through raw pointers, by `torch.save`, and through numpy arrays that
    share a tensor's memory.

    Args:
        scheduler: `asap` runs queued work as soon as the virtual clock allows, `lazy` only when the
            host waits for it, `random` at random moments.
        seed: of the random scheduler; a failing seed reproduces the failure.
        durations: milliseconds by name of the work: `h2d`, `d2h`, `kernel`, `launch`, or a name
            passed to `region` or `spend`. By default nothing takes time.
        pageable_limit_bytes: a copy of more pageable memory to the device makes the host wait for
            queued work, even with `non_blocking=True`; the default is what CUDA documents.

    Raises:
        ValueError: the scheduler is unknown.

    Example:
        with SimulatedDevice(scheduler="random", seed=7) as device:
            for batch in my_prefetcher(loader, device):
                ...
        assert not device.report.races, device.report
    """

    is_accelerator = True
    # Small, so that simulations of small batches reach all code paths that move a tensor.
    max_direct_copy_bytes = 64
    max_queued_copy_bytes = 128
    sees_all_threads = False

    def __init__(
        self,
        *,
        scheduler: Scheduler = "random",
        seed: int = 0,
        durations: Mapping[str, float] | None = None,
        pageable_limit_bytes: int = 64 * 1024,
    ) -> None:
        self.torch_device = DEVICE
        self._description = f"simulated device, {scheduler} scheduler, seed {seed}"
        self._simulation = Simulation(
            scheduler=scheduler,
            seed=seed,
            durations=durations,
            pageable_limit_bytes=pageable_limit_bytes,
        )
        self._modes = (
            WatchHost(self._simulation),
            QueueOperations(self._simulation),
            TorchReplaced(self._simulation),
        )
        self._shared: dict[str, SimulatedStream] = {}
        self._is_entered = False

    @property
    def report(self) -> RaceReport:
        """What the race checker has recorded so far."""
        return self._simulation.checker.report

    @property
    def timeline(self) -> Timeline:
        """What has taken virtual time so far."""
        return self._simulation.timeline

    @property
    def waits(self) -> list[tuple[str, str]]:
        """Every host wait so far as (call, file:line), including hidden ones such as `item`."""
        return self._simulation.waits

    @property
    def num_blocks(self) -> int:
        """Number of blocks of device memory made so far; it grows if memory is not reused."""
        return self._simulation.memory.num_blocks

    def __enter__(self) -> Self:
        self._is_entered = True
        for mode in self._modes:
            mode.__enter__()
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_entered = False
        for mode in reversed(self._modes):
            mode.__exit__(error_type, error, trace)
        self._simulation.finish()
        if error is None:
            self._simulation.raise_failure()

    def describe(self) -> str:
        """Return the scheduler and the seed."""
        return self._description

    def uuid(self) -> None:
        """Return None: every process has a device of its own."""

    def region(self, name: str) -> AbstractContextManager[None]:
        """Let all kernels of a `with` body together take the virtual time of `name`."""
        return self._simulation.region(name)

    def spend(self, name: str) -> None:
        """Let the host work for the virtual time of `name`."""
        self._simulation.timeline.spend(name)
        self._simulation.advance()

    def make_current(self) -> None:
        """Do nothing: there is no other."""

    # --- streams, events and the order between them ---

    def create_stream(self) -> SimulatedStream:
        """Create a stream.

        Sync: Does not block the host.
        """
        return self._simulation.create_stream()

    def shared_stream(self, name: str) -> SimulatedStream:
        """Return the stream of that name, created on first use.

        Sync: Does not block the host.
        """
        if name not in self._shared:
            self._shared[name] = self._simulation.create_stream(name)
        return self._shared[name]

    def current_stream(self) -> SimulatedStream:
        """Return the stream that receives work now."""
        return self._simulation.current

    def set_current_stream(self, stream: SimulatedStream) -> None:
        """Send the work that follows to `stream`."""
        self._simulation.current = stream

    @contextmanager
    def use_stream(self, stream: SimulatedStream) -> Iterator[None]:
        """Send the work of a `with` body to `stream`."""
        before = self.current_stream()
        self.set_current_stream(stream)
        try:
            yield
        finally:
            self.set_current_stream(before)

    def create_event(self, *, timed: bool = False) -> SimulatedEvent:
        """Create an event; every one can be timed."""
        del timed
        return SimulatedEvent()

    def record_event(self, event: SimulatedEvent, stream: SimulatedStream) -> None:
        """Mark the end of all work queued on `stream` so far.

        Sync: Does not block the host.
        """
        event.mark = self._simulation.mark(stream)
        event.num_polls = 0

    def query_event(self, event: SimulatedEvent) -> bool:
        """Return whether the work before the last record is done; True before any record.

        Sync: Does not block the host.
        """
        return self._simulation.query(event)

    def wait_event(self, stream: SimulatedStream, event: SimulatedEvent) -> None:
        """Let `stream` wait for the last record of `event`; nothing before any record.

        Sync: Does not block the host.
        """
        self._simulation.let_wait(stream, event.mark)

    def wait_stream(self, stream: SimulatedStream, other: SimulatedStream) -> None:
        """Let `stream` wait for all work queued on `other` so far.

        Sync: Does not block the host.
        """
        self._simulation.let_wait(stream, self._simulation.mark(other))

    def synchronize_event(self, event: SimulatedEvent) -> None:
        """Wait for the last record of `event`.

        Sync: Blocks the host. Only `gapless.pipeline.host_waits` may call this.
        """
        self._simulation.wait(event.mark, "synchronize_event")

    def synchronize_stream(self, stream: SimulatedStream) -> None:
        """Wait for all work queued on `stream`.

        Sync: Blocks the host. Only `gapless.pipeline.host_waits` may call this.
        """
        self._simulation.wait(self._simulation.mark(stream), "synchronize_stream")

    def elapsed_ms(self, start: SimulatedEvent, end: SimulatedEvent) -> float:
        """Return the virtual milliseconds between two recorded events that are done.

        Raises:
            ValueError: one of them was not recorded, or is not done.

        Sync: Does not block the host.
        """
        if start.mark is None or end.mark is None:
            raise ValueError("elapsed_ms needs two recorded events")
        if not (start.mark.is_done and end.mark.is_done):
            raise ValueError("elapsed_ms needs two events that are done; query them first")
        return end.mark.time_ms - start.mark.time_ms

    # --- memory and copies ---

    def host_buffer(self, num_bytes: int, *, pinned: bool) -> torch.Tensor:
        """Return a uint8 tensor in host memory, page-locked if asked."""
        with self._simulation.quiet():
            if pinned:
                return self._simulation.memory.pin(num_bytes)
            return torch.empty(num_bytes, dtype=torch.uint8, device="cpu")

    def device_buffer(self, num_bytes: int) -> torch.Tensor:
        """Return a uint8 tensor on the device, allocated under the current stream."""
        with self._simulation.quiet():
            return self._simulation.allocate(num_bytes)

    def pinned_like(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return an empty page-locked tensor with the shape, strides and dtype of a dense one."""
        buffer = self.host_buffer(tensor.nbytes, pinned=True)
        return buffer.view(tensor.dtype).as_strided(tensor.size(), tensor.stride())

    def device_like(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return an empty tensor on the device with the shape, strides and dtype of a dense one.

        It is allocated under the current stream.
        """
        return torch.empty_strided(
            tensor.size(), tensor.stride(), dtype=tensor.dtype, device=self.torch_device
        )

    def needs_copy(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor is outside device memory."""
        block = self._simulation.find(tensor)
        return block is None or block.kind != "device"

    def record_stream(self, tensor: torch.Tensor, stream: SimulatedStream) -> None:
        """Keep a tensor's memory from being reused before `stream` is done with it.

        Sync: Does not block the host.
        """
        self._simulation.record_stream(tensor, stream)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Queue a copy on the current stream.

        Raises:
            RuntimeError: the device is not entered, so it would not see the copy.

        Sync: Does not block the host if the host side is page-locked; pageable memory is read
            before this returns, and written after a wait.
        """
        if not self._is_entered:
            raise RuntimeError("the simulated device is not entered; use it in `with device:`")
        target.copy_(source, non_blocking=True)

    # --- captures ---

    def capture(
        self,
        work: Callable[[Cut], object],
        *,
        like: SimulatedGraph | None = None,
        generators: Sequence[torch.Generator] = (),
        keeps_casts: bool = False,
    ) -> SimulatedGraph:
        """Capture the work that a function queues, without running it.

        Args:
            work: queues the work on the current stream, which must not be the default stream;
                takes a function that cuts (see `Device`).
            like: a graph whose memory pool the new graph shares.
            generators: not needed here: work draws when it is launched.
            keeps_casts: leave autocast's casts of weights alone.

        Raises:
            RuntimeError: a capture is running, the current stream is the default stream (which
                CUDA cannot capture), or the function makes the host wait.
        """
        del generators
        return self._simulation.capture(work, like=like, keeps_casts=keeps_casts)

    # --- waits ---

    def delay(self, stream: SimulatedStream, ms: float) -> None:
        """Keep `stream` busy for `ms` virtual milliseconds."""
        self._simulation.delay(stream, ms)

    def allow_waits(self) -> AbstractContextManager[None]:
        """Lift `forbid_waits` in the body, for a declared wait."""
        return self._waits(forbidden=False)

    def forbid_waits(self) -> AbstractContextManager[None]:
        """Make every host wait of the body raise RuntimeError at once."""
        return self._waits(forbidden=True)

    # --- random numbers ---

    def random_state(self) -> None:
        """Return None: work draws from the host's generator, when it is launched."""

    def set_random_state(self, state: torch.Tensor) -> None:
        """Do nothing: work draws from the host's generator."""

    # --- what can be measured ---

    def now_ms(self) -> float:
        """Return the host's virtual time in milliseconds."""
        return self.timeline.now_ms

    def total_memory_bytes(self) -> int:
        """Return a size that no test reaches, so that budgets count as on a GPU."""
        return _TOTAL_BYTES

    def free_memory_bytes(self) -> None:
        """Return None: there is as much as the host has."""

    def reserved_memory_bytes(self) -> int:
        """Return the device memory that is in use, in bytes."""
        return self._simulation.memory.in_use_bytes

    def peak_memory_bytes(self) -> int:
        """Return the most device memory in use since `reset_peak_memory`, in bytes."""
        return self._simulation.memory.peak_bytes

    def reset_peak_memory(self) -> None:
        """Start a new measurement of the peak memory."""
        memory = self._simulation.memory
        memory.peak_bytes = memory.in_use_bytes

    def release_cached_memory(self) -> None:
        """Collect garbage; freed blocks stay where they are."""
        gc.collect()

    @contextmanager
    def watch_waits(self, observer: WaitObserver) -> Iterator[None]:
        """Call `observer(what, site)` for every host wait of the body, declared or not."""
        self._simulation.on_wait.append(observer)
        try:
            yield
        finally:
            self._simulation.on_wait.remove(observer)

    def watch_reads(self, observer: Callable[[str], None]) -> AbstractContextManager[None]:
        """Call `observer(site)` for every host wait of the body."""
        return self.watch_waits(lambda what, site: observer(site))

    def trace_kernels(self, work: Callable[[], object]) -> None:
        """Return None: there are no kernels to trace."""

    def open_utilisation_meter(self) -> Never:
        """Raise DeviceError: no driver reports on a simulation."""
        raise DeviceError("the device is simulated, and NVML reports on NVIDIA GPUs only")

    @contextmanager
    def _waits(self, *, forbidden: bool) -> Iterator[None]:
        simulation = self._simulation
        before, simulation.are_waits_forbidden = simulation.are_waits_forbidden, forbidden
        try:
            # An `allow_waits` around this body must not lift the ban: the inner context decides.
            with declared_as(None) if forbidden else nullcontext():
                yield
        finally:
            simulation.are_waits_forbidden = before
