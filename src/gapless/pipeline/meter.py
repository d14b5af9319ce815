"""Device busy time and gaps, measured by event pairs and read late."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from gapless.pipeline.streams import EventPool
from gapless.records.epoch_record import gap_share


if TYPE_CHECKING:
    from gapless.device.base import Device, Event, Stream


LaunchT = TypeVar("LaunchT")


@dataclass(frozen=True, slots=True)
class StepTime(Generic[LaunchT]):
    """The device's times of one step, in milliseconds.

    Attributes:
        launch: what `end_step` was given for the step.
        busy_ms: from its first kernel to its last.
        period_ms: from the end of the step before to its end; None if none came before.
    """

    launch: LaunchT
    busy_ms: float
    period_ms: float | None


@dataclass(frozen=True, kw_only=True)
class GapReading:
    """What the device did while a loop ran.

    Attributes:
        busy_ms: time between the first and last kernel of each step, summed, in milliseconds.
        gap_ms: time between the end of a step and the start of the next, summed.
    """

    busy_ms: float
    gap_ms: float

    @property
    def gap_share(self) -> float | None:
        """Share of the time in gaps, 0 to 1; None before a step was read."""
        return gap_share(self.busy_ms, self.gap_ms)

    def __sub__(self, earlier: GapReading) -> GapReading:
        return GapReading(
            busy_ms=self.busy_ms - earlier.busy_ms, gap_ms=self.gap_ms - earlier.gap_ms
        )


class GapMeter(Generic[LaunchT]):
    """Record an event at both ends of every step, and read their times when they are done.

    It sees the gaps between steps. Idle time inside a step, between its kernels, counts as busy:
    events cannot tell it apart, a kernel trace can.

    Args:
        device: where the steps run.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._events = EventPool(device, timed=True)
        self._pending: deque[tuple[Event, Event, LaunchT | None] | None] = deque()
        self._read: list[StepTime[LaunchT]] = []
        self._started: Event | None = None
        self._last_end: Event | None = None
        self._busy_ms = 0.0
        self._gap_ms = 0.0

    def start_step(self, stream: Stream) -> None:
        """Mark the start of a step.

        Sync: Does not block the host.
        """
        self._started = self._events.record(stream)

    def end_step(self, stream: Stream, launch: LaunchT | None = None) -> None:
        """Mark the end of a step.

        Args:
            stream: on which the step's work ends.
            launch: what the host knows of the step, if `take_read` shall give its times.

        Sync: Does not block the host.
        """
        assert self._started is not None
        self._pending.append((self._started, self._events.record(stream), launch))
        self._started = None

    def is_idle(self) -> bool:
        """Return whether the device has done every step that ended.

        Sync: Does not block the host.
        """
        step = self._pending[-1] if self._pending else None
        return step is None or self._device.query_event(step[1])

    def pause(self) -> None:
        """Do not count the time until the next step as a gap, nor a step that did not end."""
        self._started = None
        self._pending.append(None)
        self.poll()
        if not self._pending:
            self._events.reset()

    def poll(self) -> None:
        """Take in the steps that are done.

        Sync: Does not block the host.
        """
        while self._pending:
            step = self._pending[0]
            if step is not None and not self._device.query_event(step[1]):
                return
            # First out, then counted: an interrupt may lose a step's time, but no step is
            # counted and no event given back twice.
            self._pending.popleft()
            self._take_in(step)

    def take_read(self) -> list[StepTime[LaunchT]]:
        """Return the steps with a launch that were read since the last call, in order.

        Sync: Does not block the host.
        """
        read, self._read = self._read, []
        return read

    def _take_in(self, step: tuple[Event, Event, LaunchT | None] | None) -> None:
        former, self._last_end = self._last_end, step[1] if step else None
        if step is not None:
            start, end, launch = step
            gap_ms = None if former is None else self._device.elapsed_ms(former, start)
            busy_ms = self._device.elapsed_ms(start, end)
            self._gap_ms += gap_ms or 0.0
            self._busy_ms += busy_ms
            self._events.give_back(start)
            if launch is not None:
                period_ms = None if gap_ms is None else gap_ms + busy_ms
                self._read.append(StepTime(launch, busy_ms, period_ms))
        if former is not None:
            self._events.give_back(former)

    def reading(self) -> GapReading:
        """Return the totals of the steps read so far.

        Sync: Does not block the host.
        """
        return GapReading(busy_ms=self._busy_ms, gap_ms=self._gap_ms)
