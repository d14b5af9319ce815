"""Checks for prefetchers and loss readers that slow one side down on purpose.

They check values, never times: a missing wait makes code faster. They run on a GPU, where streams are
delayed, and on the simulated device, where the race checker runs too.
"""

from __future__ import annotations

from contextlib import nullcontext
from itertools import count, pairwise
from statistics import median
from typing import TYPE_CHECKING, Any, Protocol

import torch

from gapless.device.find import find_device
from gapless.device.torch_private import TorchDispatchMode, to_copy
from gapless.pipeline.host_waits import HostWaits


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from gapless.device.base import Device, Event, Stream


# Every check uses new numbers, so that old content of memory is never right by chance.
_numbers = count(1)

# What is slow is to be slower than the other side by far, also on a host that is busy.
_SLOWER_BY = 3.0

_COPIES = (torch.ops.aten.copy_.default, to_copy)


class LossReader(Protocol):
    """An object that brings losses to the host later."""

    def add(self, loss: torch.Tensor) -> None:
        """Take the loss of one step, a 0-dim tensor on the device."""

    def read(self) -> list[float]:
        """Return all losses, in order."""


class _SlowCopies(TorchDispatchMode):
    """Delay every copy that is queued on a stream other than the consumer's."""

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let torch compile what is called in here first: up to 2.13 it would never do so later."""
        return True

    def __init__(self, device: Device, consumer: Stream, delay_ms: float) -> None:
        super().__init__()
        self._device = device
        self._consumer = consumer
        self._delay_ms = delay_ms

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        current = self._device.current_stream()
        if func in _COPIES and current != self._consumer:
            self._device.delay(current, self._delay_ms)
        return func(*args, **(kwargs or {}))


def check_prefetcher(
    make: Callable[[Iterable[torch.Tensor], Device], Iterable[torch.Tensor]],
    *,
    device: str | torch.device | Device = "auto",
    num_batches: int = 8,
    num_elements: int = 1 << 16,
    delay_ms: float = 3.0,
) -> list[str]:
    """Return what is wrong with the batches that a prefetcher yields, one sentence a finding.

    Each batch is filled with one number. Work on the current stream reads it, then the batch is
    dropped. A first pass has nothing slow, and shows how long a batch takes. A second has a slow
    consumer, which shows batches that are overwritten or freed too early; a third has slow copies, which
    shows batches that are read too early and page-locked memory that is refilled too early. On a CPU
    nothing can be slowed down; only the values are checked.

    Args:
        make: takes a loader of CPU tensors and the device; returns an iterable of the same tensors
            on the device, ready for the current stream.
        device: a device or its name.
        num_batches: batches in each pass.
        num_elements: float32 elements in each batch.
        delay_ms: least delay, for each batch of the slow consumer and for each of the slow copies, in
            milliseconds; three times as long as a batch took with nothing slow, if that is more.

    Returns:
        The findings; an empty list if every batch was right.

    Raises:
        ValueError: there is no batch to check.
        DeviceError: the device is unknown or absent.
        Exception: what the prefetcher raises.

    Sync: Blocks the host at the end of each pass.
    """
    if num_batches < 1 or num_elements < 1:
        raise ValueError(
            f"num_batches and num_elements must be at least 1, but are {num_batches} and "
            f"{num_elements}"
        )
    found = find_device(device)
    consumer = found.current_stream()
    findings = []
    for slow in ("nothing", "consumer", "copies"):
        expected = _new_numbers(num_batches)
        loader = (torch.full((num_elements,), value, device="cpu") for value in expected)
        context = _SlowCopies(found, consumer, delay_ms) if slow == "copies" else nullcontext()
        with context:
            seen, wrong, batch_ms = _consume(
                make(loader, found),
                found,
                shape=(num_batches, num_elements),
                delay_ms=delay_ms if slow == "consumer" else 0.0,
            )
        if slow == "nothing":
            delay_ms = max(delay_ms, _SLOWER_BY * batch_ms)
        texts = [*wrong, *_differences("batch", expected, seen)]
        findings += [f"with {slow} slow, {text}" for text in texts]
    return findings


def _new_numbers(num: int) -> list[float]:
    return [float(next(_numbers)) for _ in range(num)]


def _consume(
    batches: Iterable[torch.Tensor], device: Device, *, shape: tuple[int, int], delay_ms: float
) -> tuple[list[tuple[float, ...]], list[str], float]:
    """Return the smallest and the largest value of each batch, as queued work read them.

    Also return the findings about anything but values, and the median of milliseconds from batch to
    batch.
    """
    num_batches, num_elements = shape
    wrong = []
    values = device.device_buffer(8 * num_batches).view(torch.float32).view(num_batches, 2)
    num_seen = 0
    ends: list[Event] = []
    for number, batch in enumerate(batches):
        if delay_ms:
            device.delay(device.current_stream(), delay_ms)
        if batch.shape != (num_elements,) or batch.dtype != torch.float32:
            wrong.append(
                f"batch {number} has shape {list(batch.shape)} and {batch.dtype}, "
                f"expected [{num_elements}] and torch.float32"
            )
        elif device.is_accelerator and device.needs_copy(batch):
            wrong.append(f"batch {number} is not on the device")
        if number < num_batches:
            values[number, 0].copy_(batch.amin())
            values[number, 1].copy_(batch.amax())
        num_seen = number + 1
        ends.append(device.create_event(timed=True))
        device.record_event(ends[-1], device.current_stream())
        del batch  # as in a loop that keeps nothing
    if num_seen != num_batches:
        wrong.append(f"{num_seen} of {num_batches} batches arrived")
    read = [tuple(pair) for pair in _read(device, values)][:num_seen]
    return read, wrong, _median_ms(device, ends)


def _differences(noun: str, expected: list[float], seen: list[tuple[float, ...]]) -> Iterator[str]:
    for number, (value, found) in enumerate(zip(expected, seen, strict=False)):
        if any(part != value for part in found):
            text = " to ".join(f"{part:g}" for part in found)
            yield f"{noun} {number} was read as {text} instead of {value:g}"


def check_readback(
    make: Callable[[Device], LossReader],
    *,
    device: str | torch.device | Device = "auto",
    num_losses: int = 8,
    delay_ms: float = 3.0,
) -> list[str]:
    """Return what is wrong with the losses that a reader returns, one sentence a finding.

    A slow device computes the losses, and they are dropped at once. This shows a loss that is read
    before it is computed, or whose memory is reused too early. A first pass is not slow, and shows how
    long a loss takes. On a CPU nothing can be slowed down; only the values are checked.

    Args:
        make: takes the device; returns an object with `add(loss)` and `read()`.
        device: a device or its name.
        num_losses: number of losses.
        delay_ms: least delay of each loss, in milliseconds; three times as long as a loss took in the first
            pass, if that is more.

    Returns:
        The findings; an empty list if every loss was right.

    Raises:
        ValueError: there is no loss to check.
        DeviceError: the device is unknown or absent.
        Exception: what the reader raises.

    Sync: Blocks the host as the reader does.
    """
    if num_losses < 1:
        raise ValueError(f"num_losses must be at least 1, but is {num_losses}")
    found = find_device(device)
    at_first, loss_ms = _read_back(make(found), found, num_losses, delay_ms=0.0)
    delay_ms = max(delay_ms, _SLOWER_BY * loss_ms)
    findings, _ = _read_back(make(found), found, num_losses, delay_ms=delay_ms)
    return findings or at_first


def _read_back(
    reader: LossReader, device: Device, num_losses: int, *, delay_ms: float
) -> tuple[list[str], float]:
    """Return the findings about losses that a reader returns, and the median of milliseconds from loss to loss."""
    expected = _new_numbers(num_losses)
    base = device.device_buffer(4).view(torch.float32)[0]
    base.fill_(expected[0])
    HostWaits(device).wait_stream(device.current_stream(), reason="check")
    ends: list[Event] = []
    for number in range(num_losses):
        if delay_ms:
            device.delay(device.current_stream(), delay_ms)
        reader.add(base + number)
        ends.append(device.create_event(timed=True))
        device.record_event(ends[-1], device.current_stream())
    seen: list[tuple[float, ...]] = [(value,) for value in reader.read()]
    wrong = []
    if len(seen) != num_losses:
        wrong.append(f"{len(seen)} of {num_losses} losses arrived")
    # Late work must not outlive the reader's memory.
    HostWaits(device).wait_stream(device.current_stream(), reason="check")
    return [*wrong, *_differences("loss", expected, seen)], _median_ms(device, ends)


def _median_ms(device: Device, ends: list[Event]) -> float:
    times = [device.elapsed_ms(*pair) for pair in pairwise(ends)]
    return median(times) if times else 0.0


def _read(device: Device, tensor: torch.Tensor) -> Any:
    num_bytes = tensor.numel() * tensor.element_size()
    host = device.host_buffer(num_bytes, pinned=True).view(tensor.dtype).view(tensor.shape)
    device.copy(host, tensor)
    HostWaits(device).wait_stream(device.current_stream(), reason="check")
    return host.tolist()
