"""Iterate over a loader with its batches already on the device.

batches = gapless.prefetch(loader, device)
for epoch in range(num_epochs):
    for batch in batches:
        ...
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from gapless.device.find import find_device
from gapless.errors import BatchError, noted_on
from gapless.pipeline.host_waits import HostWaits
from gapless.pipeline.loaders import end_loader
from gapless.pipeline.staging import StagedBatch, StagingRing


if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator
    from types import TracebackType

    import torch

    from gapless.device.base import Device, Stream
    from gapless.pipeline.tree import Tree
    from gapless.records.wait_stats import WaitStats


BatchT = TypeVar("BatchT")


class Prefetcher(Generic[BatchT]):
    """Yield the batches of a loader in order, moved to the device ahead of their use.

    Made by `prefetch`, or by the loop with streams of its own. May be iterated over many times,
    by one loop at a time: every epoch uses the same streams and memory.

    Attributes:
        data_wait_ms: time spent waiting for the loader, in milliseconds, over all epochs.
        num_batches: batches handed out, over all epochs.

    Args:
        loader: any iterable of batches.
        ring: the memory that batches pass through.
        device: where they go.
        depth: batches ahead of the one in use.
    """

    def __init__(
        self, loader: Iterable[BatchT], *, ring: StagingRing, device: Device, depth: int
    ) -> None:
        self._loader = loader
        self._ring = ring
        self._device = device
        self._depth = depth
        self.data_wait_ms = 0.0
        self.num_batches = 0

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]  # as sized as the loader is

    def __iter__(self) -> Generator[BatchT]:
        """Yield batches on the device.

        However a pass ends, a generator that it iterated over is closed, and the worker
        processes of a torch DataLoader are gone unless they are persistent. An interrupt in the
        instant in which the loader starts them leaves them to the garbage collector.

        A batch may be used on the stream that is current when it is handed out. Tensors of a
        batch stay valid as long as somebody holds them; views of them only until `depth` + 2
        further batches were taken: clone what you keep.

        Raises:
            BatchError: a batch holds something that cannot be moved.
            Exception: whatever the loader raises, after the batches before it were yielded.

        Sync: Does not block the host on the device, except for a full host ring ("staging") and
            without pinned memory ("pageable_copy"). Waits for the loader.
        """
        return self._batches(lambda tree: tree.value)

    def trees(self) -> Generator[Tree]:
        """Yield batches on the device as `__iter__` does, each with its tensors already listed.

        Sync: as `__iter__`.
        """
        return self._batches(lambda tree: tree)

    def _batches(self, hand_over: Callable[[Tree], Any]) -> Generator[Any]:
        staged: deque[StagedBatch] = deque()
        with _Source() as source:
            try:
                source.open(self._loader)
                while self._fill(staged, source):
                    self.num_batches += 1
                    yield hand_over(
                        self._ring.hand_out(
                            staged.popleft(), compute_stream=self._device.current_stream()
                        )
                    )
                source.raise_failure()
            finally:
                # A traceback keeps this frame, and must not keep the slots of the ring with it.
                staged.clear()

    def _fill(self, staged: deque[StagedBatch], source: _Source) -> bool:
        """Stage batches up to the depth; return whether there are any."""
        compute_stream = self._device.current_stream()
        while len(staged) <= self._depth and not source.is_exhausted:
            start = self._device.now_ms()
            found = source.take()
            self.data_wait_ms += self._device.now_ms() - start
            try:
                staged += [
                    self._ring.stage(batch, compute_stream=compute_stream) for batch in found
                ]
            except BatchError as failure:
                source.fail(failure)
        return bool(staged)


class _Source:
    """A loader's iterator that keeps a failure until the batches before it are used up."""

    def __init__(self) -> None:
        self._batches: Iterator[Any] = iter(())
        self._failure: Exception | None = None
        self.is_exhausted = False

    def open(self, loader: Iterable[Any]) -> None:
        """Start the loader; apart from `__enter__`, so that `__exit__` ends what this started."""
        self._batches = iter(loader)

    def take(self) -> list[Any]:
        """Return the next batch in a list, or an empty list at the end."""
        try:
            return [next(self._batches)]
        except StopIteration:
            self.is_exhausted = True
        except Exception as failure:
            self.fail(failure)
        return []

    def fail(self, failure: Exception) -> None:
        """End here, and raise the failure when the batches before it are used up."""
        self._failure = failure
        self.is_exhausted = True

    def raise_failure(self) -> None:
        """Raise what the loader raised, if it did."""
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """End the loader's generator or its worker processes."""
        end_loader(self._batches)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None or isinstance(error, GeneratorExit):
            self.close()
        else:
            with noted_on(error):
                self.close()


def prefetch(
    loader: Iterable[BatchT],
    device: str | torch.device | Device = "auto",
    *,
    depth: int = 2,
    pin_memory: bool = True,
    wait_stats: WaitStats | None = None,
) -> Prefetcher[BatchT]:
    """Iterate over `loader` with batches moved to `device` ahead of their use.

    Make it once, before the loop over epochs: every epoch then uses the same memory. A batch may
    be any nesting of tensors, tuples, named tuples, lists, mappings and dataclasses. Copies run
    on a side stream. They read page-locked memory that is refilled only when they are done, and
    write device memory that is overwritten only when nobody reads it any more.

    Args:
        loader: any iterable of batches on the CPU.
        device: a device or its name.
        depth: batches ahead of the one in use, at least 1.
        pin_memory: stage in page-locked memory.
        wait_stats: where host waits are counted, if any are needed.

    Raises:
        ValueError: `depth` is below 1.
        DeviceError: the device is unknown or absent.

    Sync: Does not block the host.
    """
    if depth < 1:
        raise ValueError(f"depth must be at least 1, but is {depth}")
    found = find_device(device)
    ring = StagingRing(
        found,
        host_waits=HostWaits(found, wait_stats=wait_stats),
        depth=depth,
        transfer_streams=[_transfer_stream(found)],
        pin_memory=pin_memory,
    )
    return Prefetcher(loader, ring=ring, device=found, depth=depth)


def _transfer_stream(device: Device) -> Stream:
    return device.shared_stream("gapless.transfer")
