"""Streams by number or name, and the events that order them."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from gapless.device.find import find_device
from gapless.pipeline.host_waits import HostWaits
from gapless.plans import MAX_STREAMS


if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    import torch

    from gapless.device.base import Device, Event, Stream
    from gapless.records.wait_stats import WaitStats


@dataclass(frozen=True, kw_only=True)
class Lanes:
    """What each numbered stream carries.

    Attributes:
        transfer: streams that carry host-to-device copies, used in turn.
        forward: the compute stream.
        backward: where `backward()` and the optimizer are called; autograd still runs each
            backward kernel on the stream of its forward (PyTorch notes, CUDA semantics).
        readback: carries losses back to the host.
    """

    transfer: tuple[int, ...]
    forward: int
    backward: int
    readback: int


def lanes(num_streams: int) -> Lanes:
    """Return the work of each of `num_streams` streams (1 to 8).

    One stream does everything. Two: transfer and compute. Three: readback apart. Four, as the
    origin has it: transfer, forward, backward, next transfer. Five: readback apart again. More
    streams take further transfers.
    """
    if num_streams == 1:
        return Lanes(transfer=(0,), forward=0, backward=0, readback=0)
    if num_streams == 2:
        return Lanes(transfer=(0,), forward=1, backward=1, readback=1)
    if num_streams == 3:
        return Lanes(transfer=(0,), forward=1, backward=1, readback=2)
    if num_streams == 4:
        return Lanes(transfer=(0, 3), forward=1, backward=2, readback=1)
    return Lanes(transfer=(0, 3, *range(5, num_streams)), forward=1, backward=2, readback=4)


class StreamManager:
    """Own a few streams for the life of a run, and the events between them.

    Streams have numbers from 0; `lanes` says what each carries. Names can be given to further
    streams. On a CPU the same calls run in order and cost nothing.

    Args:
        device: a device or its name.
        num_streams: how many numbered streams to create, 1 to 8.
        wait_stats: where host waits are counted.

    Raises:
        ValueError: `num_streams` is out of range.
    """

    def __init__(
        self,
        device: str | torch.device | Device = "auto",
        *,
        num_streams: int = 2,
        wait_stats: WaitStats | None = None,
    ) -> None:
        if not 1 <= num_streams <= MAX_STREAMS:
            raise ValueError(f"num_streams must be 1 to {MAX_STREAMS}, but is {num_streams}")
        self.device = find_device(device)
        self.lanes = lanes(num_streams)
        self.host_waits = HostWaits(self.device, wait_stats=wait_stats)
        self._outer_stream = self.device.current_stream()
        self._streams: dict[int | str, Stream] = {
            number: self.device.create_stream() for number in range(num_streams)
        }

    @property
    def stats(self) -> WaitStats:
        """The account of host waits made through this manager."""
        return self.host_waits.stats

    @property
    def num_streams(self) -> int:
        """Number of streams, named ones included."""
        return len(self._streams)

    def create_stream(self, name: str) -> Stream:
        """Create a stream with a name.

        Raises:
            ValueError: the name is taken.

        Sync: Does not block the host.
        """
        if name in self._streams:
            raise ValueError(f"stream {name!r} exists already; choose another name")
        self._streams[name] = self.device.create_stream()
        return self._streams[name]

    def get_stream(self, stream: int | str) -> Stream:
        """Return the stream of that number or name.

        Raises:
            KeyError: there is none; the message lists those that exist.
        """
        if stream not in self._streams:
            names = ", ".join(map(repr, self._streams))
            raise KeyError(f"no stream {stream!r}; the streams are {names}")
        return self._streams[stream]

    def get_compute_stream(self) -> Stream:
        """Return the stream that forward passes run on."""
        return self._streams[self.lanes.forward]

    def get_current_stream(self) -> Stream:
        """Return the stream that queued work goes to now."""
        return self.device.current_stream()

    def set_current_stream(self, stream: int | str) -> None:
        """Send the work that follows to the stream of that number or name.

        Sync: Does not block the host.
        """
        self.device.set_current_stream(self.get_stream(stream))

    @contextmanager
    def use(self, stream: int | str) -> Iterator[Stream]:
        """Send the work of a `with` body to a stream, and return to the former one after it.

        Sync: Does not block the host.
        """
        handle = self.get_stream(stream)
        with self.device.use_stream(handle):
            yield handle

    def create_event(self, *, timed: bool = False) -> Event:
        """Create an event; `timed` ones can be given to `elapsed_ms`."""
        return self.device.create_event(timed=timed)

    def record_event(self, event: Event, stream: int | str) -> None:
        """Mark the end of all work queued on a stream so far.

        Sync: Does not block the host.
        """
        self.device.record_event(event, self.get_stream(stream))

    def query_event(self, event: Event) -> bool:
        """Return whether the work before the event's last record is done.

        Sync: Does not block the host.
        """
        return self.device.query_event(event)

    def wait_event(self, event: Event, stream: int | str) -> None:
        """Let a stream wait for an event.

        Sync: Does not block the host.
        """
        self.device.wait_event(self.get_stream(stream), event)

    def synchronize_event(self, event: Event, *, reason: str = "event") -> None:
        """Wait for an event.

        Sync: Blocks the host until the event is done; counted under `reason`.
        """
        self.host_waits.wait_event(event, reason=reason)

    def synchronize(self, stream: int | str, *, reason: str = "stream") -> None:
        """Wait for all work queued on a stream.

        Sync: Blocks the host until the stream is empty; counted under `reason`.
        """
        self.host_waits.wait_stream(self.get_stream(stream), reason=reason)

    def synchronize_all(self, *, reason: str = "stream") -> None:
        """Wait for all work queued on every stream of this manager.

        Sync: Blocks the host until all are empty; one counted wait for each stream.
        """
        for stream in list(self._streams):
            self.synchronize(stream, reason=reason)

    def elapsed_ms(self, start: Event, end: Event) -> float:
        """Return the milliseconds between two timed events that are done."""
        return self.device.elapsed_ms(start, end)

    def close(self) -> None:
        """Return to the stream that was current before, and let go of all streams.

        Sync: Does not block the host; queued work still runs.
        """
        self.device.set_current_stream(self._outer_stream)
        self._streams.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class EventPool:
    """Hand out events and take them back when they are done.

    An event is re-recorded only after its user returned it, having seen it complete, or having
    let streams wait for it: a stream's wait binds to the record it saw, so nobody is still
    waiting for the former record when it is overwritten.

    An event whose user was interrupted is lost until the next `reset`.

    Args:
        device: whose events these are.
        timed: whether they can be given to `elapsed_ms`.
    """

    def __init__(self, device: Device, *, timed: bool = False) -> None:
        self._device = device
        self._timed = timed
        self._created: list[Event] = []
        self._free: list[Event] = []

    @property
    def num_created(self) -> int:
        """Number of events made so far; all of them are kept."""
        return len(self._created)

    def record(self, stream: Stream) -> Event:
        """Take an event and record it on `stream`.

        Sync: Does not block the host.
        """
        if self._free:
            event = self._free.pop()
        else:
            event = self._device.create_event(timed=self._timed)
            self._created.append(event)
        self._device.record_event(event, stream)
        return event

    def give_back(self, event: Event) -> None:
        """Return an event that the host will not ask about again."""
        self._free.append(event)

    def reset(self) -> None:
        """Take every event back; only when the host will ask about none of them again."""
        self._free = list(self._created)
