"""Iterate over a loader with its batches on the device.

for batch in gapless.prefetch(loader, device):
    ...
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any, Generic, Never, Self, TypeVar
from weakref import finalize

import torch

from gapless.device.find import find_device
from gapless.errors import UserError, noted_on
from gapless.pipeline.batch_mover import BatchMover
from gapless.pipeline.host_waits import HostWaits
from gapless.pipeline.in_flight import DEFAULT_MAX_IN_FLIGHT
from gapless.pipeline.loaders import end_loader, expect_no_signal, has_fresh_memory
from gapless.pipeline.transfer import shared_lane
from gapless.pipeline.tree.flatten import flatten


if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable
    from types import TracebackType

    from gapless.device.base import Device
    from gapless.pipeline.in_flight import StagedBatch
    from gapless.pipeline.transfer import TransferLane
    from gapless.pipeline.tree.flatten import Tree
    from gapless.records.wait_stats import WaitStats


BatchT = TypeVar("BatchT")


class Prefetcher(Generic[BatchT]):
    """Yield the batches of a loader in order, moved to the device.

    Made by `prefetch`, or by the loop with streams of its own. Every `iter` starts a pass of its
    own; passes may run at once and in several threads, as far as the loader allows it. Attributes
    that it does not have are the loader's, to read, to set and to delete.

    Attributes:
        data_wait_ms: time spent waiting for the loader, in milliseconds, over all passes.

    Args:
        loader: any iterable of batches.
        device: where they go.
        host_waits: the door for waits.
        lanes: carry large tensors to the device, in turn.
        depth: batches read ahead of the one in use.
        pin_memory: stage large tensors in page-locked memory.
        max_in_flight: most batches whose copies are in flight.
    """

    def __init__(
        self,
        loader: Iterable[BatchT],
        *,
        device: Device,
        host_waits: HostWaits,
        lanes: list[TransferLane],
        depth: int = 0,
        pin_memory: bool = True,
        max_in_flight: int = DEFAULT_MAX_IN_FLIGHT,
    ) -> None:
        self._device = device
        self._host_waits = host_waits
        self._lanes = lanes
        self._depth = depth
        self._pin_memory = pin_memory
        self._max_in_flight = max_in_flight
        self.data_wait_ms = 0.0
        # The last one: what is set from here on, and is not here, is the loader's.
        self._loader = loader

    # --- like the loader ---

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]  # as sized as the loader is

    def __bool__(self) -> bool:
        return bool(self._loader)

    def __getattr__(self, name: str) -> Any:
        if self._is_own(name):
            raise AttributeError(name)
        return getattr(self._loader, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if self._is_own(name):
            super().__setattr__(name, value)
        else:
            setattr(self._loader, name, value)

    def __delattr__(self, name: str) -> None:
        if self._is_own(name):
            super().__delattr__(name)
        else:
            delattr(self._loader, name)

    def _is_own(self, name: str) -> bool:
        own = vars(self)
        return name in own or name.startswith("__") or "_loader" not in own

    def __next__(self) -> Never:
        raise TypeError(
            "a prefetcher is no iterator, since it can be iterated over many times; call "
            "iter(prefetcher) and take batches from what it returns"
        )

    # --- passes ---

    def __iter__(self) -> Pass[BatchT]:
        """Yield batches on the device, everything as `to(device, non_blocking=True)` makes it.

        A batch is read from the loader when the loop asks for it (with `depth` set, that many
        batches earlier), and never before the last one has left the loader's memory. It may be
        used on the stream that is current when it is handed out, by the rules that hold for
        memory allocated there. Its memory is reused when nobody holds its storage any more. The
        loader's own `iter` is called here, before the first batch is asked for: a DataLoader draws
        the seed of its pass there.

        However a pass ends, a generator that the loader made for it is closed, and the worker
        processes of a torch DataLoader are gone unless they are persistent. An interrupt in the
        instant in which the loader starts them leaves them to the garbage collector.

        Raises:
            BatchError: a container in a batch cannot be rebuilt.
            Exception: whatever the loader's `iter` raises; then, for each batch, whatever the loader
                raises, after the batches before it were yielded. The next batch may be asked for
                then, if the loader can go on.

        Sync: Does not block the host on the device, except for copies from page-locked memory of
            the loader ("loader_memory"), for more than 1 GiB of copies in flight ("staging"), and
            where the move of an object or of a tensor that is not plain does. Waits for the
            loader.
        """
        return self._pass(lambda batch: batch)

    def trees(self) -> Pass[Tree]:
        """Yield batches on the device as `__iter__` does, each with its tensors already listed.

        Sync: as `__iter__`.
        """
        return self._pass(flatten)

    def _pass(self, hand_over: Callable[[Any], Any]) -> Pass[Any]:
        source = _Source(self._loader)
        return Pass(source, self._batches(source, hand_over))

    def _batches(self, source: _Source, hand_over: Callable[[Any], Any]) -> Generator[Any]:
        """Yield batches; a batch that fails comes as its failure."""
        staged: deque[StagedBatch] = deque()
        with source, self._mover() as mover:
            while staged or source.has_failed or not source.is_used_up:
                if self._fill(staged, source, mover):
                    yield hand_over(mover.hand_out(staged.popleft()))
                elif source.has_failed:
                    yield source.take_failure()

    def _mover(self) -> BatchMover:
        return BatchMover(
            self._device,
            host_waits=self._host_waits,
            lanes=self._lanes,
            looks_ahead=self._depth > 0,
            has_fresh_memory=has_fresh_memory(self._loader),
            pin_memory=self._pin_memory,
            max_in_flight=self._max_in_flight,
        )

    def _fill(self, staged: deque[StagedBatch], source: _Source, mover: BatchMover) -> bool:
        """Stage batches up to the depth; return whether there are any."""
        while len(staged) <= self._depth and not (source.is_used_up or source.has_failed):
            try:
                mover.leave_loader_memory()
                start, since = self._device.now_ms(), perf_counter()
                found = source.take()
                self.data_wait_ms += self._device.now_ms() - start
                if self._host_waits.log is not None:
                    self._host_waits.log.note("data", "waits for data", since=since)
                staged += [mover.stage(batch) for batch in found]
            except Exception as failure:
                source.fail(failure)
        return bool(staged)


@dataclass(frozen=True, slots=True)
class _Failure:
    """What was raised in place of a batch."""

    error: Exception


class Pass(Generic[BatchT]):
    """One pass over a loader. Unlike a generator it can go on after an error, if the loader can.

    Its length, and whether it is true, are those of the loader's own iterator.

    Args:
        source: the loader's iterator.
        batches: yields batches, or failures.
    """

    def __init__(self, source: _Source, batches: Generator[Any]) -> None:
        self._source = source
        self._batches = batches

    def __iter__(self) -> Self:
        return self

    def __len__(self) -> int:
        return len(self._source.batches)  # type: ignore[arg-type]  # as sized as that is

    def __bool__(self) -> bool:
        return bool(self._source.batches)

    def __next__(self) -> BatchT:
        found = next(self._batches)
        if type(found) is not _Failure:
            return found  # type: ignore[no-any-return]  # as the loader gave it
        # The traceback keeps this frame, which must keep neither the pass nor the error.
        del self
        try:
            raise found.error
        finally:
            del found

    def close(self) -> None:
        """End the pass, and what the loader started for it.

        Sync: As `BatchMover.close`; waits for worker processes to end.
        """
        self._batches.close()
        # A generator that has not begun ends nothing.
        self._source.close()


def _put_back(before: torch.Tensor, after: torch.Tensor) -> None:
    """Undo a draw of torch's generator, if it was the last one."""
    if torch.equal(torch.get_rng_state(), after):
        torch.set_rng_state(before)


class _Source:
    """A loader's iterator that keeps a failure until the batches before it are used up.

    Attributes:
        batches: the iterator.
        is_used_up: whether it has ended.

    Args:
        loader: is started here.
    """

    def __init__(self, loader: Iterable[Any]) -> None:
        before = torch.get_rng_state()
        self.batches = iter(loader)
        after = torch.get_rng_state()
        # A DataLoader draws a seed. Frameworks look whether there is a pass, and ask for no batch of it.
        self._unasked: finalize[..., Any] | None = None
        if not torch.equal(before, after):
            self._unasked = finalize(self, _put_back, before, after)
            self._unasked.atexit = False
        # What is an iterator itself was not started here, and its owner may go on with it.
        self._is_own = self.batches is not loader
        self._failure: Exception | None = None
        self.is_used_up = False
        expect_no_signal(self.batches)

    def take(self) -> list[Any]:
        """Return the next batch in a list, or an empty list at the end."""
        if self._unasked is not None:
            self._unasked.detach()
            self._unasked = None
        try:
            return [next(self.batches)]
        except StopIteration:
            self.is_used_up = True
        except Exception as failure:
            self.fail(failure)
        return []

    def fail(self, failure: Exception) -> None:
        """Stop here until the batches before it are used up and the failure was raised."""
        self._failure = failure

    @property
    def has_failed(self) -> bool:
        """Whether there is a failure to take."""
        return self._failure is not None

    def take_failure(self) -> _Failure:
        """Return what the loader raised; it may be asked again."""
        assert self._failure is not None
        found, self._failure = _Failure(self._failure), None
        return found

    def close(self) -> None:
        """End the loader's generator or its worker processes."""
        if self._is_own:
            end_loader(self.batches)

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


def prefetch(
    loader: Iterable[BatchT],
    device: str | torch.device | Device = "auto",
    *,
    depth: int = 0,
    pin_memory: bool = True,
    wait_stats: WaitStats | None = None,
) -> Prefetcher[BatchT]:
    """Iterate over `loader` with its batches moved to `device`, without a wait for the device.

    Everything in a batch arrives as `to(device, non_blocking=True)` would have made it: strides,
    `requires_grad`, subclasses, sparse and nested tensors, and tensors that are there already.
    Large tensors are copied on a side stream, beside the work of the device. A batch may be any
    nesting of tuples, named tuples, lists, mappings, dataclasses and objects of classes in Python; an
    object that has a `to` of its own moves itself, and whatever else there is, such as strings and
    numpy arrays, is handed through. A warning names what holds tensors and stays on the host.

    Each `iter()` starts the loader, which draws a seed from torch's generator. An iterator that nobody
    asks for a batch gives that draw back at its end: Lightning looks so whether there are batches.

    A loop that asks for a batch when it has launched the last step reads the loader ahead of the
    device as it is. `depth` reads ahead of the loop as well. That changes results if the loader
    and the loop share anything: a random generator, data that training changes, or what the loader
    says about how far it was read. Worker processes of a DataLoader look ahead by themselves.

    Args:
        loader: any iterable of batches.
        device: a device or its name.
        depth: batches read ahead of the one in use, at least 0. A background thread then copies
            large tensors to page-locked memory.
        pin_memory: stage large tensors in page-locked memory; without it their copies block.
        wait_stats: where host waits are counted, if any are needed.

    Returns:
        What can be iterated over once an epoch, with the loader's length and attributes. Batches
        are used on the stream that is current when they are handed out; their memory is used again
        when nobody holds it.

    Raises:
        UserError: `depth` is below 0.
        DeviceError: the device is unknown or absent.
        BatchError: in iteration: a container in a batch cannot be rebuilt.

    Sync: Does not block the host. Iteration waits for the loader, and for the device only where
        memory that the loader page-locked may be filled again ("loader_memory"), more than 1 GiB
        of copies is in flight ("staging"), or `pin_memory` is False ("pageable_copy").
    """
    if depth < 0:
        raise UserError(f"`depth` must be at least 0, but is {depth}")
    found = find_device(device)
    return Prefetcher(
        loader,
        device=found,
        host_waits=HostWaits(found, wait_stats=wait_stats),
        lanes=[shared_lane(found)],
        depth=depth,
        pin_memory=pin_memory,
    )
