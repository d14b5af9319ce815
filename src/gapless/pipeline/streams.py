"""The streams of a plan by the work that they carry, and a pool of events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from gapless.device.base import Device, Event, Stream


@dataclass(frozen=True, kw_only=True)
class StreamRoles:
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


def stream_roles(num_streams: int) -> StreamRoles:
    """Return the work of each of `num_streams` streams (1 to 8).

    One stream does everything. Two: transfer and compute. Three: readback apart. Four: transfer,
    forward, backward, next transfer. Five: readback apart again. More
    streams take further transfers.
    """
    if num_streams == 1:
        return StreamRoles(transfer=(0,), forward=0, backward=0, readback=0)
    if num_streams == 2:
        return StreamRoles(transfer=(0,), forward=1, backward=1, readback=1)
    if num_streams == 3:
        return StreamRoles(transfer=(0,), forward=1, backward=1, readback=2)
    if num_streams == 4:
        return StreamRoles(transfer=(0, 3), forward=1, backward=2, readback=1)
    return StreamRoles(transfer=(0, 3, *range(5, num_streams)), forward=1, backward=2, readback=4)


class PlanStreams:
    """The streams of one run, by the work that they carry.

    Args:
        device: where the streams are.
        count: number of streams, 1 to 8; `stream_roles` says what each carries.

    Attributes:
        transfer: carry host-to-device copies, used in turn.
        compute: carries the forward pass.
        backward: where `backward()` and the optimizer are called.
        readback: carries losses to the host.
        all: all of them; empty once they are closed.
    """

    def __init__(self, device: Device, count: int) -> None:
        self._device = device
        self._outer = device.current_stream()
        self.all = [device.create_stream() for _ in range(count)]
        found = stream_roles(count)
        self.transfer = [self.all[number] for number in found.transfer]
        self.compute = self.all[found.forward]
        self.backward = self.all[found.backward]
        self.readback = self.all[found.readback]

    def close(self) -> None:
        """Return to the stream that was current before, and let go of all streams.

        Sync: Does not block the host; queued work still runs.
        """
        self._device.set_current_stream(self._outer)
        self.all.clear()


class EventPool:
    """Hand out events and take them back when they are done.

    An event is recorded again only after its user gave it back. The user does so when the event
    is done, or when streams wait for it: a stream's wait belongs to the record that it saw, so a
    later record does not disturb it.

    If a user is interrupted, its event is missing until the next `reset`.

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

    def take(self) -> Event:
        """Return an event to record later; until then nobody may ask about it or wait for it.

        Sync: Does not block the host.
        """
        try:
            if self._free:
                return self._free.pop()
        except IndexError:  # another thread has got the last one in between
            pass
        event = self._device.create_event(timed=self._timed)
        self._created.append(event)
        return event

    def record(self, stream: Stream) -> Event:
        """Take an event and record it on `stream`.

        Sync: Does not block the host.
        """
        event = self.take()
        self._device.record_event(event, stream)
        return event

    def give_back(self, event: Event) -> None:
        """Return an event that the host will not ask about again."""
        self._free.append(event)

    def reset(self) -> None:
        """Take every event back; only when the host will ask about none of them again."""
        self._free = list(self._created)
