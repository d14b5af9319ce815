"""Streams by number or name, for code that orders its own work on a device."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

from gapless.device.find import find_device
from gapless.pipeline.host_waits import HostWaits
from gapless.pipeline.streams import stream_roles
from gapless.plans import MAX_STREAMS


if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from gapless.device.base import Device, Event, Stream
    from gapless.records.wait_stats import WaitStats


class StreamManager:
    """Owns streams with a number or a name, and gives access to their events.

    Numbers start at 0; `stream_roles` says what each numbered stream carries. Further streams have
    names. A training loop needs none of this: `gapless.TrainLoop` keeps its own streams. On a CPU
    every call works, and work runs in the order of the calls.

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
        self.roles = stream_roles(num_streams)
        self.host_waits = HostWaits(self.device, wait_stats=wait_stats)
        self._outer_stream = self.device.current_stream()
        self._streams: dict[int | str, Stream] = {
            number: self.device.create_stream() for number in range(num_streams)
        }

    @property
    def stats(self) -> WaitStats:
        """Host waits made through this manager."""
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
        return self._streams[self.roles.forward]

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
        """Send the work of a `with` body to a stream; afterwards the former stream is current.

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
        """Make the stream current that was so before, and release all streams.

        Sync: Does not block the host; queued work still runs.
        """
        self.device.set_current_stream(self._outer_stream)
        self._streams.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
